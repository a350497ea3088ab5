"""What becomes of a task whose body says that it was too much.

Its limits' keys cool down for everybody, and a new message of it waits out that time: as a retry
does, but that none of the task's retries is spent.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.exceptions import Ignore, Reject, Retry

from celery_fairness import wiring as registry
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.errors import LimiterUnavailable, RateLimitExceeded, got
from celery_fairness.message.attribution import Attribution, attribution_of
from celery_fairness.util.retry_after import wait_after, wait_until
from celery_fairness.worker.of_queue import queue_of, words_of_queue
from celery_fairness.worker.unsaid import says_too_little, with_declared

logger = logging.getLogger("celery_fairness")


class Unsent(Reject, Ignore):
    """The new message could not be sent: the old one goes back to the broker.

    What Celery does for ``autoretry_for`` lets an ``Ignore`` pass, and nothing else.
    """


def answer(task: Any, error: RateLimitExceeded) -> Exception:
    """Return what the body's task raises in the place of ``error``.

    Where nothing is sent (a direct call, an eager one) it is the error itself.
    """
    request = task.request
    if request.called_directly or request.is_eager:
        return error
    wait = _wait(task, error)
    _cool_down(task, wait, error)
    again = task.signature_from_request(request, countdown=wait, retries=request.retries)
    try:
        again.apply_async()
    except Exception as unsent:  # noqa: BLE001 - as Task.retry: whatever it is, nothing was sent
        return Unsent(unsent, requeue=True)
    when: Any = wait
    return Retry(exc=error, when=when, sig=again)


def _wait(task: Any, error: RateLimitExceeded) -> float:
    if error.until is not None:
        return wait_until(error.until)
    if error.retry_after is not None:
        return wait_after(error.retry_after)
    return wait_after(task.default_retry_delay)


def _cool_down(task: Any, wait: float, error: RateLimitExceeded) -> None:
    """Let the key that the error names cool down, else those of the task's policies."""
    fairness = registry.wired(task.app)
    charge = _charge(fairness, task)
    policies = [limit.key for limit in charge.limits]
    if error.key is not None:
        keys = [error.key]
    else:
        never = _tier_and_queue(task, charge) if policies else ()
        keys = [key for key in policies if key not in never]
    for key in keys:
        try:
            reason = f"task {task.name}: {error}"
            fairness.cool_down(key, wait, reason, policy=key in policies)
        except (LimiterUnavailable, ValueError) as problem:
            # The task waits alone.
            logger.warning("%s does not cool down: %s", got(key), problem)


def _charge(fairness: Any, task: Any) -> Attribution:
    """Return under which limits the attempt runs."""
    request = task.request
    headers = {**(request.headers or {}), "delivery_info": request.delivery_info}
    if not fairness.claims and says_too_little(task, headers):
        known = fairness.settings, fairness.directory, fairness.notices
        headers = with_declared(*known, task, headers, request.args, request.kwargs)
    return attribution_of(headers, (), {}, None, None, fairness.settings)


def _tier_and_queue(task: Any, charge: Attribution) -> set[str]:
    """Return the keys of the limits that a task has by its tenant and by its queue."""
    fairness, request = registry.wired(task.app), task.request
    words, _ = words_of_queue(fairness.settings, task, request, request.args, request.kwargs)
    of_queue = {word.partition("|")[0] for word in words.split(",")}
    partition = charge.partition[1] if charge.partition else ""
    return {charge.key, queue_key(queue_of(request)), partition, *of_queue}
