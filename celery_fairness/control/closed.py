"""What must be true of a tenant that was found at its limit: it has no room, or is judged anew.

Whoever ends a lease that counts judges its tenant in the same function, and claims judge all that
were closed before the last news. What ends by itself is a lease of the gate, or the record of a
tenant's tier: for these a closed tenant has a time in ``ends``.

Weakness: the numbers of a tier that nobody has published are those of the settings of who asks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from celery_fairness.control.keys import Keys
from celery_fairness.control.scan import Command
from celery_fairness.control.views import Finding
from celery_fairness.scheduler.overrides import UNCHANGED
from celery_fairness.scheduler.types import Rules


@dataclass(frozen=True, slots=True)
class ClosedTenant:
    """A closed tenant has as many leases as it may hold, unless something will judge it anew.

    Attributes:
        key: Who is charged.
        tenant: As its account said just now.
        rules: Its default tier, and the limit of that, are asked for.
    """

    key: str
    tenant: str
    rules: Rules

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("HMGET", keys.of("account", self.key), "tier", "tenant", "closed"),
            ("ZSCORE", keys.closed, self.key),
            ("ZSCORE", keys.ends, f" {self.key}"),
            ("HGET", keys.news, "version"),
            ("HGETALL", keys.tiers),
            ("HMGET", keys.of("tenant", self.tenant), "tier", "concurrency"),
            # Others end by themselves, and while there is one there is a time.
            ("ZCOUNT", keys.of("leases", self.key), "+inf", "+inf"),
            *(("SISMEMBER", keys.paused, key) for key in self._names),
            *(("ZSCORE", keys.paused_until, key) for key in self._names),
            ("HGET", keys.overrides, self.key),
        ]

    @property
    def _names(self) -> tuple[str, str]:
        return self.key, f"tenant:{self.tenant}"

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        (tier, tenant, closed), judged, due, version, tiers, record, leases, *said = answers
        if closed is None or judged is None or due is not None or tenant != self.tenant:
            return
        judged_by = int(version or 0) + 1
        if -judged_by < float(judged) < judged_by:
            return
        *pauses, override = said
        if any(pauses):
            return
        limit = self._limit(tier or "", tiers, record)
        number = override.partition("|")[0] if override else UNCHANGED
        if number != UNCHANGED:
            # Where it has ended, the next claim judges the tenant anew.
            limit = int(number) if number else None
        if limit is None or leases < limit:
            room = "of no limit" if limit is None else f"of {limit}"
            expected = "no room, or a time in ends"
            yield Finding("a closed tenant opens", self.key, expected, f"{leases} leases {room}")

    def _limit(self, tier: str, tiers: dict[str, str], record: list[str | None]) -> int | None:
        published, number = record
        if published and number:
            return None if number == "unlimited" else int(number)
        row = tiers.get(published or tier) or tiers.get(self.rules.default_tier)
        limit: int | None = json.loads(row)["concurrency"] if row else self.rules.default_limit
        return limit
