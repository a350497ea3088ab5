"""What people take out of the queues of the dispatch path, and what they put back.

Whatever is cancelled has a result: a worker writes that it was revoked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from celery_fairness.config.tenants import Reserved, key_part
from celery_fairness.control import find_task as finding
from celery_fairness.control import parked
from celery_fairness.control.explain import explain
from celery_fairness.control.find_task import Place
from celery_fairness.control.keys import Keys
from celery_fairness.control.parked import ParkedTask
from celery_fairness.control.scan import Reader, batches
from celery_fairness.control.stats import Stats
from celery_fairness.control.views import (
    Cancelled,
    DeadLetter,
    Explanation,
    Purged,
    Requeued,
)
from celery_fairness.control.workers import living, not_enforcing
from celery_fairness.errors import NotFound
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.scheduler import calls
from celery_fairness.util.durations import Milliseconds

#: Tasks that one call cancels: it reads each where it waits.
TOGETHER = 50
#: A task that moves from one place to another while they are read is met at the second look.
LOOKS = 2

_NOWHERE = (
    "neither waits nor runs: it has ended, is of another app, says no id in the headers of its "
    "message, or no worker has taken it over from redis:// yet"
)
_NOT_PARKED = (
    "is not parked in Redis: it may be on its broker, in its queue or until its snooze ends, or it "
    "runs, or has ended; which of them say: celery -A APP inspect query_task ID, and the workers' "
    "logs; to cancel it where it is: celery -A APP control revoke ID"
)
_PLAIN = re.compile(r"[a-zA-Z0-9-]+")


class Clearing:
    """Cancels and requeues tasks of one installation.

    Args:
        limiter: Of the installation.
        lease_ms: How long a lease lives without a renewal.
        claims: Whether the broker claims fairly; else what is not parked is not in Redis.
    """

    def __init__(self, limiter: RedisLimiter, lease_ms: Milliseconds, *, claims: bool) -> None:
        self._limiter = limiter
        self._lease_ms = lease_ms
        self._nowhere = _NOWHERE if claims else _NOT_PARKED
        self._reader = Reader(limiter.connection, Keys(limiter.prefix))

    def cancel(self, task_id: str) -> Cancelled:
        """Cancel a task that waits; see ``TasksApi.cancel``."""
        for _ in range(LOOKS):
            for task in self._parked(task_id):
                if self._limiter.unpark([task.tag], "cancelled"):
                    return Cancelled(task_id=task_id, state="cancelled", queue=task.queue)
            found = _of_id(finding.waiting(self._reader), task_id)
            cancelled = [place.queue for place in found if self._cancel([place])]
            # An id may be given to several messages, and a retry has that of the first attempt.
            for place in _of_id(finding.running(self._reader), task_id):
                return Cancelled(
                    task_id=task_id, state="running", queue=place.queue, owner=place.owner
                )
            if cancelled:
                return Cancelled(task_id=task_id, state="cancelled", queue=cancelled[0])
        raise NotFound("task", task_id, self._nowhere)

    def find(self, task_id: str) -> Place:
        """Return where a task is.

        Raises:
            NotFound: Nowhere.
        """
        for _ in range(LOOKS):
            for places in (finding.waiting, finding.running, finding.dead):
                for place in _of_id(places(self._reader), task_id):
                    return place
        raise NotFound("task", task_id, self._nowhere)

    def explain(self, task_id: str, looker: Stats) -> Explanation:
        """Return where a task is, and why it does not run; see ``TasksApi.explain``."""
        for task in self._parked(task_id):
            found = parked.explain(self._reader, task, looker)
            break
        else:
            found = explain(self._reader, self.find(task_id), looker)
        if found.state in ("running", "dead"):
            return found
        return found.model_copy(update={"not_enforcing": not_enforcing(living(self._reader))})

    def _parked(self, task_id: str) -> list[ParkedTask]:
        return [each for each in parked.parked(self._reader) if each.task_id == task_id]

    def purge(self, tenant: str) -> Purged:
        """Cancel what waits of a tenant; see ``TenantsApi.purge``."""
        name = tenant if isinstance(tenant, Reserved) else key_part(tenant)
        cancelled = 0
        for _ in range(LOOKS):
            for places in finding.waiting_of(self._reader, name, TOGETHER):
                cancelled += self._cancel(places)
        its = (each.tag for each in parked.parked(self._reader) if each.tenant == name)
        for tags in batches(its, TOGETHER):
            cancelled += self._limiter.unpark(tags, "cancelled")
        return Purged(tenant=tenant, cancelled=cancelled)

    def purge_queue(self, queue: str) -> int:
        """Cancel what is parked of a queue; returns how many tasks that was."""
        its = (each.tag for each in parked.parked(self._reader) if each.queue == queue)
        return sum(self._limiter.unpark(tags, "cancelled") for tags in batches(its, TOGETHER))

    def _cancel(self, places: Sequence[Place]) -> int:
        """Return how many of them still waited where they were read."""
        cancelled = 0
        for queue, some in groupby(places, key=attrgetter("queue")):
            records = [place.record for place in some]
            args = calls.cancel_args(queue, records, self._lease_ms)
            cancelled += sum(calls.read_cancel(self._run(calls.CANCEL, args)))
        return cancelled

    def dead_letters(self, queue: str | None) -> Iterator[DeadLetter]:
        """Yield the dead letters of a queue, or of all."""
        return map(finding.letter, finding.dead(self._reader, queue))

    def requeue(self, task_id: str) -> Requeued:
        """Let a dead letter wait again; see ``TasksApi.requeue``."""
        for _ in range(LOOKS):
            for place in _of_id(finding.dead(self._reader), task_id):
                unwritten = finding.outcome(self._reader, place)
                # Where it is gone by now it was requeued: by us, if the answer was lost.
                self._run(calls.REQUEUE, calls.requeue_args(place.queue, place.record, unwritten))
                return Requeued(task_id=task_id, queue=place.queue)
        raise NotFound(
            "task",
            task_id,
            "is no dead letter; they are listed by: celery -A APP fairness task dead",
        )

    def _run(self, verb: str, args: list[str]) -> list[int]:
        answer: list[int] = self._limiter.connection.run(verb, self._limiter.prefix, args)
        return answer


def _of_id(places: Iterable[Place], task_id: str) -> list[Place]:
    # To read a message takes longer than to see that the id is not in it: JSON escapes no letters.
    plain = _PLAIN.fullmatch(task_id)
    return [
        each for each in places if (not plain or task_id in each.record) and each.task_id == task_id
    ]
