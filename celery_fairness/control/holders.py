"""Which tasks hold the leases of a gate, as far as Redis knows.

The id of such a lease names the task, unless that has an id of an unusual form; then it says of a
task that is named whether it is that one's. What a task is, is
known of those that were refused before they started, as the last events say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from celery_fairness.control.events import fields_of
from celery_fairness.control.scan import Reader
from celery_fairness.limiter.types import HeldLease, Job
from celery_fairness.util.ids import is_lease_of

#: The last events that are asked.
EVENTS_AT_MOST = 1000


def with_jobs(
    reader: Reader, leases: tuple[HeldLease, ...], callers: Iterable[str] = ()
) -> tuple[HeldLease, ...]:
    """Return leases of which nothing is known with the tasks that hold them.

    Args:
        reader: Of the installation.
        leases: Those of a key.
        callers: Ids of tasks that may be among them.
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
    """Yield tasks that were refused and have started since, by their ids."""
    events = reader.read("XREVRANGE", reader.keys.events, "+", "-", "COUNT", EVENTS_AT_MOST)
    for _, flat in events:
        told = fields_of(flat)
        if told.get("type") == "rate_limit.released":
            job = Job(*(told.get(name, "") for name in ("job_id", "job_type", "queue")))
            yield job.id, job
