"""A limit that lets nothing start now, as the limiter in memory finds it."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from celery_fairness.config.limit_spec import NEVER, Limit
from celery_fairness.limiter.types import Reason
from celery_fairness.util.durations import Milliseconds, seconds


class Closed(NamedTuple):
    """Why and for how long.

    Attributes:
        limit: Which, as it is judged now.
        reason: What closes it.
        wait_ms: When it opens by itself.
        again_ms: How soon a task that is tried again may come.
    """

    limit: Limit
    reason: Reason
    wait_ms: float
    again_ms: float = 0.0

    @property
    def stopped(self) -> bool:
        """Whether people, or a 429, stopped it."""
        return self.reason in (Reason.PAUSED, Reason.COOLING_DOWN)


def longest(closed: Iterable[Closed]) -> float | None:
    """Return when all of them are open, in seconds; None where nobody knows."""
    wait_ms = max(each.wait_ms for each in closed)
    return None if wait_ms == NEVER else seconds(Milliseconds(ceil(wait_ms)))
