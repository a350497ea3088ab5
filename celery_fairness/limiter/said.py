"""What people and settings say of keys and queues, as the limiter in memory keeps it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.queue_limits import KNOWN, How, QueueNumbers, QueueRow
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.scheduler.overrides import Override, Overrides
from celery_fairness.scheduling.clock import LogicalClock
from celery_fairness.scheduling.declared import Declared
from celery_fairness.scheduling.pace import Paces
from celery_fairness.scheduling.queues import QueueLimits
from celery_fairness.scheduling.stops import Stops
from celery_fairness.util.durations import Milliseconds, milliseconds


class SaidInMemory:
    """Stops, overrides, and limits of queues.

    Args:
        clock: The time in ms.
        lease_ms: A lease.
    """

    def __init__(self, clock: Callable[[], Milliseconds], lease_ms: Milliseconds) -> None:
        self._clock, self._lease_ms = clock, lease_ms
        self._lock = threading.Lock()
        self._logical = LogicalClock()
        self._tick()
        self._stops, self._overrides = Stops(), Overrides()
        self._queues, self._declared = QueueLimits(), Declared()
        self._paces = Paces()

    def stop(self, how: str, key: str, wait_seconds: float = 0.0) -> None:
        """``pause`` (0: until resumed) or ``resume`` a key, ``cool`` it down, or ``clear`` that."""
        with self._lock:
            wait_ms, now, logical = milliseconds(wait_seconds), int(self._clock()), self._tick()
            if how == "pause":
                self._stops.pause(key, now + wait_ms if wait_ms else None, now)
            elif how == "resume":
                self._stops.resume(key)
            elif how == "cool":
                self._stops.cool(key, logical + wait_ms)
            else:
                self._stops.clear(key)
            if how != "cool":
                self._paces.forget(key, now)

    def override(self, key: str, override: Override | None) -> None:
        """Put numbers in the place of a key's own; None clears them."""
        with self._lock:
            self._tick()
            self._overrides.put(key, override)
            self._paces.forget(key, int(self._clock()))

    def limit_queue(
        self, how: How, queue: str, numbers: QueueNumbers | None = None, parts: bool = False
    ) -> QueueRow | None:
        """Say what a queue may."""
        with self._lock:
            self._tick()
            row = self._queues.rows.get(queue, QueueRow(queue_key(queue)))
            self._queues.rows[queue] = row = row.after(how, parts, numbers)
            if row.declared is None and row.said is None and how != KNOWN:
                del self._queues.rows[queue]
            if how != KNOWN:
                self._paces.forget(queue_key(queue), int(self._clock()))
            return self._queues.rows.get(queue)

    def queue_rows(self) -> Mapping[str, QueueRow]:
        """Return what is known of queues."""
        with self._lock:
            return dict(self._queues.rows)

    def _numbered(self, limit: Limit) -> Limit:
        """Return a limit with the numbers that it is judged by now."""
        numbered = self._declared.judged(self._queues.judged(limit))
        return self._overrides.judged(numbered, int(self._clock()))

    def _forget_said(self, logical: int) -> None:
        """Forget what people said for a time that is over."""
        over = int(self._clock())
        for key in (
            *self._stops.resumed(over, len(self._stops.paused_until)),
            *self._overrides.ended(over, len(self._overrides.rows)),
        ):
            self._paces.forget(key, over)
        self._stops.forget(logical, len(self._stops.cooled))

    def _reading(self) -> int:
        return self._logical.read(int(self._clock()), self._lease_ms)

    def _tick(self) -> int:
        return self._logical.tick(int(self._clock()), self._lease_ms)
