"""The values about tenants and tiers that methods of ``Fairness`` return."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_fairness.util.value import Value


@dataclass(frozen=True, slots=True)
class UnresolvedTenant:
    """A tenant for which the tier resolver failed in some process, so that the default tier held.

    Attributes:
        key: Key of its tier limit.
        failures: How often it failed, while the row was kept.
        last_at: When it failed last, by the server's clock.
        error: The type of the last error. ``UnknownTier`` is a tier that is not in the table.
    """

    key: str
    failures: int
    last_at: datetime
    error: str


@dataclass(frozen=True, slots=True)
class TierStatus:
    """One tier in force.

    Attributes:
        tier: Its name.
        concurrency: Tasks of one tenant at once. None is unlimited.
        weight: Its weight.
        queue_class: The class of queue that its tasks take.
        rejected: How often it has rejected a task or a tenant.
        max_waiting: Waiting tasks of one tenant at most. None is unlimited.
        rate: Starts of one tenant in any window of a period, as ``{"limit": 100, "period":
            "PT1H"}``. None is any number.
        throttle: Starts of one tenant in a period, evenly spaced, likewise.
        burst: Tasks of one tenant at once while a claim finds nothing else. None is no burst.
    """

    tier: str
    concurrency: int | None
    weight: float
    queue_class: str
    rejected: int
    max_waiting: int | None
    rate: dict[str, Any] | None = None
    throttle: dict[str, Any] | None = None
    burst: int | None = None


class PublishedTier(Value):
    """The published tier of a tenant.

    Attributes:
        tenant: The tenant.
        tier: Name of its tier, or None if the publication was cleared.
        until: Time when the tier ends, or None if it holds until somebody changes it.
    """

    tenant: str
    tier: str | None
    until: datetime | None


class Purged(Value):
    """The number of a tenant's waiting tasks that were cancelled."""

    tenant: str
    cancelled: int
