"""A master, its replicas and one Sentinel, as real processes of this machine.

Invariant: `start()` returns when the Sentinel knows every replica and each has the master's memory,
so a failover can begin at once. `stop()` ends every process.

Weakness: one Sentinel alone is its own majority. A group in production has three.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from celery_fairness.compat.redis_pool import take_connection
from tests.support.local_process import LocalProcess
from tests.support.redis_server import HOST, RedisServer, ReservedPort, find_binary
from tests.support.waiting import at_most, eventually

MASTER_NAME = "shop"
#: How long the Sentinel waits for a master's answer, in ms. A busy machine is slow to answer.
DOWN_AFTER_MS = 1_000
#: What every server of the group is started with.
ARGS = ("--repl-diskless-sync-delay", "0", "--repl-timeout", "2", "--min-replicas-max-lag", "2")
#: How a master is lost: its process dies, or its host vanishes and closes no connection.
Loss = Literal["killed", "vanished"]


def await_link(replica: RedisServer) -> None:
    """Return when a replica has its master's memory and follows it."""

    def follows() -> None:
        with replica.client(decode_responses=True) as client:
            assert client.info("replication")["master_link_status"] == "up"

    eventually(follows)


class SentinelGroup:
    """One Sentinel group.

    Args:
        folder: Where the Sentinel keeps its file.
        replicas: How many replicas the master has.
        acknowledging: How many of them a master needs for a write (`min-replicas-to-write`).
    """

    def __init__(self, folder: Path, replicas: int = 2, acknowledging: int = 1) -> None:
        self._folder, self._replicas = folder, replicas
        self._args = (*ARGS, "--min-replicas-to-write", str(acknowledging))
        self._stack = ExitStack()
        self._port = 0
        self.master = RedisServer(args=self._args)
        self.replicas: list[RedisServer] = []

    def start(self) -> Self:
        """Start all of it."""
        self._stack.enter_context(self.master)
        follows = ("--replicaof", HOST, str(self.master.port))
        for _ in range(self._replicas):
            replica = RedisServer(args=(*self._args, *follows))
            self.replicas.append(self._stack.enter_context(replica))
        for replica in self.replicas:
            await_link(replica)
        self._start_sentinel()
        return self

    def _start_sentinel(self) -> None:
        reserved = ReservedPort()
        self._port = reserved.number
        conf = self._folder / "sentinel.conf"
        conf.write_text(
            f"port {self._port}\nbind {HOST}\ndir {self._folder}\n"
            f"sentinel monitor {MASTER_NAME} {HOST} {self.master.port} 1\n"
            f"sentinel down-after-milliseconds {MASTER_NAME} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {MASTER_NAME} 3000\n"
        )
        self._stack.callback(reserved.release)
        process = LocalProcess("sentinel", [find_binary(), str(conf), "--sentinel"]).start()
        self._stack.callback(process.discard_log)
        self._stack.callback(process.stop)

        def knows_all() -> None:
            try:
                known = self._ask("SENTINEL", "REPLICAS", MASTER_NAME)
            except RedisError as error:
                raise AssertionError(str(error)) from None
            fields = [dict(zip(each[::2], each[1::2], strict=True)) for each in known]
            assert [each["master-link-status"] for each in fields] == ["ok"] * self._replicas

        eventually(knows_all, at_most(15.0))

    def _ask(self, *command: str) -> Any:
        with redis.Redis(
            host=HOST,
            port=self._port,
            protocol=2,
            decode_responses=True,
            socket_timeout=2.0,
            retry=Retry(NoBackoff(), 0),
        ) as client:
            # A plain connection: redis-py would turn the answer of SENTINEL into other types.
            connection = take_connection(client)
            try:
                connection.send_command(*command)
                return connection.read_response()
            finally:
                client.connection_pool.release(connection)

    def stop(self) -> None:
        """End every process."""
        self._stack.close()

    def url(self, scheme: str) -> str:
        """Return an address for clients: `sentinel` or `fairsentinel`."""
        name = f"?master_name={MASTER_NAME}" if scheme == "sentinel" else ""
        return f"{scheme}://{HOST}:{self._port}/0{name}"

    def await_acknowledged(self) -> None:
        """Return when a replica has all that the master has written so far."""
        with self.master.client() as client:
            # WAIT counts from the last write of its own connection.
            client.set("written", 1)
            assert client.wait(1, 5_000) >= 1, "no replica has acknowledged the last write"

    def lose_master(self, how: Loss) -> None:
        """Kill the master, or freeze it: then its connections stay open and nobody answers."""
        if how == "killed":
            self.master.kill()
        else:
            self.master.pause()

    @contextmanager
    def writer(self) -> Iterator[redis.Redis]:
        """A client of the server that is the master now."""
        host, port = self._ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME)
        with redis.Redis(host=host, port=int(port), decode_responses=True, protocol=2) as client:
            yield client

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
