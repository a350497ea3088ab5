"""A Redis Cluster of real processes on this machine: primaries, their replicas, and its changes.

Invariant: `start()` and each change return when every living node has the same table of slots.
`stop()` ends every process.

Weakness: the nodes are on one host, and none of them announces a name.
"""

from __future__ import annotations

import re
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from celery_fairness.compat.redis_pool import take_connection
from celery_fairness.store.cluster import SLOTS, slot_of
from tests.support.proxy import Proxy
from tests.support.redis_server import HOST, RedisServer, ReservedPort
from tests.support.waiting import at_most, eventually

#: Nodes that no other has heard for so long count as failed, in ms.
NODE_TIMEOUT_MS = 2_000
#: Seconds within which all nodes agree on a change.
AGREE_SECONDS = 30.0
#: How often a planned failover is tried, and for how many seconds each time.
FAILOVERS, FAILOVER_SECONDS = 5, 6.0
#: Keys that one MIGRATE moves.
MOVED_KEYS = 100


class Node(RedisServer):
    """One node: a server with a bus port."""

    def __init__(
        self, folder: Path, binary: str | None, args: tuple[str, ...], source: str | None = None
    ) -> None:
        self._bus, self._tls = ReservedPort(), ReservedPort()
        given = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS)]
        given += ["--cluster-port", str(self._bus.number), "--repl-diskless-sync-delay", "0"]
        if "--tls-cert-file" in args:
            given += ["--tls-port", str(self._tls.number), "--tls-cluster", "yes"]
        #: The host of its links to other nodes, and the proxy of the links to it.
        self.source, self._wire = source, Proxy(self._bus.number) if source else None
        if source and self._wire:
            given += ["--bind-source-addr", source, "--cluster-announce-ip", HOST]
            # In this mode Redis 7.0 rejects every address but 127.0.0.1. The node is bound to it.
            given += ["--protected-mode", "no"]
            given += ["--cluster-announce-bus-port", str(self._wire.start().port)]
        super().__init__(binary, directory=folder, args=(*given, *args))

    def stop(self) -> None:
        """End it, and give its ports back."""
        super().stop()
        if self._wire:
            self._wire.stop()
        self._bus.release()
        self._tls.release()

    @property
    def tls_port(self) -> int:
        """The port for TLS, if the arguments have a certificate."""
        return self._tls.number

    @property
    def met_port(self) -> int:
        """The port by which other nodes know it."""
        return self.tls_port if "--tls-port" in self._args else self.port

    @property
    def url(self) -> str:
        """The address of the cluster by this node alone."""
        return f"cluster://{HOST}:{self.port}/0"

    def client(self, **options: Any) -> redis.Redis:
        """Return a client of this node alone. The caller closes it."""
        defaults = {"protocol": 2, "socket_timeout": 5.0, "retry": Retry(NoBackoff(), 0)}
        return redis.Redis(host=HOST, port=self.port, **{**defaults, **options})

    @property
    def bus(self) -> int:
        """The port at which other nodes reach it."""
        return self._wire.port if self._wire else self._bus.number

    @property
    def wire(self) -> Proxy:
        """The proxy before its bus port."""
        assert self._wire is not None, "the cluster was made without `wired`"
        return self._wire

    def do(self, *command: Any) -> Any:
        """Send one command over a plain connection, and return the answer as the server sent it."""
        with self.client(decode_responses=True) as client:
            connection = take_connection(client)
            try:
                connection.send_command(*command)
                return connection.read_response()
            finally:
                client.connection_pool.release(connection)


class RedisCluster:
    """Primaries with equal parts of the slots, each with the same number of replicas.

    Args:
        primaries: How many primaries.
        replicas: How many replicas each has.
        binary: The server. None means that of the other tests.
        args: Further arguments of each server.
        wired: Whether the links between the nodes can be cut.
    """

    def __init__(
        self,
        primaries: int = 3,
        replicas: int = 0,
        binary: str | None = None,
        args: tuple[str, ...] = (),
        *,
        wired: bool = False,
    ) -> None:
        self._binary, self._args = binary, args
        self._sources = (f"127.0.0.{number}" for number in range(2, 255)) if wired else None
        self._counts = primaries, replicas
        self._stack = ExitStack()
        self._folder = Path()
        self.nodes: list[Node] = []

    def start(self) -> Self:
        """Start all of it."""
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="fairness-cluster-"))
        self._folder = Path(folder)
        primaries, replicas = self._counts
        try:
            first = [self._start_node() for _ in range(primaries)]
            for number, node in enumerate(first):
                low, high = (SLOTS * each // primaries for each in (number, number + 1))
                node.do("CLUSTER", "ADDSLOTSRANGE", low, high - 1)
            self.await_agreement()
            for number in range(primaries * replicas):
                self.add_replica(first[number % primaries])
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End every process."""
        self._stack.close()

    def _start_node(self) -> Node:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        source = next(self._sources) if self._sources else None
        node = self._stack.enter_context(Node(folder, self._binary, self._args, source))
        self.nodes.append(node)
        if len(self.nodes) > 1:
            known = next(each for each in self.nodes if each.alive)
            node.do("CLUSTER", "MEET", HOST, known.met_port, known.bus)
            name = node.do("CLUSTER", "MYID")
            eventually(lambda: _expect(name in known.do("CLUSTER", "NODES")), AGREE_SECONDS)
        return node

    # -- what it is -------------------------------------------------------------------------------

    def url(self, scheme: str = "cluster", seeds: int = 2) -> str:
        """Return an address for clients that names some of the nodes."""
        return ";".join(f"{scheme}://{HOST}:{each.port}/0" for each in self.nodes[:seeds])

    def primary(self, key: str = "{fairness}") -> Node:
        """Return the primary of a key's slot, as the majority of the nodes names it."""
        slot, votes = slot_of(key), dict.fromkeys(self.nodes, 0)
        for node in self.nodes:
            with suppress(RedisError, StopIteration, KeyError):
                rows = node.do("CLUSTER", "SLOTS") if node.alive else []
                port = next(row[2][1] for row in rows if row[0] <= slot <= row[1])
                votes[next(each for each in self.nodes if each.port == port)] += 1
        return max(votes, key=lambda each: votes[each])

    def other(self, key: str = "{fairness}") -> Node:
        """Return a living primary that has not the slot of a key."""
        mine = self.primary(key)
        return next(
            each
            for each in self.nodes
            if each is not mine and each.alive and each.do("ROLE")[0] == "master"
        )

    def replica(self, of: Node) -> Node:
        """Return a living replica of a node."""
        name = of.do("CLUSTER", "MYID")
        return next(
            each
            for each in self.nodes
            if each.alive and f"slave {name}" in _myself(each.do("CLUSTER", "NODES"))
        )

    def client(self, key: str = "{fairness}") -> redis.Redis:
        """Return a client of the primary of a key's slot. The caller closes it."""
        return self.primary(key).client(decode_responses=True)

    def await_agreement(self) -> None:
        """Return when every living node has the same table of slots, and all are served."""

        def agreed() -> None:
            tables = []
            for node in (each for each in self.nodes if each.alive):
                try:
                    assert "cluster_state:ok" in node.do("CLUSTER", "INFO")
                    rows = node.do("CLUSTER", "SLOTS")
                except RedisError as error:
                    raise AssertionError(str(error)) from None
                tables.append(sorted((row[0], row[1], row[2][1]) for row in rows))
            assert all(each == tables[0] for each in tables)
            assert sum(high - low + 1 for low, high, _ in tables[0]) == SLOTS

        eventually(agreed, at_most(AGREE_SECONDS))

    def await_replica(self, key: str = "{fairness}") -> None:
        """Return when a replica acknowledges what the primary of a key's slot sends."""

        def acknowledges() -> None:
            about = self.primary(key).do("INFO", "replication")
            assert re.search(r"state=online,offset=[1-9]", about), about

        eventually(acknowledges, at_most(AGREE_SECONDS))

    # -- how it changes ---------------------------------------------------------------------------

    def add_replica(self, of: Node) -> Node:
        """Start a replica of a node, and return when it has the node's memory."""
        node, name = self._start_node(), of.do("CLUSTER", "MYID")

        def accepts() -> None:
            try:
                node.do("CLUSTER", "REPLICATE", name)
            except ResponseError as error:
                # It has not heard of that node yet.
                raise AssertionError(str(error)) from None

        eventually(accepts, at_most(AGREE_SECONDS))
        # The command is not sent again: it would begin the copy anew.
        eventually(
            lambda: _expect("master_link_status:up" in node.do("INFO", "replication")),
            at_most(AGREE_SECONDS),
        )
        self.await_agreement()
        return node

    def add_primary(self) -> Node:
        """Start a node without slots."""
        node = self._start_node()
        self.await_agreement()
        return node

    def remove(self, node: Node) -> None:
        """Make the others forget a node without slots, and end it."""
        name = node.do("CLUSTER", "MYID")
        for each in self.nodes:
            if each is not node and each.alive:
                each.do("CLUSTER", "FORGET", name)
        self.nodes.remove(node)
        node.stop()

    def fail_over(self, of: Node | None = None) -> Node:
        """Make a replica the primary, as planned, and return it."""
        node = self.replica(of or self.primary())
        for _ in range(FAILOVERS):
            node.do("CLUSTER", "FAILOVER")
            # A node gives up after 5 s, for example if another election takes place.
            with suppress(AssertionError):
                eventually(lambda: _expect(node.do("ROLE")[0] == "master"), FAILOVER_SECONDS)
                return node
        raise AssertionError(f"{FAILOVERS} times, the replica did not become the primary")

    def kill_primary(self, key: str = "{fairness}") -> Node:
        """Kill the primary of a key's slot, and return it. A replica follows after the time-out."""
        node = self.primary(key)
        node.kill()
        return node

    def await_copies(self, of: Node | None = None) -> None:
        """Wait until the replica of a primary, or of the slot's, has all that it has written."""
        node = of or self.primary()
        _, written, _ = node.do("ROLE")

        def copied() -> None:
            replicas = node.do("ROLE")[2]
            assert replicas
            assert all(int(offset) >= int(written) for *_, offset in replicas)

        eventually(copied, at_most(AGREE_SECONDS))

    def await_primary(self, before: Node, key: str = "{fairness}") -> Node:
        """Return the primary of a key's slot that has followed ``before``."""

        def followed() -> None:
            found = self.primary(key)
            assert found is not before
            assert found.alive
            assert found.do("ROLE")[0] == "master"

        eventually(followed, at_most(AGREE_SECONDS))
        return self.primary(key)

    def part(self, node: Node) -> None:
        """Keep a node and all others from hearing each other. Clients and replicas reach it."""
        node.wire.hang()
        assert node.source is not None
        for each in self.nodes:
            if each is not node:
                each.wire.hold(node.source)

    def join(self) -> None:
        """Let all nodes hear each other again."""
        for each in self.nodes:
            each.wire.resume()

    def begin_move(self, to: Node, key: str = "{fairness}") -> tuple[Node, int]:
        """Begin to move a slot key by key; return where it was, and its number."""
        slot, source = slot_of(key), self.primary(key)
        to.do("CLUSTER", "SETSLOT", slot, "IMPORTING", source.do("CLUSTER", "MYID"))
        source.do("CLUSTER", "SETSLOT", slot, "MIGRATING", to.do("CLUSTER", "MYID"))
        return source, slot

    def end_move(self, source: Node, to: Node, slot: int) -> None:
        """Move the keys of a slot, and give it to its new node."""
        while keys := source.do("CLUSTER", "GETKEYSINSLOT", slot, MOVED_KEYS):
            source.do("MIGRATE", HOST, to.port, "", 0, 20_000, "KEYS", *keys)
        name = to.do("CLUSTER", "MYID")
        others = [each for each in self.nodes if each.alive and each not in (source, to)]
        for node in (to, source, *others):
            # A replica takes the table of its primary.
            with suppress(ResponseError):
                node.do("CLUSTER", "SETSLOT", slot, "NODE", name)
        self.await_agreement()

    def move(self, to: Node, key: str = "{fairness}") -> None:
        """Move a slot key by key, as ``redis-cli --cluster reshard`` does."""
        source, slot = self.begin_move(to, key)
        self.end_move(source, to, slot)

    @property
    def moves_at_once(self) -> bool:
        """Whether the servers have the command of Valkey 9 that moves a slot as one."""
        return "MIGRATESLOTS" in str(self.nodes[0].do("CLUSTER", "HELP"))

    def move_at_once(self, to: Node, key: str = "{fairness}") -> None:
        """Move a slot by the command of Valkey 9, which moves it as one."""
        slot, source = slot_of(key), self.primary(key)
        name = to.do("CLUSTER", "MYID")
        source.do("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", name)
        eventually(lambda: _expect(self.primary(key) is to), at_most(AGREE_SECONDS))
        self.await_agreement()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _myself(table: str) -> str:
    return next(line for line in table.splitlines() if "myself" in line)


def _expect(condition: bool) -> None:
    assert condition
