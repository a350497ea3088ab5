"""A throttle that lets a task start in a moment: it waits where it is, in its place of the pool.

The way back through Redis and the broker would take as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from celery_fairness.limiter.types import Reason, Rejected

Entered = TypeVar("Entered")

#: The longest moment.
SOON_SECONDS = 0.02
#: Others may be quicker, so often.
MOMENTS_AT_MOST = 3


def soon_seconds(refused: object) -> float:
    """Return how long a refused task waits where it is; 0: a throttle is not all that keeps it."""
    if not isinstance(refused, Rejected) or refused.action != "wait":
        return 0.0
    wait = (refused.retry_after_seconds or 0.0) if refused.reason is Reason.AT_THROTTLE else 0.0
    return wait if wait <= SOON_SECONDS else 0.0


def after_a_moment(enter: Callable[[], Entered]) -> Entered:
    """Return the answer of ``enter``, of a later one where a throttle opens in a moment."""
    outcome = enter()
    for _ in range(MOMENTS_AT_MOST):
        soon = soon_seconds(outcome)
        if not soon:
            break
        time.sleep(soon)
        outcome = enter()
    return outcome
