"""Limits that a task declares and its message does not say, because its producer does not know it.

Behind a gate the worker makes them, as the producer would have. On the dispatch path it is too late
when a worker sees the message: it was claimed without them, and the worker says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery_fairness.config.settings import Settings
from celery_fairness.limiter.tier_cache import TierCache
from celery_fairness.message.headers import HEADER
from celery_fairness.message.limits import FIELD
from celery_fairness.message.stamp import Stamp
from celery_fairness.message.task_options import source_of
from celery_fairness.util.throttled_log import Notices
from celery_fairness.worker.of_queue import queue_of


def says_too_little(task: Any, headers: Mapping[str, Any]) -> bool:
    """Say whether a message lacks the limits that its task declares; an empty list is a word."""
    source = source_of(task)
    if source is None or not source.declares:
        return False
    given = headers.get(HEADER)
    return not (isinstance(given, Mapping) and isinstance(given.get(FIELD), (list, tuple)))


def with_declared(
    settings: Settings,
    directory: TierCache,
    notices: Notices,
    task: Any,
    request: dict[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the request of an attempt behind a gate with the limits that its task declares."""
    if not says_too_little(task, request):
        return request
    stamp = Stamp(settings, directory, notices)
    queue = queue_of(request) or None
    header = stamp.of_message(task.name, task, request, args, kwargs, None, queue, None)
    return {**request, HEADER: header}


def tell_of_unsaid(notices: Notices, task: Any, headers: Mapping[str, Any]) -> None:
    """Log that a claimed task came without the limits that it declares."""
    if says_too_little(task, headers):
        notices.warning(
            f"unsaid:{task.name}",
            "task %s[%s] was claimed without the limits that it declares: its producer does not "
            "know them, and they do not hold for it; send them in the header, as "
            "docs/reference/message-headers.md says",
            task.name,
            headers.get("id"),
        )
