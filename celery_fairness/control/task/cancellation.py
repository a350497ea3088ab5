"""Cancels waiting tasks: by tag, all of a tenant, and the parked tasks of a queue.

Invariant: a worker stores the result *revoked* for every cancelled task.
"""

from __future__ import annotations

from collections.abc import Sequence

from celery_fairness.config.tenants import key_part
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.reader import batches
from celery_fairness.control.task.search import TOGETHER, tasks_of, waiting_tasks
from celery_fairness.scheduler import calls


def cancel_tasks(installation: Installation, tags: Sequence[str]) -> int:
    """Cancel tasks if they still wait; return the number that did."""
    cancelled = 0
    for reader, its in installation.reader.by_tag(tags):
        for some in batches(its, TOGETHER):
            args = calls.cancel_args(some, installation.lease_ms)
            cancelled += sum(calls.read_done(reader.call(calls.CANCEL, args)))
    return cancelled


def purge_tenant(installation: Installation, tenant: str) -> int:
    """Cancel the waiting tasks of a tenant; return their number."""
    name = key_part(tenant)
    # A tenant's name may have a colon, like the key of one of its services.
    return sum(
        cancel_tasks(installation, [task.tag for task in tasks if task.tenant == name])
        for tasks in tasks_of(installation.reader, [f"tenant:{name}"])
    )


def purge_queue(installation: Installation, queue: str) -> int:
    """Cancel the parked tasks of a queue of the app's broker; return their number."""
    cancelled = 0

    def is_parked(_: str, where: str) -> bool:
        return where == installation.limiter.parked_queue

    for tasks in waiting_tasks(installation.reader, is_parked):
        tags = [task.tag for task in tasks if task.route == queue]
        cancelled += cancel_tasks(installation, tags)
    return cancelled
