"""The clock of a simulation, and servers that serve one write after the other."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

#: Returns the CPU time of a write in microseconds, and its answer.
Effect = Callable[[], tuple[float, Any]]


class Clock:
    """Runs events in the order of their times, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, seconds: float, act: Callable[..., Any], *args: Any) -> None:
        """Call ``act`` after a time."""
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, act, args))

    def run(self, until: float) -> None:
        """Run all events up to a time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, act, args = heapq.heappop(self._events)
            act(*args)
        self.now = until


class _Write(NamedTuple):
    effect: Effect
    answered: Callable[[Any], Any] | None


class Server:
    """A primary: one core, and a queue of writes before it.

    Args:
        clock: The clock of the simulation.
        round_trip: The time to the server and back, in seconds.
        write_us: CPU time of each write without that of its calls.
    """

    def __init__(self, clock: Clock, round_trip: float, write_us: float) -> None:
        self._clock, self._round_trip, self._write_us = clock, round_trip, write_us
        self._queue: deque[_Write] = deque()
        self._is_busy = False
        #: CPU time that it has used, in seconds.
        self.used = 0.0

    def send(self, effect: Effect, answered: Callable[[Any], Any] | None = None) -> None:
        """Send a write; ``answered`` gets its answer."""
        self._clock.after(self._round_trip / 2, self._arrive, _Write(effect, answered))

    def _arrive(self, write: _Write) -> None:
        self._queue.append(write)
        if not self._is_busy:
            self._serve()

    def _serve(self) -> None:
        write = self._queue.popleft()
        us, answer = write.effect()
        seconds = (self._write_us + us) / 1e6
        self._is_busy, self.used = True, self.used + seconds
        self._clock.after(seconds, self._end, write, answer)

    def _end(self, write: _Write, answer: Any) -> None:
        if write.answered is not None:
            self._clock.after(self._round_trip / 2, write.answered, answer)
        self._is_busy = False
        if self._queue:
            self._serve()
