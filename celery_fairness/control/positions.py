"""Reads the place of a waiting task among all that may start before it.

The function ``explain`` of the library returns it as one snapshot. It returns a sample of the
tenants whose turn comes before, and how many there are.

Weakness: a tenant's limit is its tier's or its own here, without holds and overrides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.settings import Enforcement, Settings
from celery_fairness.control.forecast import Before, HeldSlots, Turn, before_it
from celery_fairness.control.keys import TaskHead, read_row


class Positions:
    """The positions of one task.

    Args:
        answer: The snapshot.
        task: The head of the task.
        settings: The settings in force.
    """

    def __init__(self, answer: Mapping[str, Any], task: TaskHead, settings: Settings) -> None:
        self._answer = answer
        self._by_runtime = settings.fairness_by == "runtime"
        self._enforced = settings.enforcement is Enforcement.ON
        rows = (read_row(*row) for row in answer.get("rows") or ())
        #: Running tasks, or a sample of them.
        self.rows = [row for row in rows if row is not None]
        means = {key: mean for key, mean in (answer.get("means") or {}).items() if mean >= 0}
        #: The slots that tasks of the queue hold.
        self.slots = HeldSlots(
            self.rows, answer["running"], task.queue, float(answer["logical"]), means
        )

    @property
    def in_lane(self) -> int:
        """Number of tasks before it with its tenant, its priority and its limits."""
        return int(self._answer["in_lane"])

    @property
    def in_ring(self) -> int | None:
        """Number of active tenants before its own; None if its own is not active."""
        found: int | None = self._answer.get("in_ring")
        return found

    def before_in_queue(self) -> Before | None:
        """Return the tasks before it in its queue; None if its tenant has no position there."""
        place = self._answer.get("ring")
        return None if place is None else self._before(place, self.slots.held)

    def before(self, limit: Limit) -> Before:
        """Return the tasks before it at one of its limits, whose numbers apply."""
        place = self._answer["limits"].get(limit.key)
        if place is None:
            # It is the limit of the whole queue.
            return self.before_in_queue() or Before(0)
        if "of_all" not in place:
            mine = self._turn(place["mine"])
            return Before(mine.tasks, mine.takes)
        return self._before(place, limit.concurrency or 0)

    def _before(self, place: Mapping[str, Any], slots: int) -> Before:
        turns = [self._turn(each) for each in place["turns"] or ()]
        return before_it(turns, self._turn(place["mine"]), place["of_all"], slots)

    def _turn(self, row: Any) -> Turn:
        key, at, tasks, charge, names, mean, limit = row
        takes = mean if self._by_runtime and mean >= 0 else self._usual(names)
        most = limit if self._enforced and limit >= 0 else None
        return Turn(key, at, int(tasks), charge, takes, most)

    def _usual(self, names: list[str]) -> float | None:
        known = [each for each in map(self.slots.takes, names) if each is not None]
        return sum(known) / len(known) if known else None
