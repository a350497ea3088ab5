"""Handles a task whose body raises RateLimitExceeded.

The keys of its limits cool down for all tasks, and a new message of the task waits that time. It is
like a retry, but it costs none of the task's retries.

If the new message cannot be sent, a task with ``acks_late`` goes back to the broker, and so does
any task on ``fairredis://``. Otherwise the broker has no message any more, so the task fails with
the error of its body.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.exceptions import Ignore, OperationalError, Reject, Retry

from celery_fairness.config.queue_policy import queue_key
from celery_fairness.control.key.limits_api import LimitsApi
from celery_fairness.control.key.stops import Stops
from celery_fairness.errors import LimiterUnavailable, RateLimitExceeded, got
from celery_fairness.message.attribution import Attribution, attribution_of
from celery_fairness.message.headers import HEADER, headers_of
from celery_fairness.message.stamp import Message
from celery_fairness.util.log_fields import about
from celery_fairness.util.retry_after import wait_after, wait_until
from celery_fairness.wiring import wired
from celery_fairness.worker.attempt_limits import (
    lacks_declared_limits,
    queue_limits_of,
    queue_of,
    with_declared,
)

logger = logging.getLogger("celery_fairness")


class Unsent(Reject, Ignore):
    """The new message could not be sent, so the old one goes back to the broker.

    It is an ``Ignore`` because ``autoretry_for`` retries every other exception.
    """


def is_unsent(error: object) -> bool:
    """Return whether an attempt ended because the message of its retry could not be sent.

    If the broker does not answer, Celery's ``retry`` rejects the old message for ever.
    """
    if not isinstance(error, Reject):
        return False
    return isinstance(error, Unsent) or isinstance(error.args[0], OperationalError)


def after_rate_limit(task: Any, error: RateLimitExceeded) -> Exception:
    """Return the exception for Celery in place of ``error``.

    Direct and eager calls send no message, so they get ``error`` itself.
    """
    request = task.request
    if request.called_directly or request.is_eager:
        return error
    wait = _wait(task, error)
    _cool_down(task, wait, error)
    fairness, headers = wired(task.app), headers_of(request)
    try:
        if HEADER in headers:
            message = Message(task.name, task, headers, (), {})
            headers[HEADER] = fairness.stamp.header(message)
        fairness.resender.send_as_retry(request, wait, headers)
    except Exception as unsent:  # noqa: BLE001 - as in Task.retry: any error means that nothing was sent
        if task.acks_late or fairness.claims_fairly:
            return Unsent(unsent, requeue=True)
        error.add_note(f"The task could not be sent again: {unsent!r}")
        return error
    when: Any = wait
    return Retry(exc=error, when=when)


def _wait(task: Any, error: RateLimitExceeded) -> float:
    if error.until is not None:
        return wait_until(error.until)
    if error.retry_after is not None:
        return wait_after(error.retry_after)
    return wait_after(task.default_retry_delay)


def _cool_down(task: Any, wait: float, error: RateLimitExceeded) -> None:
    """Let the key of the error cool down, or else the keys of the task's policies."""
    fairness = wired(task.app)
    attribution = _attribution(fairness, task)
    policies = [limit.key for limit in attribution.limits]
    if error.key is not None:
        keys = [error.key]
    else:
        never = _tier_and_queue(task, attribution) if policies else ()
        keys = [key for key in policies if key not in never]
    for key in keys:
        try:
            reason = f"task {task.name}: {error}"
            if key in policies:
                # A key from a message is valid, and may begin like a tenant's.
                Stops(fairness.installation).cool_down(key, wait, reason)
            else:
                LimitsApi(fairness.installation).cool_down(key, for_seconds=wait, reason=reason)
        except (LimiterUnavailable, ValueError) as problem:
            # Only this task waits.
            logger.warning("%s does not cool down: %s", got(key), problem, extra=about(key=key))


def _attribution(fairness: Any, task: Any) -> Attribution:
    request = task.request
    headers = {**headers_of(request), "delivery_info": request.delivery_info}
    if not fairness.claims_fairly and lacks_declared_limits(task, headers):
        known = fairness.settings, fairness.tier_cache, fairness.notices
        headers = with_declared(*known, task, headers, request.args, request.kwargs)
    return attribution_of(headers, (), {}, None, fairness.settings)


def _tier_and_queue(task: Any, attribution: Attribution) -> set[str]:
    """Return the keys of the limits that a task has by its tenant and by its queue."""
    fairness, request = wired(task.app), task.request
    words, _ = queue_limits_of(fairness.settings, task, request, request.args, request.kwargs)
    queue_keys = {word.partition("|")[0] for word in words.split(",")}
    partition = attribution.partition[1] if attribution.partition else ""
    return {attribution.key, queue_key(queue_of(request)), partition, *queue_keys}
