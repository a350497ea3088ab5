"""The tenants for which the tier resolver failed, as every process reports them to Redis."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from celery_fairness.control.installation.reader import Reader
from celery_fairness.control.tenant.views import UnresolvedTenant
from celery_fairness.util.timestamps import at_ms

#: A failure is shown as trouble for this long.
LATELY = timedelta(minutes=15)


def unresolved(reader: Reader) -> tuple[UnresolvedTenant, ...]:
    """Return these tenants, the newest failure first."""
    rows = reader.read("HGET", reader.keys.clock, "unresolved") or ""
    fields = (row.split("~") for row in rows.split())
    return tuple(
        UnresolvedTenant(key, int(failures), at_ms(int(last_ms)), error)
        for key, last_ms, failures, error in fields
    )


def lately(rows: Sequence[UnresolvedTenant], now: datetime) -> tuple[UnresolvedTenant, ...]:
    """Return the rows of the last 15 minutes."""
    return tuple(each for each in rows if now - each.last_at <= LATELY)
