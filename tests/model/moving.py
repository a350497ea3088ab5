"""Waiting tasks that go to another queue: that of their tenant's new tier.

    lane, later of a queue --move--> lane, later of another

A task keeps its place among all tasks, its time, its expiry and what its limits say, but that of
its partition: where the new queue is partitioned it has one of that. What runs is not touched. In
its new queue it stands among those that came back (``lanes``), where the place of each is by its
sequence number.

Invariant: a task that is moved is in one of the two queues, at every instant.

Weakness: what runs when its tenant's tier changes, and comes back, comes back to its old queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from celery_fairness.config.queue_limits import without_partition
from tests.model.lanes import Task
from tests.model.putting import Putting

#: The queues of a service between which a tier decides.
_OTHERS = {"priority": "default", "default": "priority"}


def other_queue(queue: str) -> tuple[str, ...]:
    """Return the queue to which tasks of ``queue`` may have been moved, if there is one."""
    service, _, name = queue.rpartition("_")
    return (f"{service}_{_OTHERS[name]}",) if service and name in _OTHERS else ()


class Moving(Putting):
    """An installation whose waiting tasks can go to another queue."""

    def move(self, queue: str, target: str, tasks: Sequence[tuple[Task, str]]) -> list[bool]:
        """Move waiting tasks; say of each whether it waited as it is given.

        Args:
            queue: Where they wait.
            target: Where they go to.
            tasks: Each with the key of its partition there, "" where it says none.
        """
        return [self._move(queue, target, task, part) for task, part in tasks]

    def _move(self, queue: str, target: str, task: Task, part: str) -> bool:
        later = self.later[queue]
        due = [each for each in later if each[2] == task]
        if not due and not self.take_out(queue, task.key, lambda lanes: lanes.cancel(task)):
            return False
        if (ends_ms := self.expires[queue].pop(task.tag, None)) is not None:
            self.expires[target][task.tag] = ends_ms
        limits = self.queues.in_partition(target, without_partition(task.limits), part)
        moved = replace(task, limits=limits)
        for each in due:
            later.remove(each)
            self.wait_until(target, moved, each[0])
        if not due:
            self.enqueue(target, moved, back=True)
        return True
