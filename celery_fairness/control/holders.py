"""Finds the tasks that hold the leases of a gate.

Usually the id of such a lease contains the task's id. If the task's id has an unusual form, the
lease's id can only confirm a candidate. The name of a task is known if a limit rejected the task
before it started, because an event then has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from celery_fairness.control.events import fields_of
from celery_fairness.control.scan import Reader
from celery_fairness.limiter.types import HeldLease, Job
from celery_fairness.util.ids import is_lease_of

#: Number of the newest events that are read.
EVENTS_AT_MOST = 1000


def with_jobs(
    reader: Reader, leases: tuple[HeldLease, ...], callers: Iterable[str] = ()
) -> tuple[HeldLease, ...]:
    """Return leases with the tasks that hold them, if those can be found.

    Args:
        reader: The reader of the installation.
        leases: Leases of a key.
        callers: Ids of tasks that may hold one of them.
    """
    if all(each.task for each in leases):
        return leases
    jobs = {each: Job(each, "", "") for each in callers} | dict(_started(reader))
    return tuple(each if each.task else _named(each, jobs.values()) for each in leases)


def _named(lease: HeldLease, jobs: Iterable[Job]) -> HeldLease:
    for job in jobs:
        if is_lease_of(lease.id, job.id):
            return replace(lease, task_id=job.id, task=job.type, queue=job.queue)
    return lease


def _started(reader: Reader) -> Iterator[tuple[str, Job]]:
    """Yield tasks that were rejected and have started since, by their ids."""
    events = reader.read("XREVRANGE", reader.keys.events, "+", "-", "COUNT", EVENTS_AT_MOST)
    for _, flat in events:
        fields = fields_of(flat)
        if fields.get("type") == "rate_limit.released":
            job = Job(*(fields.get(name, "") for name in ("job_id", "job_type", "queue")))
            yield job.id, job
