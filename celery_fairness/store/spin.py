"""Spinning: looking for an answer again and again for a moment, before sleeping for it.

A Redis that is near answers in a tenth of a millisecond, and who sleeps meanwhile is woken a good
part of that later (ADR 11). Between two looks the core and the interpreter are given to whoever
wants them. Where no answer came in time the next ones are slept for: the server is far, or busy.
"""

from __future__ import annotations

import _socket
import os
import select
from collections.abc import Callable
from time import perf_counter
from typing import Any

#: How long an answer is looked for, in seconds.
SPIN_SECONDS = 0.0004
#: How many answers are slept for after one that had not come by then.
REST = 16


class Spin:
    """ScanCursor for the answers on one connection after the other, in one thread at a time."""

    def __init__(self) -> None:
        self._number = -1
        self._look: Callable[[int], Any] | None = None
        self._rest = 0

    def wait(self, connection: Any) -> None:
        """Return when something can be read, or after SPIN_SECONDS; what it is, a read tells.

        Args:
            connection: Of redis-py. One that has no socket, or a green one, is not looked at.
        """
        if self._rest:
            self._rest -= 1
            return
        socket = connection._sock  # noqa: SLF001 - it has no public name
        # By its number, which is all that is polled: who keeps a socket keeps it open.
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
    """Return what says whether ``socket`` can be read; None where one cannot spin."""
    # Those of gevent and eventlet only hold one: while this looks, no other greenlet would run.
    if not isinstance(socket, _socket.socket) or not hasattr(os, "sched_yield"):
        return None
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return poll.poll
