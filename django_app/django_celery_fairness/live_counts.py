"""Reads from Redis for one page: limits in force, running and waiting tasks of each row.

Invariant: a page never waits long for Redis. After the first call that fails, and after the page's
time is spent, there is no further call. An unknown number is shown as unknown, never as zero.

Weakness: each row of a page has a call of its own, so the first row may be some milliseconds older
than the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from celery_fairness.config.tenants import NO_SERVICE
from celery_fairness.errors import FairnessError, NotFound, TenantInvalid
from django_celery_fairness import wiring

if TYPE_CHECKING:
    from django.http import HttpRequest

    from celery_fairness.config.queue_limits import QueueRow
    from celery_fairness.config.tiers import Tier
    from celery_fairness.control.key.limits_api import LimitsApi
    from celery_fairness.control.key.views import Inspection
    from celery_fairness.wiring import Parts

#: Longest time of all calls for one page, in seconds.
PAGE_SECONDS = 1.0

Answer = TypeVar("Answer")


class LiveCounts:
    """Calls Redis for one page, until a call fails or they take too long.

    Attributes:
        problem: Why there is no further call, or None without a problem.
    """

    def __init__(self) -> None:
        self.problem: FairnessError | None = None
        self._parts = wiring.wired()
        self._spent_seconds = 0.0
        self._rejections: dict[str, int] | None = None
        self._tiers: Mapping[str, Tier] | None = None
        self._queues: Mapping[str, QueueRow] | None = None

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
        """Whether all waiting tasks are in Redis. With a gate only parked tasks are."""
        return self._parts is not None and self._parts.claims_fairly

    @property
    def are_complete(self) -> bool:
        """Whether all calls so far were made and answered."""
        in_time = self._spent_seconds <= PAGE_SECONDS
        return self._parts is not None and self.problem is None and in_time

    def tenant(self, tenant: str, tier: str) -> list[Inspection] | None:
        """Return a tenant's limit in force with its running and waiting tasks; None if unknown.

        Args:
            tenant: The tenant's id.
            tier: Its tier in the database, which saves a call of the resolver for each row.

        Returns:
            One summary, or with ``tier_scope="service"`` one for each service of this project.
        """
        if self._parts is None:
            return None
        return self._ask(partial(_limits, self._parts, tenant, tier)) or None

    def tiers(self) -> Mapping[str, Tier] | None:
        """Return the published tiers by name; None if unknown."""
        if self._tiers is None and self._parts is not None:
            parts = self._parts
            found = self._ask(lambda: parts.limiter.published_tiers())
            self._tiers = None if found is None else found[1]
        return self._tiers

    def queues(self) -> Mapping[str, QueueRow] | None:
        """Return the limits of queues in Redis by name; None if unknown."""
        if self._queues is None and self._parts is not None:
            parts = self._parts
            self._queues = self._ask(lambda: parts.limiter.queue_rows())
        return self._queues

    def key(self, key: str) -> Inspection | None:
        """Return the state of a key that a person has written; None if unknown."""
        if self._parts is None:
            return None
        limits = self._parts.fairness.limits
        return self._ask(partial(_inspect, limits, key))

    def rejections(self) -> dict[str, int] | None:
        """Return the rejections of each tier; None if unknown."""
        if self._rejections is None and self._parts is not None:
            fairness = self._parts.fairness
            self._rejections = self._ask(lambda: dict(fairness.stats.rejections().tiers))
        return self._rejections

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


def services_in_force() -> tuple[str | None, ...]:
    """Return the services of this project that count apart, or one None if none does."""
    parts = wiring.wired()
    return (None,) if parts is None else tuple(_services(parts))


def _inspect(limits: LimitsApi, key: str) -> Inspection | None:
    try:
        return limits.inspect(key)
    except (NotFound, TenantInvalid, ValueError):
        # Nothing is known of the key yet, or it has no valid form.
        return None


def _limits(parts: Parts, tenant: str, tier: str) -> list[Inspection]:
    tenants = parts.fairness.tenants
    return [tenants.limit(tenant, tier, service) for service in _services(parts)]


def _services(parts: Parts) -> list[str | None]:
    if parts.settings.tier_scope == "global":
        return [None]
    services = {getattr(task, "service", None) for task in parts.app.tasks.values()}
    return sorted({NO_SERVICE, *filter(None, services)})
