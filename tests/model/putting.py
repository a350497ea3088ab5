"""How a task begins to wait, and where it is refused because too many do.

    put --> lane            where there is room, or it was accepted before
        --> later           until its time, whatever waits now
        --> (refused)       as many wait as its tenant's tier, or its queue, lets wait

Invariant: a put that is refused leaves no trace; what was accepted is refused by nobody.

Weakness: what waits until its time does not count, so a bound may be passed when that comes.
"""

from __future__ import annotations

from dataclasses import replace

from celery_fairness.config.limit_spec import read_limits
from celery_fairness.config.tenants import INVALID
from celery_fairness.scheduler.types import SYSTEM, Bounds, Full, Put, Waiting
from tests.model.expiring import Expiring
from tests.model.lanes import Task


class Putting(Expiring):
    """An installation that takes tasks."""

    def put(self, waiting: Waiting) -> Put | Full:
        """Begin to wait; a put that is sent again does nothing while its task is known."""
        if waiting.tag in self.known:
            return Put.KNOWN
        task = Task(
            *(0, waiting.tag, 0, 0, waiting.cost, waiting.rank),
            *(waiting.tenant, waiting.service, waiting.tier, waiting.kind),
            *(waiting.limits, waiting.message),
        )
        is_later = waiting.eta_ms > self.now_ms()
        if waiting.bounds is not None and not is_later:
            full = self._full_of(waiting.queue, task, waiting.bounds)
            if full is not None:
                return full
        self.known.add(waiting.tag)
        if waiting.tenant == INVALID:
            self.counts["invalid"] += 1
        said = read_limits(task.limits)
        self.look_again(self.declared.declare(said, is_new=waiting.is_new))
        limits = self.queues.in_partition(waiting.queue, task.limits)
        task = replace(task, seq=self.next_seq(), limits=limits)
        now = self.now_ms()
        self.watch.put(now, waiting.queue, task, max(now, waiting.eta_ms))
        if waiting.expires_ms:
            self.expires[waiting.queue][task.tag] = waiting.expires_ms
        if is_later:
            self.wait_until(waiting.queue, task, waiting.eta_ms)
            return Put.WAITS_FOR_ITS_TIME
        self.note_tier(waiting.queue, task)
        self.begin_to_wait(waiting.queue, task, now)
        return Put.WAITS

    def _full_of(self, queue: str, task: Task, bounds: Bounds) -> Full | None:
        """Return what has no room for one more task."""
        if task.key != SYSTEM:
            waiting = sum(len(each) for (_, key), each in self.lanes.items() if key == task.key)
            account = self.accounts.get(task.key)
            tier = task.tier or (account.tier if account else "")
            most = self.news.most_waiting(task.tenant, tier, bounds)
            if most is not None and waiting >= most:
                return Full(task.key, most, waiting)
        waiting = sum(len(each) for (other, _), each in self.lanes.items() if other == queue)
        if bounds.of_queue is not None and waiting >= bounds.of_queue:
            return Full(f"queue:{queue}", bounds.of_queue, waiting)
        return None
