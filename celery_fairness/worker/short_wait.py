"""Lets a task wait in its pool slot if a throttle admits it within a few milliseconds.

The way back through Redis and the broker would take as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from celery_fairness.limiter.types import Reason, Rejected

Entered = TypeVar("Entered")

#: The longest wait in a pool slot, in seconds.
SHORT_WAIT_SECONDS = 0.02
#: How often a task waits again after another task took the start.
SHORT_WAITS_AT_MOST = 3


def short_wait_seconds(rejected: object) -> float:
    """Return how long a rejected task waits in its slot; 0 if anything but a throttle blocks it."""
    if not isinstance(rejected, Rejected) or rejected.action != "wait":
        return 0.0
    wait = (rejected.retry_after_seconds or 0.0) if rejected.reason is Reason.AT_THROTTLE else 0.0
    return wait if wait <= SHORT_WAIT_SECONDS else 0.0


def after_short_waits(enter: Callable[[], Entered]) -> Entered:
    """Call ``enter``, and again after each short wait; return its last answer."""
    outcome = enter()
    for _ in range(SHORT_WAITS_AT_MOST):
        soon = short_wait_seconds(outcome)
        if not soon:
            break
        time.sleep(soon)
        outcome = enter()
    return outcome
