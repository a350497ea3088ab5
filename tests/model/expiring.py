"""Waiting tasks whose expiry comes: they end where they wait, without a start.

    lane, later --expiry--> outcome      (a worker writes that it was revoked)

A task that may expire stands among those that came back (``lanes``), where it is found by its tag;
its place is by its sequence number all the same. Until its time it waits no longer than its expiry.
What was claimed once does not expire here: when it waits again, its worker looks, as Celery's do.

Weakness: only claims look, and of the queues that they ask for. Where every worker is full, or
nobody takes a queue, what waits there expires when somebody asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tests.model.cancelling import NOBODY, Cancelling
from tests.model.lanes import Lanes, Task
from tests.model.rows import Running


class Expiring(Cancelling):
    """An installation whose waiting tasks expire."""

    def begin_to_wait(self, queue: str, task: Task, since_ms: int) -> None:
        """Begin to wait in a lane, last in it; since then, where it did not wait before."""
        if task.put_ms is None:
            task = replace(task, put_ms=since_ms, is_noisy=(queue, task.key) in self.lanes)
        self.enqueue(queue, task, back=task.tag in self.expires[queue])

    def bring_in(self, queue: str, task: Task, eta_ms: int) -> None:
        """Its time has come."""
        self.begin_to_wait(queue, replace(task, seq=self.next_seq()), eta_ms)

    def end_expired(self, queues: Sequence[str], logical: int) -> bool:
        """End a bounded number of each queue; say whether there may be more."""
        ended = [self._end_expired(queue, logical) for queue in queues]
        return self.budget.due in ended

    def _end_expired(self, queue: str, logical: int) -> int:
        expires = self.expires[queue]
        due = sorted((at, tag.encode(), tag) for tag, at in expires.items() if at <= self.now_ms())
        tasks = {
            task.tag: task
            for (other, _), lanes in self.lanes.items()
            if other == queue
            for part in lanes.lists.values()
            for task in part
        }
        # One that is known and in no lane waits for its time: a later call looks at it.
        due_tags = [tag for *_, tag in due[: self.budget.due]]
        ended = [tag for tag in due_tags if tag in tasks or tag not in self.known]
        for tag in ended:
            del expires[tag]
        for task in (tasks[tag] for tag in ended if tag in tasks):
            self.take_out(queue, task.key, partial(Lanes.cancel, task=task))
            self.known.discard(task.tag)
            self.counts["expired_waiting"] += 1
            self.happenings.tell_of("fairness.expired", queue, task)
            self.outcomes[Running(NOBODY, "expired", queue, task)] = logical
        return len(ended)
