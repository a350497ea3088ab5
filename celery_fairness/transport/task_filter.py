"""TaskFilter of task that this process does not take now: unknown to it, or at their rate limit.

Its claims pass them over, so they wait in Redis, where another process takes them. What a claim was
sent for before goes back to its place.

Invariant: within any second no more tasks of a kind are taken than its rate limit and one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kombu.utils.limits import TokenBucket

from celery_fairness.config.tenants import key_part
from celery_fairness.scheduler.types import Passing

#: So late a claim may come and lose nothing of a rate limit, in seconds. What it lost is had at
#: once, as part of the one task more that a second may have.
LATE_SECONDS = 0.05
LATE_TOKENS = 0.9
#: A bucket rounds: after exactly the time that it says it may lack a little.
SHORTEST_SECONDS = 0.001
#: Nothing is passed over.
NOTHING = Passing()


class TaskFilter:
    """What one process does not take; a kind is the name of a task as it is written in keys."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Take everything."""
        self._unknown: set[str] = set()
        self._limits: dict[str, TokenBucket] = {}

    def pass_over(self, kind: str) -> bool:
        """Take no task of ``kind``: this process does not know it. Say whether that is news."""
        is_news = kind not in self._unknown
        self._unknown.add(kind)
        return is_news

    def know(self, names: Iterable[str]) -> None:
        """Take tasks of these names again."""
        self._unknown.difference_update(map(key_part, names))

    def limit(self, name: str, per_second: float) -> None:
        """Take no more tasks of ``name`` than ``per_second``; 0: as many as there are."""
        kind = key_part(name)
        known = self._limits.get(kind)
        if known is not None and known.fill_rate == per_second:
            return
        self._limits.pop(kind, None)
        if per_second:
            late = min(per_second * LATE_SECONDS, LATE_TOKENS)
            capacity: Any = 1 + late
            self._limits[kind] = TokenBucket(per_second, capacity)

    @property
    def are_limited(self) -> bool:
        """Whether a task may be of a kind that is at its limit."""
        return bool(self._limits)

    def is_limited(self, kind: str) -> bool:
        """Say whether a kind has a rate limit here."""
        return kind in self._limits

    def take(self, kind: str) -> bool:
        """Take one task; False where its kind is at its limit."""
        bucket = self._limits.get(kind)
        return bucket is None or bucket.can_consume()

    def passing(self, places: Mapping[str, int]) -> Passing:
        """Return what a claim is to pass over now."""
        if not (self._unknown or self._limits):
            return NOTHING
        waits = {kind for kind, bucket in self._limits.items() if bucket.expected_time()}
        once = self._limits.keys() - waits
        return Passing(tuple(sorted(self._unknown | waits)), tuple(sorted(once)), places)

    def opens_in(self, passing: Passing) -> float:
        """Return the seconds until something that a claim was to pass over is taken again."""
        limits = (self._limits[kind] for kind in passing.never if kind in self._limits)
        waits = (bucket.expected_time() for bucket in limits)
        return max(SHORTEST_SECONDS, min(waits, default=float("inf")))
