"""The tier cache as stamps and routers use it. Its module is in a room above them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from celery_fairness.config.tiers import Tier


class TierLookup(Protocol):
    """Returns tiers. :class:`~celery_fairness.limiter.tier_cache.TierCache` implements it."""

    def tiers(self) -> Mapping[str, Tier]:
        """Return the tiers in force by name."""

    def tier_of(self, tenant: str, header: str | None = None) -> str:
        """Return the name of a tenant's tier. ``header`` is the tier in the message's header."""

    def look(self) -> None:
        """Read changes of tiers from Redis if the last look is older than a second."""
