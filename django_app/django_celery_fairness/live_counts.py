"""How many tasks each tenant runs now, as Redis says it, for one page.

Invariant: a page never waits long for Redis: the first question that fails is the last one asked,
and no question is asked once the page's time is spent. What is not known is shown as unknown,
never as zero.

Weakness: the rows of one page are asked one after the other, so the first may be some milliseconds
older than the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from celery_fairness.errors import FairnessError
from celery_fairness.tenants import NO_SERVICE, tier_key
from django_celery_fairness import wiring

if TYPE_CHECKING:
    from django.http import HttpRequest

    from celery_fairness import Fairness
    from celery_fairness.decision import LimitState

#: How long the questions of one page may take together.
PAGE_SECONDS = 1.0

Answer = TypeVar("Answer")


class LiveCounts:
    """Asks Redis for one page, until it fails or takes too long.

    Attributes:
        problem: Why Redis was not asked further; None while all is well.
    """

    def __init__(self) -> None:
        self.problem: FairnessError | None = None
        self._fairness = wiring.wired()
        self._spent_seconds = 0.0
        self._refusals: dict[str, int] | None = None

    @classmethod
    def of_page(cls, request: HttpRequest) -> LiveCounts:
        """Return the counts of the page that answers ``request``."""
        counts = getattr(request, "fairness_live_counts", None)
        if not isinstance(counts, cls):
            counts = cls()
            request.fairness_live_counts = counts  # type: ignore[attr-defined]  # kept for this request
        return counts

    def tenant(self, tenant: str, tier: str) -> list[LimitState] | None:
        """Return what the tenant holds, or None where that is not known.

        Args:
            tenant: As tasks give it.
            tier: Its tier in the database, which spares asking the resolver for each row.

        Returns:
            One state; with ``tier_scope="service"`` one for each service of this project's tasks.
        """
        if self._fairness is None:
            return None
        return self._ask(partial(_states, self._fairness, tenant, tier)) or None

    def refusals(self) -> dict[str, int] | None:
        """Return how often each tier was refused, or None where that is not known."""
        if self._refusals is None and self._fairness is not None:
            self._refusals = self._ask(self._fairness.refusals)
        return self._refusals

    def _ask(self, question: Callable[[], Answer]) -> Answer | None:
        if self.problem is not None or self._spent_seconds > PAGE_SECONDS:
            return None
        started = time.monotonic()
        try:
            return question()
        except FairnessError as error:
            self.problem = error
            return None
        finally:
            self._spent_seconds += time.monotonic() - started


def _states(fairness: Fairness, tenant: str, tier: str) -> list[LimitState]:
    return [fairness.limiter.inspect(key, tenant, tier) for key in _keys(fairness, tenant)]


def _keys(fairness: Fairness, tenant: str) -> list[str]:
    if fairness.settings.tier_scope == "global":
        return [tier_key(tenant)]
    services = {getattr(task, "service", None) for task in fairness.app.tasks.values()}
    return [tier_key(tenant, name) for name in sorted({NO_SERVICE, *filter(None, services)})]
