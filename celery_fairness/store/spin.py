"""Spinning: polls a socket for up to 1 ms before the client blocks on it.

A near Redis answers in some tenths of a millisecond, and waking from a blocking read costs a good
part of that (ADR 11). Between two polls, other threads and processes get the core and the
interpreter. If an answer does not come in time, the server is far or busy, and the next reads block
at once.
"""

from __future__ import annotations

import _socket
import os
import select
from collections.abc import Callable
from time import perf_counter
from typing import Any

#: How long a socket is polled for an answer, in seconds.
SPIN_SECONDS = 0.001
#: The number of reads without polling after an answer that came too late.
REST = 16


class Spin:
    """Polls for the answers on one connection after the other, in one thread at a time."""

    def __init__(self) -> None:
        self._number = -1
        self._look: Callable[[int], Any] | None = None
        self._rest = 0

    def wait(self, connection: Any) -> None:
        """Return when the connection can be read, or after SPIN_SECONDS.

        Args:
            connection: A connection of redis-py. Without a socket, or with a green one, return at
                once.
        """
        if self._rest:
            self._rest -= 1
            return
        socket = connection._sock  # noqa: SLF001 - it has no public name
        # Compare file numbers: a reference to the socket would keep it open.
        number = -1 if socket is None else socket.fileno()
        if number != self._number:
            self._number, self._look = number, _look_at(socket)
        look = self._look
        if look is None:
            return
        ends_at = perf_counter() + SPIN_SECONDS
        while not look(0):
            if perf_counter() >= ends_at:
                self._rest = REST
                return
            os.sched_yield()


def _look_at(socket: Any) -> Callable[[int], Any] | None:
    """Return a function that polls ``socket``; None if it cannot be polled here."""
    # Sockets of gevent and eventlet are wrappers. During the poll no other greenlet could run.
    if not isinstance(socket, _socket.socket) or not hasattr(os, "sched_yield"):
        return None
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return poll.poll
