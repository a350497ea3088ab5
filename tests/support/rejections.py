"""A Redis that answers and takes no commands: real states of a server, and what they answer.

Invariant: `takes_none()` returns when the server rejects writes; `takes_all()` when it takes them.

Weakness: some answers need a cluster, or a large memory; a server in between gives those.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from redis.exceptions import RedisError, ResponseError

from tests.support.redis_server import HOST, RedisServer
from tests.support.waiting import at_most, eventually

#: What a real server can be brought to answer.
REAL = ("READONLY", "NOREPLICAS", "MISCONF", "MASTERDOWN", "BUSY")
#: What the server in between answers.
PLAYED = {
    "LOADING": "LOADING Redis is loading the dataset in memory",
    "CLUSTERDOWN": "CLUSTERDOWN The cluster is down",
    "TRYAGAIN": "TRYAGAIN Multiple keys request during rehashing of slot",
}
ALL = (*REAL, *PLAYED)


class Rejection:
    """One server that can be brought to reject; `url` leads to it."""

    def __init__(self, word: str, folder: Path) -> None:
        self.word, self._folder = word, folder
        self.server = RedisServer(directory=folder, args=("--busy-reply-threshold", "100"))
        self.between: Between | None = None
        self._script: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        if self.between is None:
            return self.server.url
        return self.server.url.replace(str(self.server.port), str(self.between.port))

    def takes_none(self) -> None:
        """Reject from now on."""
        if self.between is not None:
            self.between.answer = PLAYED[self.word]
            return
        with self.server.client() as client:
            getattr(self, f"_begin_{self.word.lower()}")(client)
            eventually(lambda: self._rejects(client))

    def takes_all(self) -> None:
        """Take commands again."""
        if self.between is not None:
            self.between.answer = ""
            return
        with self.server.client() as client:
            getattr(self, f"_end_{self.word.lower()}")(client)
            eventually(lambda: not self._rejects(client))
        if self._script is not None:
            self._script.join(at_most(5.0))

    def _rejects(self, client: Any) -> bool:
        try:
            client.set("written", 1)
            client.delete("written")
        except RedisError as error:
            return self.word in f"{type(error).__name__.upper()} {error}"
        return False

    def _begin_readonly(self, client: Any) -> None:
        client.replicaof(HOST, 1)

    def _end_readonly(self, client: Any) -> None:
        client.replicaof("no", "one")

    def _begin_noreplicas(self, client: Any) -> None:
        client.config_set("min-replicas-to-write", 1)

    def _end_noreplicas(self, client: Any) -> None:
        client.config_set("min-replicas-to-write", 0)

    def _begin_misconf(self, client: Any) -> None:
        # A snapshot cannot take the place of a folder.
        (self._folder / "dump.rdb").mkdir()
        client.config_set("save", "3600 1000000")
        client.bgsave()
        eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")

    def _end_misconf(self, client: Any) -> None:
        shutil.rmtree(self._folder / "dump.rdb")
        client.config_set("stop-writes-on-bgsave-error", "no")

    def _begin_masterdown(self, client: Any) -> None:
        client.config_set("replica-serve-stale-data", "no")
        # Else it answers READONLY to a write.
        client.config_set("replica-read-only", "no")
        client.replicaof(HOST, 1)

    def _end_masterdown(self, client: Any) -> None:
        client.replicaof("no", "one")

    def _begin_busy(self, client: Any) -> None:
        del client

        def run() -> None:
            with contextlib.suppress(RedisError), self.server.client(socket_timeout=60) as busy:
                busy.eval("while true do end", 0)

        self._script = threading.Thread(target=run, name="busy script", daemon=True)
        self._script.start()

    def _end_busy(self, client: Any) -> None:
        with contextlib.suppress(ResponseError):
            client.script_kill()

    def __enter__(self) -> Self:
        self.server.start()
        if self.word in PLAYED:
            self.between = Between(self.server.port)
        return self

    def __exit__(self, *_: object) -> None:
        if self.between is not None:
            self.between.close()
        self.server.stop()
        if self._script is not None:
            self._script.join(at_most(5.0))


class Between(socketserver.ThreadingTCPServer):
    """Passes commands on to a server, or answers all of them with one error."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, target_port: int) -> None:
        super().__init__((HOST, 0), _Client)
        self.target_port = target_port
        #: The error; "" passes on.
        self.answer = ""
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where clients connect."""
        return int(self.server_address[1])

    def close(self) -> None:
        """End every connection."""
        self.shutdown()
        self.server_close()
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._thread.join(at_most(5.0))

    def opened(self, *sockets: socket.socket) -> None:
        """Remember what is to be ended."""
        self._open.update(sockets)

    def closed(self, *sockets: socket.socket) -> None:
        """Forget what has ended."""
        self._open.difference_update(sockets)


class _Client(socketserver.StreamRequestHandler):
    server: Between

    def handle(self) -> None:
        target = socket.create_connection((HOST, self.server.target_port))
        self.server.opened(self.connection, target)
        back = threading.Thread(target=self._pass_back, args=(target,), daemon=True)
        back.start()
        try:
            for command in self._commands():
                if self.server.answer:
                    self.wfile.write(f"-{self.server.answer}\r\n".encode())
                else:
                    target.sendall(command)
        except OSError:
            pass
        finally:
            self.server.closed(self.connection, target)
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)
            back.join(at_most(5.0))
            target.close()

    def _commands(self) -> Iterator[bytes]:
        while line := self.rfile.readline():
            command = line
            for _ in range(int(line[1:])):
                length = self.rfile.readline()
                command += length + self.rfile.read(int(length[1:]) + 2)
            yield command

    def _pass_back(self, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := target.recv(65536):
                self.connection.sendall(data)
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
