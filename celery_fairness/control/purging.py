"""Cancels waiting tasks: by tag, all of a tenant, and the parked tasks of a queue.

Invariant: a worker stores the result *revoked* for every cancelled task.
"""

from __future__ import annotations

from collections.abc import Sequence

from celery_fairness.config.settings import Settings
from celery_fairness.config.tenants import key_part
from celery_fairness.control.find_task import PASSES, messages_of, read_route, waiting_tasks
from celery_fairness.control.scan import Reader
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.scheduler import calls
from celery_fairness.util.durations import milliseconds


def cancel_tasks(reader: Reader, settings: Settings, tags: Sequence[str]) -> int:
    """Cancel tasks if they still wait; return the number that did."""
    if not tags:
        return 0
    args = calls.cancel_args(tags, milliseconds(settings.lease_seconds))
    return sum(calls.read_done(reader.call(calls.CANCEL, args)))


def purge_tenant(limiter: RedisLimiter, settings: Settings, tenant: str) -> int:
    """Cancel the waiting tasks of a tenant; return their number."""
    reader = Reader(limiter)
    name = key_part(tenant)

    def may_be_its(key: str, _: str) -> bool:
        # A tenant's name may have a colon, like the key of one of its services.
        return f"{key}:".startswith(f"tenant:{name}:")

    cancelled = 0
    for _ in range(PASSES):
        for tasks in waiting_tasks(reader, may_be_its):
            tags = [task.tag for task in tasks if task.tenant == name]
            cancelled += cancel_tasks(reader, settings, tags)
    return cancelled


def purge_queue(limiter: RedisLimiter, settings: Settings, queue: str) -> int:
    """Cancel the parked tasks of a queue of the limiter's broker; return their number."""
    reader, cancelled = Reader(limiter), 0

    def is_parked(_: str, where: str) -> bool:
        return where == limiter.parked_queue

    for _ in range(PASSES):
        for tasks in waiting_tasks(reader, is_parked):
            messages = zip(tasks, messages_of(reader, [task.tag for task in tasks]), strict=True)
            tags = [task.tag for task, message in messages if read_route(message) == queue]
            cancelled += cancel_tasks(reader, settings, tags)
    return cancelled
