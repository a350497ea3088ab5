"""The queue of an attempt behind a gate, and the queue's limits."""

from __future__ import annotations

from typing import Any

from celery_fairness.config.queue_policy import queue_of_route
from celery_fairness.config.settings import Settings
from celery_fairness.errors import KeyMissing
from celery_fairness.message.partition import partition_of, queue_limits_text, unnamed_partition


def queue_of(request: dict[str, Any]) -> str:
    """Return an attempt's queue, from its routing key; "" without one."""
    route = (request.get("delivery_info") or {}).get("routing_key")
    return queue_of_route(route) if isinstance(route, str) else ""


def queue_limits_of(
    settings: Settings, task: Any, request: dict[str, Any], args: Any, kwargs: Any
) -> tuple[str, str]:
    """Return the limits of an attempt's queue as text for the library, "" without limits.

    The second value is the reason if the task has no partition key, otherwise "". Such a task gets
    the partition for tasks without a key.

    Args:
        settings: The settings with the queues.
        task: The attempt's task.
        request: The attempt's request, whose routing key names the queue.
        args: The task's positional arguments.
        kwargs: The task's keyword arguments.
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
