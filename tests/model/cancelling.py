"""What people take out of a queue, and what they put back into one.

    lane, later --cancel--> outcome      (a worker writes that it was revoked)
    dead -------requeue---> lane          (last in it, its deaths counted from 0)

What runs is not touched by either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.model.lanes import Task
from tests.model.rows import Running
from tests.model.whole import WholeQueues

#: Who owns what nobody held.
NOBODY = "-"


class Cancelling(WholeQueues):
    """An installation whose waiting tasks can be cancelled, and its dead letters requeued."""

    def cancel(self, queue: str, tasks: Sequence[Task], lease_ms: int) -> list[bool]:
        """Take waiting tasks out for good; say of each whether it waited as it is given.

        One that was cancelled before says so too, until its result is written.
        """
        logical = self.clock.tick(self.now_ms(), lease_ms)
        return [self._cancel(queue, task, logical) for task in tasks]

    def _cancel(self, queue: str, task: Task, logical: int) -> bool:
        row = Running(NOBODY, "cancelled", queue, task)
        later = self.later[queue]
        left = [each for each in later if each[2] != task]
        if len(left) < len(later):
            later[:] = left
        elif not self.take_out(queue, task.key, lambda lanes: lanes.cancel(task)):
            return row in self.outcomes
        self.known.discard(task.tag)
        self.expires[queue].pop(task.tag, None)
        self.counts["cancelled"] += 1
        self.happenings.tell_of("fairness.cancelled", queue, task)
        self.outcomes[row] = logical
        return True

    def requeue(self, queue: str, task: Task, outcome: str) -> bool:
        """Let a dead letter wait again; say whether it was one.

        Args:
            queue: Of whose dead letters it is one.
            task: As it lies there.
            outcome: Its own, where its result is not written yet; "" elsewhere.
        """
        if task not in self.dead[queue]:
            return False
        self.dead[queue].remove(task)
        self.outcomes = {row: at for row, at in self.outcomes.items() if row.text != outcome}
        self.counts["requeued"] += 1
        self.enqueue(queue, replace(task, seq=self.next_seq(), deaths=0))
        self.happenings.tell_of("fairness.requeued", queue, task)
        return True
