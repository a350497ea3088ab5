"""What becomes of a task whose body says that it was too much.

Its limits' keys cool down for everybody, and a new message of it waits out that time: as a retry
does, but that none of the task's retries is spent.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.exceptions import Reject, Retry

from celery_fairness import registry
from celery_fairness.cooling import wait_after, wait_until
from celery_fairness.errors import HeaderInvalid, LimiterUnavailable, RateLimitExceeded, got
from celery_fairness.header import HEADER, parse_header
from celery_fairness.limits import readable_limits

#: What the keys begin with that cool down only where the error names them.
_NEVER = ("tenant:", "queue:")

logger = logging.getLogger("celery_fairness")


def answer(task: Any, error: RateLimitExceeded) -> Exception:
    """Return what the body's task raises in the place of ``error``.

    Where nothing is sent (a direct call, an eager one) it is the error itself.
    """
    request = task.request
    if request.called_directly or request.is_eager:
        return error
    wait = _wait(task, error)
    for key in _keys(request, error):
        _cool(task, key, wait, error)
    again = task.signature_from_request(request, countdown=wait, retries=request.retries)
    try:
        again.apply_async()
    except Exception as unsent:  # noqa: BLE001 - as Task.retry: whatever it is, nothing was sent
        return Reject(unsent, requeue=True)
    when: Any = wait
    return Retry(exc=error, when=when, sig=again)


def _wait(task: Any, error: RateLimitExceeded) -> float:
    if error.until is not None:
        return wait_until(error.until)
    if error.retry_after is not None:
        return wait_after(error.retry_after)
    return float(task.default_retry_delay)


def _keys(request: Any, error: RateLimitExceeded) -> list[str]:
    """Return what cools down: never the tenant's tier or the queue."""
    if error.key is not None:
        return [error.key]
    headers = request.headers or {}
    if HEADER not in headers:
        return []
    try:
        limits = parse_header(headers[HEADER]).limits
    except HeaderInvalid:
        # Those that can be read held all the same.
        limits = readable_limits(headers[HEADER])
    return [limit.key for limit in limits if not limit.key.startswith(_NEVER)]


def _cool(task: Any, key: str, wait: float, error: RateLimitExceeded) -> None:
    try:
        registry.wired(task.app).cool_down_for(key, wait, f"task {task.name}: {error}")
    except (LimiterUnavailable, ValueError) as problem:
        # The task waits alone.
        logger.warning("%s does not cool down: %s", got(key), problem)
