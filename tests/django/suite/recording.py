"""Records what is published, and passes it on.

Invariant: the real call is made after the record, so a test sees both.

Weakness: it sees this process only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_fairness import Fairness
from tests.support.parts import parts_of


class Publications:
    """What one ``Fairness`` published, in order."""

    def __init__(self, fairness: Fairness, monkeypatch: Any) -> None:
        self.tables: list[dict[str, int | None]] = []
        self.tenants: list[tuple[str, str | None]] = []
        #: Called before each publication of a table or tenant, for races.
        self.before_table: Callable[[], None] = lambda: None
        self.before_tenant: Callable[[str], None] = lambda _tenant: None
        publish_tiers, publish_tenant = (
            fairness.tenants.publish_tiers,
            parts_of(fairness).limiter.publish_tenant,
        )

        def record_table(tiers: Any, source: str = "database") -> Any:
            table = list(tiers)
            self.before_table()
            self.tables.append({tier.name: tier.concurrency for tier in table})
            assert source == "database"
            return publish_tiers(table, source=source)

        def record_tenant(tenant: str, tier: str | None, concurrency: Any, **more: Any) -> Any:
            self.before_tenant(tenant)
            self.tenants.append((tenant, tier))
            return publish_tenant(tenant, tier, concurrency, **more)

        monkeypatch.setattr(fairness.tenants, "publish_tiers", record_table)
        monkeypatch.setattr(parts_of(fairness).limiter, "publish_tenant", record_tenant)

    @property
    def nothing(self) -> bool:
        """Whether nothing was published."""
        return not self.tables and not self.tenants
