"""How long to wait after an answer such as HTTP 429.

An invalid time is replaced by one between a second and a day from now, with a warning. A task that
reports a 429 must not fail because of the form in which it reports it.
"""

from __future__ import annotations

import logging
import math
import time
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from celery_fairness.errors import got

logger = logging.getLogger("celery_fairness")

#: Bounds of a cool-down, in seconds.
LEAST_SECONDS, MOST_SECONDS = 1.0, 86_400.0


def wait_until(until: Any, now: float | None = None) -> float:
    """Return the seconds until a time, within the bounds.

    Args:
        until: A datetime with a time zone, or Unix seconds.
        now: The time now, in Unix seconds; None is that of this process.
    """
    now = time.time() if now is None else now
    if isinstance(until, datetime):
        if until.tzinfo is None:
            return _replaced(until, "a datetime with a time zone", LEAST_SECONDS)
        wait = until.timestamp() - now
    elif isinstance(until, (int, float)) and not isinstance(until, bool):
        wait = _number(until) - now
    else:
        return _replaced(until, "a datetime with a time zone or Unix seconds", LEAST_SECONDS)
    return _within_bounds(until, wait)


def wait_after(retry_after: Any) -> float:
    """Return the wait in seconds, within the bounds.

    Args:
        retry_after: Seconds, or text as in the header ``Retry-After`` (seconds or an HTTP date).
    """
    if isinstance(retry_after, str):
        try:
            retry_after = float(retry_after)
        except ValueError:
            try:
                return wait_until(parsedate_to_datetime(retry_after))
            except (ValueError, OverflowError):
                return _replaced(retry_after, "seconds or an HTTP date", LEAST_SECONDS)
    if isinstance(retry_after, bool) or not isinstance(retry_after, (int, float)):
        return _replaced(retry_after, "seconds or an HTTP date", LEAST_SECONDS)
    return _within_bounds(retry_after, _number(retry_after))


def _number(given: float) -> float:
    try:
        return float(given)
    except OverflowError:
        return math.copysign(math.inf, given > 0 or -1)


def _within_bounds(given: Any, wait: float) -> float:
    if math.isnan(wait) or wait < LEAST_SECONDS:
        return _replaced(given, "a second from now or later", LEAST_SECONDS)
    return _replaced(given, "a day from now at most", MOST_SECONDS) if wait > MOST_SECONDS else wait


def _replaced(given: Any, expected: str, wait: float) -> float:
    shown = given if isinstance(given, datetime) else got(given)
    logger.warning("invalid cool-down: expected %s, got: %s; %.0f s is used", expected, shown, wait)
    return wait
