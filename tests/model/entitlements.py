"""What each tenant may hold at once, and the news of it.

News win over what the producer knew: a tenant's record over the tier that came with its tasks, the
published tier table over a worker's settings, the default tier over an unknown one.

Invariant: the version grows with every change and with nothing else, so a judgement that names the
version it was made by is known to be out of date.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from celery_fairness.config.tiers import Tier
from celery_fairness.scheduler.types import Bounds, Rules


@dataclass(frozen=True, slots=True)
class Entitlement:
    """What a tenant is entitled to.

    Attributes:
        tier: Whose numbers they are, unless the tenant has one of its own.
        limit: Tasks at once; None is unlimited, 0 pauses.
        weight: Its share among waiting tenants.
    """

    tier: str
    limit: int | None
    weight: float


class Entitlements:
    """The published tier table and tenant records.

    Attributes:
        version: Of the news.
        tiers: By name.
        tenants: By tenant as written in keys: its tier, and a number of its own ("" is the tier's,
            or an integer, or "unlimited").
    """

    def __init__(self) -> None:
        self.version = 0
        self.tiers: dict[str, Tier] = {}
        self.tenants: dict[str, tuple[str, str]] = {}

    def publish_tiers(self, tiers: Iterable[Tier]) -> int:
        """Replace the table and return the version, which the same table does not raise."""
        table = {tier.name: tier for tier in tiers}
        if table != self.tiers:
            self.tiers = table
            self.version += 1
        return self.version

    def publish_tenant(self, tenant: str, tier: str, concurrency: str = "") -> int:
        """Note a tenant's tier ("" forgets it) and number, and return the version."""
        before = self.tenants.pop(tenant, ("", ""))
        after = (tier, concurrency if tier else "")
        if tier:
            self.tenants[tenant] = after
        if after != before:
            self.version += 1
        return self.version

    def of(self, tenant: str, tier: str, rules: Rules) -> Entitlement:
        """Return what ``tenant`` may hold, where its tasks say ``tier``."""
        published, number = self.tenants.get(tenant, ("", ""))
        name = published or tier
        if name not in self.tiers:
            name = rules.default_tier
        row = self.tiers.get(name)
        limit = row.concurrency if row else rules.default_limit
        if number:
            limit = None if number == "unlimited" else int(number)
        return Entitlement(name, limit, row.weight if row else 1.0)

    def most_waiting(self, tenant: str, tier: str, bounds: Bounds) -> int | None:
        """Return how many tasks of ``tenant`` may wait, where the put says ``tier``.

        Where nothing is published it is what the producer's settings say.
        """
        if not self.tiers:
            return bounds.of_tier
        published, _ = self.tenants.get(tenant, ("", ""))
        row = self.tiers.get(published or tier) or self.tiers.get(bounds.default_tier)
        return row.max_waiting if row else None
