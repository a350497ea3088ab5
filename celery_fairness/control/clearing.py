"""Finds a task by its id, and explains, cancels or requeues it.

It also cancels the waiting tasks of a tenant, and the parked tasks of a queue.

Invariant: a worker stores the result *revoked* for every cancelled task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from celery_fairness.config.tenants import Reserved, key_part
from celery_fairness.control import find_task as finding
from celery_fairness.control import parked
from celery_fairness.control.explain import explain
from celery_fairness.control.find_task import TOGETHER, Place
from celery_fairness.control.inspect import Inspector
from celery_fairness.control.parked import ParkedTask
from celery_fairness.control.scan import Reader, batches
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

#: Number of passes. A task that changed its place during the first pass is found in the second.
PASSES = 2

_NOWHERE = (
    "neither waits nor runs: it has ended, is of another app, has no id in the headers of its "
    "message, or no worker has taken it over from redis:// yet"
)
_NOT_PARKED = (
    "is not parked in Redis: it may be on its broker, in its queue or until its snooze ends, or it "
    "runs, or has ended; to find out: celery -A APP inspect query_task ID, and the workers' "
    "logs; to cancel it where it is: celery -A APP control revoke ID"
)
#: The states that are shown, the most telling of several first.
_STATES = ("later", "waiting", "running", "dead")


class Clearing:
    """Finds, explains, cancels and requeues tasks of one installation.

    Args:
        limiter: The limiter of the installation.
        lease_ms: Time after which a lease without a renewal ends.
        claims: Whether the broker claims fairly. If not, only parked tasks are in Redis.
    """

    def __init__(self, limiter: RedisLimiter, lease_ms: Milliseconds, *, claims: bool) -> None:
        self._limiter = limiter
        self._lease_ms = lease_ms
        self._nowhere = _NOWHERE if claims else _NOT_PARKED
        self._reader = Reader(limiter)

    def cancel(self, task_id: str) -> Cancelled:
        """Cancel a task that waits; see ``TasksApi.cancel``."""
        for _ in range(PASSES):
            for task in self._parked(task_id):
                if self._limiter.unpark([task.tag], "cancelled"):
                    return Cancelled(task_id=task_id, state="cancelled", queue=task.queue)
            found = [x for x in finding.find(self._reader, task_id) if x.state != "ended"]
            cancelled = self._cancel([place.task.tag for place in found])
            # Several messages may have one id: a retry has the id of the first attempt.
            for place in found:
                if place.state == "running":
                    return Cancelled(
                        task_id=task_id, state="running", queue=place.queue, owner=place.owner
                    )
            if cancelled:
                return Cancelled(task_id=task_id, state="cancelled", queue=found[0].queue)
        raise NotFound("task", task_id, self._nowhere)

    def find(self, task_id: str) -> Place:
        """Return the place of a task. If its id has several, the first that waits or runs.

        Raises:
            NotFound: No task has this id.
        """
        for _ in range(PASSES):
            found = [x for x in finding.find(self._reader, task_id) if x.state in _STATES]
            if found:
                return min(found, key=lambda place: _STATES.index(place.state))
        raise NotFound("task", task_id, self._nowhere)

    def explain(self, task_id: str, inspector: Inspector) -> Explanation:
        """Return the place of a task, and why it does not start; see ``TasksApi.explain``."""
        for task in self._parked(task_id):
            found = parked.explain(self._reader, task, inspector)
            break
        else:
            found = explain(self._limiter, self._reader, self.find(task_id), inspector)
        if found.state in ("running", "dead"):
            return found
        return found.model_copy(update={"not_enforcing": not_enforcing(living(self._reader))})

    def _parked(self, task_id: str) -> list[ParkedTask]:
        return [each for each in parked.parked(self._reader) if each.task_id == task_id]

    def purge(self, tenant: str) -> Purged:
        """Cancel the waiting tasks of a tenant; see ``TenantsApi.purge``."""
        name = tenant if isinstance(tenant, Reserved) else key_part(tenant)

        def may_be_its(key: str, _: str) -> bool:
            # A tenant's name may have a colon, like the key of one of its services.
            return f"{key}:".startswith(f"tenant:{name}:")

        cancelled = 0
        for _ in range(PASSES):
            for tasks in finding.waiting_tasks(self._reader, may_be_its):
                cancelled += self._cancel([task.tag for task in tasks if task.tenant == name])
        its = (each.tag for each in parked.parked(self._reader) if each.tenant == name)
        for tags in batches(its, TOGETHER):
            cancelled += self._limiter.unpark(tags, "cancelled")
        return Purged(tenant=tenant, cancelled=cancelled)

    def purge_queue(self, queue: str) -> int:
        """Cancel the parked tasks of a queue; return their number."""
        its = (each.tag for each in parked.parked(self._reader) if each.queue == queue)
        return sum(self._limiter.unpark(tags, "cancelled") for tags in batches(its, TOGETHER))

    def _cancel(self, tags: Sequence[str]) -> int:
        """Cancel tasks if they still wait; return the number that did."""
        args = calls.cancel_args(tags, self._lease_ms)
        return sum(calls.read_cancel(self._run(calls.CANCEL, args))) if tags else 0

    def dead_letters(self, queue: str | None) -> Iterator[DeadLetter]:
        """Yield the dead letters of a queue, or of all queues."""
        return map(finding.letter, finding.dead(self._reader, queue))

    def requeue(self, task_id: str) -> Requeued:
        """Let a dead letter wait again; see ``TasksApi.requeue``."""
        for _ in range(PASSES):
            for place in finding.find(self._reader, task_id):
                if place.state == "dead":
                    # If it is gone, it was requeued: by this call, if Redis repeats a lost answer.
                    self._run(calls.REQUEUE, [place.task.tag])
                    return Requeued(task_id=task_id, queue=place.queue)
        raise NotFound(
            "task",
            task_id,
            "is no dead letter; they are listed by: celery -A APP fairness task dead",
        )

    def _run(self, verb: str, args: list[str]) -> Any:
        return self._reader.call(verb, args)
