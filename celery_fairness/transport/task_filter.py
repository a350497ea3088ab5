"""Tasks that this process does not take now: unknown tasks, and tasks at their rate limit.

Claims skip them, so they wait in Redis for another process. A task from an earlier claim goes back
to its place.

Invariant: within any second, a process takes at most the rate limit plus one task of each name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kombu.utils.limits import TokenBucket

from celery_fairness.config.tenants import key_part
from celery_fairness.scheduler.types import SkippedTasks

#: How late a claim may come without losing a part of a rate limit, in seconds. The lost part is
#: available at once, as a part of the one additional task in a second.
LATE_SECONDS = 0.05
LATE_TOKENS = 0.9
#: A bucket rounds: after exactly its expected time it may still lack a small part.
SHORTEST_SECONDS = 0.001
#: The filter that skips no task.
NOTHING = SkippedTasks()


class TaskFilter:
    """The tasks that one process does not take; a task name is written as in keys."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Take every task."""
        self._unknown: set[str] = set()
        self._limits: dict[str, TokenBucket] = {}

    def skip(self, task_name: str) -> bool:
        """Skip ``task_name``, which this process does not have; return whether this is new."""
        is_new_name = task_name not in self._unknown
        self._unknown.add(task_name)
        return is_new_name

    def take_again(self, names: Iterable[str]) -> None:
        """Take tasks of these names again."""
        self._unknown.difference_update(map(key_part, names))

    def limit(self, name: str, per_second: float) -> None:
        """Take at most ``per_second`` tasks of ``name`` in a second; 0 removes the limit."""
        task_name = key_part(name)
        known = self._limits.get(task_name)
        if known is not None and known.fill_rate == per_second:
            return
        self._limits.pop(task_name, None)
        if per_second:
            late = min(per_second * LATE_SECONDS, LATE_TOKENS)
            capacity: Any = 1 + late
            self._limits[task_name] = TokenBucket(per_second, capacity)

    @property
    def are_limited(self) -> bool:
        """Whether any task has a rate limit."""
        return bool(self._limits)

    def is_limited(self, task_name: str) -> bool:
        """Return whether a task name has a rate limit here."""
        return task_name in self._limits

    def take(self, task_name: str) -> bool:
        """Count one task; return False if its name is at its limit."""
        bucket = self._limits.get(task_name)
        return bucket is None or bucket.can_consume()

    def skipped(self, places: Mapping[str, int]) -> SkippedTasks:
        """Return the tasks that a claim skips now."""
        if not (self._unknown or self._limits):
            return NOTHING
        waits = {task_name for task_name, bucket in self._limits.items() if bucket.expected_time()}
        once = self._limits.keys() - waits
        return SkippedTasks(tuple(sorted(self._unknown | waits)), tuple(sorted(once)), places)

    def available_in(self, skipped: SkippedTasks) -> float:
        """Return the seconds until a skipped task name may be taken again."""
        limits = (
            self._limits[task_name] for task_name in skipped.never if task_name in self._limits
        )
        waits = (bucket.expected_time() for bucket in limits)
        return max(SHORTEST_SECONDS, min(waits, default=float("inf")))
