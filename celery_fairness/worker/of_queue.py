"""The queue that an attempt came through, and its limits, at a gate."""

from __future__ import annotations

from typing import Any

from celery_fairness.config.queue_policy import queue_of_route
from celery_fairness.config.settings import Settings
from celery_fairness.errors import KeyMissing
from celery_fairness.message.partition import partition_of, queue_limits_text, unnamed_partition


def queue_of(request: dict[str, Any]) -> str:
    """Return the queue of an attempt, which its routing key names; "" where that is none."""
    route = (request.get("delivery_info") or {}).get("routing_key")
    return queue_of_route(route) if isinstance(route, str) else ""


def words_of_queue(
    settings: Settings, task: Any, request: dict[str, Any], args: Any, kwargs: Any
) -> tuple[str, str]:
    """Return the limits of an attempt's queue as the functions read them, "" where it has none.

    Behind them why its partition cannot be told, "" where it can: it is in that of nobody.

    Args:
        settings: Those that name the queue.
        task: Of the attempt.
        request: Its request, whose routing key is the queue.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
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
