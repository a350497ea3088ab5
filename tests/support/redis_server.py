"""A private Redis server that a test can break: kill, pause, and restart on the same port."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Self

from celery_fairness.testing import server
from celery_fairness.testing.server import HOST, ServerFailed, find_binary

__all__ = ["HOST", "RedisServer", "ReservedPort", "ServerFailed", "find_binary"]


class ReservedPort:
    """A free local port that stays reserved while its server is down.

    On Linux a bound socket that does not listen reserves the port. Neither a foreign process nor a
    client that connects to itself gets it, and a server can still bind and listen on it. On other
    systems the port was free, but it is not reserved.
    """

    def __init__(self, port: int | None = None) -> None:
        """Reserve `port`, or any free one.

        Raises:
            ServerFailed: That port is taken.
        """
        self._socket: socket.socket | None = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((HOST, port or 0))
        except OSError as error:
            self._socket.close()
            raise ServerFailed(
                f"port {port} on {HOST} expected to be free, got: {error.strerror}"
            ) from error
        self.number: int = self._socket.getsockname()[1]
        if sys.platform != "linux":
            self.release()

    def release(self) -> None:
        """Give the port back; twice is harmless."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class RedisServer(server.RedisServer):
    """A server whose port stays reserved until `stop()`, while it is down too."""

    def __init__(
        self,
        binary: str | os.PathLike[str] | None = None,
        port: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        args: Sequence[str] = (),
    ) -> None:
        """Take the arguments of its base."""
        super().__init__(binary, port, directory, args)
        self._wanted_port = port
        self._reserved: ReservedPort | None = None
        self._paused = False

    def start(self) -> Self:
        """Start it on a reserved port. If it runs already, do nothing."""
        if self._reserved is None:
            self._reserved = ReservedPort(self._wanted_port)
            self._asked_port = self._reserved.number
        return super().start()

    def stop(self) -> None:
        """End it, also if it is paused, and give its port back."""
        self.resume()
        if self._reserved is not None:
            self._reserved.release()
            self._reserved = None
        self._asked_port = self._wanted_port
        super().stop()

    def kill(self) -> None:
        """End it with SIGKILL, like a crash. The port stays reserved for `restart()`."""
        process = self._running()
        process.kill()
        process.wait()
        self._paused = False

    def pause(self) -> None:
        """Freeze it: connections stay open, and it answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Continue after `pause()`. If it is not paused, do nothing."""
        if self._paused and self.alive:
            os.kill(self.pid, signal.SIGCONT)
        self._paused = False

    def restart(self) -> Self:
        """Stop it if it runs, and start it on the same port, in the same directory."""
        self.resume()
        self._end()
        return self.start()
