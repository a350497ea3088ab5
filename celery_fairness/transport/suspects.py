"""Suspects: claimed tasks whose worker has died before. They start one after the other.

If a body kills its worker, all bodies of the worker die, and each has one death more. They come
back together. If they started together again, the innocent ones would become dead letters with the
one that kills. So a suspect starts when the one before it has ended, or has run for a lease. If one
more death makes it a dead letter, it starts alone, and the worker claims nothing until it has
ended.

    waiting --its turn--> started --> ended
       |
       '----the worker stops, or its channel closes--> back in its old place, without a death

A waiting suspect keeps its lease and its place in the worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic

from celery_fairness.scheduler.lease_table import Held, LeaseTable
from celery_fairness.scheduler.types import Claimed, Rules


class Suspects:
    """The suspects of one process.

    Args:
        now: Returns the time in monotonic seconds.
    """

    def __init__(
        self, lease_table: LeaseTable, rules: Rules, now: Callable[[], float] = monotonic
    ) -> None:
        self._lease_table, self._now = lease_table, now
        self._lease_seconds = rules.lease_ms / 1000
        #: A task with this number of deaths has one delivery left. None if deaths have no limit.
        self._last_from = max(1, rules.max_deliveries - 1) if rules.max_deliveries else None
        self._waiting: deque[tuple[Claimed, Held]] = deque()
        #: The suspect that started last, and the time of its start.
        self._before: tuple[Held, float] | None = None
        #: Suspects that start alone, since their turn came, with the time of that moment.
        self._alone: dict[Held, float] = {}

    @property
    def are_waiting(self) -> bool:
        """Whether a suspect waits for its start."""
        return bool(self._waiting)

    @property
    def stop_claims(self) -> bool:
        """Whether the worker claims nothing, because a suspect runs alone or is about to."""
        if self._alone:
            self._alone = {held: at for held, at in self._alone.items() if not held.ended}
        return bool(self._alone)

    def without(self, tasks: list[tuple[Claimed, Held]]) -> list[tuple[Claimed, Held]]:
        """Keep the suspects among ``tasks``, and return the others."""
        suspects = [each for each in tasks if each[1].deaths]
        if not suspects:
            return tasks
        self._waiting.extend(suspects)
        return [each for each in tasks if not each[1].deaths]

    def next(self, may_bring_more: bool = False) -> tuple[Claimed, Held] | None:
        """Return the suspect that starts now; None if none may.

        ``may_bring_more`` is whether an open claim may bring tasks that run beside it.
        """
        if not self._waiting or self.wait_seconds(may_bring_more) > 0:
            return None
        task, held = self._waiting.popleft()
        if not (held.ended or held.lost):
            self._before = held, self._now()
        return task, held

    def wait_seconds(self, may_bring_more: bool = False) -> float:
        """Return how long the next suspect waits if no task ends meanwhile."""
        _, held = self._waiting[0]
        if held.ended or held.lost:
            # It has nothing to wait for: the channel drops it.
            return 0.0
        wait = 0.0
        if self._before is not None and not self._before[0].ended:
            wait = self._left(self._before[1])
        if wait <= 0 and self._is_last(held):
            since = self._alone.setdefault(held, self._now())
            if may_bring_more or self._lease_table.places > len(self._waiting):
                wait = self._left(since)
        return max(0.0, wait)

    def _left(self, since: float) -> float:
        return since + self._lease_seconds - self._now()

    def _is_last(self, held: Held) -> bool:
        return self._last_from is not None and held.deaths >= self._last_from

    def drain(self) -> Iterable[Held]:
        """Remove the waiting suspects, and return their leases."""
        waiting, self._waiting = self._waiting, deque()
        return [held for _, held in waiting]
