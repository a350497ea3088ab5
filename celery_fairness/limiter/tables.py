"""The tier tables of the limiter in memory: the rules of ``lua/includes/entitlement.lua``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from celery_fairness.config.settings import Settings
from celery_fairness.config.tiers import Tier
from celery_fairness.limiter.types import SlotRequest


@dataclass(slots=True)
class Tables:
    """What was published.

    Attributes:
        settings: Where nothing was: the tiers as this process knows them.
        source: Of the tier table; "" where there is none.
        tiers: By name.
        tenants: Tier and concurrency of those that have a record.
        version: Grows with each publication.
    """

    settings: Settings
    source: str = ""
    tiers: Mapping[str, Tier] = field(default_factory=dict)
    tenants: dict[str, tuple[str, int | str | None]] = field(default_factory=dict)
    version: int = 0

    def publish(self, table: Mapping[str, Tier], source: str, *, force: bool) -> bool:
        """Put a whole table in force; return whether it is."""
        if not force and self.source == "database":
            return False
        if (self.source, self.tiers) != (source, table):
            self.source, self.tiers = source, table
            self.version += 1
        return True

    def publish_tenant(self, tenant: str, tier: str | None, concurrency: int | str | None) -> None:
        """Publish one tenant's tier and number; a tier of None forgets it."""
        before = self.tenants.pop(tenant, None)
        if tier:
            self.tenants[tenant] = (tier, concurrency)
        self.version += before != self.tenants.get(tenant)

    def entitlement(self, tenant: str, tier: str) -> tuple[str, int | None]:
        """Return the tier and the concurrency of a tenant now."""
        record = self.tenants.get(tenant)
        default, own = self.settings.default_tier, self.settings.tiers
        wanted = record[0] if record else tier
        if wanted in self.tiers:
            judged = self.tiers[wanted]
        elif default in self.tiers:
            judged = self.tiers[default]
        else:
            judged = own[tier] if wanted == tier and tier in own else own[default]
        if record is None or record[1] == "":
            return judged.name, judged.concurrency
        return judged.name, None if record[1] is None else int(record[1])

    def weight(self, request: SlotRequest) -> float:
        """Return the weight of a task's tenant now; 1 where the table does not know its tier."""
        tier = self.entitlement(request.tenant, request.tier)[0] if request.tenant else ""
        return float(self.tiers[tier].weight) if tier in self.tiers else 1.0
