"""What Redis has of each tenant now, for one page: limit in force, tasks that run and wait.

Invariant: a page never waits long for Redis: the first question that fails is the last one asked,
and no question is asked once the page's time is spent. What is not known is shown as unknown,
never as zero.

Weakness: the rows of one page are asked one after the other, so the first may be some milliseconds
older than the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from celery_fairness.config.tenants import NO_SERVICE
from celery_fairness.errors import FairnessError
from django_celery_fairness import wiring

if TYPE_CHECKING:
    from django.http import HttpRequest

    from celery_fairness.config.tiers import Tier
    from celery_fairness.control.views import TenantLimit
    from celery_fairness.wiring import Wiring

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
        self._parts = wiring.wired()
        self._spent_seconds = 0.0
        self._refusals: dict[str, int] | None = None
        self._tiers: Mapping[str, Tier] | None = None

    @classmethod
    def of_page(cls, request: HttpRequest) -> LiveCounts:
        """Return the counts of the page that answers ``request``."""
        counts = getattr(request, "fairness_live_counts", None)
        if not isinstance(counts, cls):
            counts = cls()
            request.fairness_live_counts = counts  # type: ignore[attr-defined]  # kept for this request
        return counts

    @property
    def all_wait_in_redis(self) -> bool:
        """Whether Redis has every task that waits; at a gate the broker has those not parked."""
        return self._parts is not None and self._parts.claims

    def tenant(self, tenant: str, tier: str) -> list[TenantLimit] | None:
        """Return the limit in force and what runs and waits, or None where that is not known.

        Args:
            tenant: As tasks give it.
            tier: Its tier in the database, which spares asking the resolver for each row.

        Returns:
            One; with ``tier_scope="service"`` one for each service of this project's tasks.
        """
        if self._parts is None:
            return None
        return self._ask(partial(_limits, self._parts, tenant, tier)) or None

    def tiers(self) -> Mapping[str, Tier] | None:
        """Return the published tiers by name, or None where they are not known."""
        if self._tiers is None and self._parts is not None:
            parts = self._parts
            found = self._ask(lambda: parts.limiter.published_tiers())
            self._tiers = None if found is None else found[1]
        return self._tiers

    def refusals(self) -> dict[str, int] | None:
        """Return how often each tier was refused, or None where that is not known."""
        if self._refusals is None and self._parts is not None:
            fairness = self._parts.fairness
            self._refusals = self._ask(lambda: dict(fairness.stats.rejections().tiers))
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


def _limits(parts: Wiring, tenant: str, tier: str) -> list[TenantLimit]:
    tenants = parts.fairness.tenants
    return [tenants.limit(tenant, tier, service) for service in _services(parts)]


def _services(parts: Wiring) -> list[str | None]:
    if parts.settings.tier_scope == "global":
        return [None]
    services = {getattr(task, "service", None) for task in parts.app.tasks.values()}
    return sorted({NO_SERVICE, *filter(None, services)})
