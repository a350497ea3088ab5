"""The limits of an attempt: of its queue, and those that its task declares and its message lacks.

A message lacks declared limits if its producer does not have the task. Behind a gate the worker
adds them, as the producer would have. On the dispatch path the worker sees the message only after
the claim, so it can only log that the limits did not apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery.app.task import Context

from celery_fairness.config.queue_policy import queue_of_route
from celery_fairness.config.settings import Settings
from celery_fairness.errors import KeyMissing
from celery_fairness.limiter.tier_cache import TierCache
from celery_fairness.message.headers import HEADER
from celery_fairness.message.limits import FIELD
from celery_fairness.message.partition import partition_of, queue_limits_text, unnamed_partition
from celery_fairness.message.stamp import Message, Stamp
from celery_fairness.message.task_options import source_of
from celery_fairness.util.log_fields import about
from celery_fairness.util.throttled_log import Notices


def queue_of(request: Mapping[str, Any] | Context) -> str:
    """Return an attempt's queue, from its routing key; "" without one."""
    route = (request.get("delivery_info") or {}).get("routing_key")
    return queue_of_route(route) if isinstance(route, str) else ""


def queue_limits_of(
    settings: Settings, task: Any, request: dict[str, Any], args: Any, kwargs: Any
) -> tuple[str, str]:
    """Return the limits of an attempt's queue as text for the library, "" without limits.

    The second value is the reason if the task has no partition key, otherwise "". Such a task gets
    the partition for tasks without a key.
    """
    queue = queue_of(request)
    if queue not in settings.queues:
        return "", ""
    policy = settings.queues[queue]
    key, problem = None, ""
    if policy.partitioned:
        try:
            key = partition_of(policy, queue, task.name, task.run, args, kwargs)
        except KeyMissing as error:
            key, problem = unnamed_partition(queue), str(error)
    return queue_limits_text(queue, key), problem


def lacks_declared_limits(task: Any, headers: Mapping[str, Any]) -> bool:
    """Return whether a message lacks its task's declared limits; an empty list is not a lack."""
    source = source_of(task)
    if source is None or not source.declares:
        return False
    given = headers.get(HEADER)
    return not (isinstance(given, Mapping) and isinstance(given.get(FIELD), (list, tuple)))


def with_declared(
    settings: Settings,
    tier_cache: TierCache,
    notices: Notices,
    task: Any,
    request: dict[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    """Return an attempt's request with the limits that its task declares."""
    if not lacks_declared_limits(task, request):
        return request
    stamp = Stamp(settings, tier_cache, notices)
    queue = queue_of(request) or None
    header = stamp.of_message(Message(task.name, task, request, args, kwargs), queue, None)
    return {**request, HEADER: header}


def log_undeclared_limits(notices: Notices, task: Any, headers: Mapping[str, Any]) -> None:
    """Log that a claimed task came without the limits that it declares."""
    if lacks_declared_limits(task, headers):
        notices.warning(
            f"undeclared:{task.name}",
            "task %s[%s] was claimed without the limits that it declares: its producer does not "
            "have them, so they do not apply to it; send them in the header, as "
            "docs/reference/message-headers.md shows",
            task.name,
            headers.get("id"),
            extra=about(task_name=task.name, task_id=headers.get("id")),
        )
