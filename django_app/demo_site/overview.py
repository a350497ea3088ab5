"""The rows of the page of tasks: the limit of each tenant, and its tasks by state.

Invariant: tasks are counted from the ledger, not from Redis, so the page shows whether limits hold.
The limit is the one in force in Redis, with an operator's changes.

Weakness: it makes several queries for each tenant, so it suits a handful of tenants.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django_celery_fairness.admin import effective
from django_celery_fairness.live_counts import LiveCounts
from django_celery_fairness.models import TenantTier, Tier
from django_celery_fairness.wiring import default_tier

from demo_site.models import DemoTask

SHOWN = 6


@dataclass(frozen=True, slots=True)
class Line:
    """One task on the page."""

    name: str
    worker: str
    seconds: float


@dataclass(frozen=True, slots=True)
class TenantOverview:
    """One tenant on the page.

    Attributes:
        limit: Tasks at once. None is unlimited. The database's number, if the one in force is
            unknown.
        why: An operator's change, or that the limit in force is unknown. "" for a tier's number.
        edit: Primary key of the row in the admin, or None if the tenant has no row.
        wait_seconds: Mean waiting time of the finished tasks on the page.
    """

    tenant: str
    tier: str
    limit: int | None
    why: str
    edit: int | None
    waiting: int
    finished: int
    running: list[Line]
    latest: list[Line]
    wait_seconds: float | None

    @property
    def free(self) -> range:
        """The free slots, as a sequence for the template; empty without a limit."""
        return range(max(0, min(self.limit or 0, 30) - len(self.running)))


def overview(now: datetime, counts: LiveCounts) -> list[TenantOverview]:
    """Return every tenant in the database or the ledger.

    Args:
        now: The present time, for running tasks.
        counts: The live counts of the page.
    """
    rows = {row.tenant: row for row in TenantTier.objects.select_related("tier")}
    sent = DemoTask.objects.order_by().values_list("tenant", flat=True).distinct()
    fallback = Tier.objects.filter(name=default_tier()).first()
    return [
        _tenant(tenant, rows.get(tenant), fallback, now, counts)
        for tenant in sorted({*rows, *sent})
    ]


def _tenant(
    tenant: str, row: TenantTier | None, fallback: Tier | None, now: datetime, counts: LiveCounts
) -> TenantOverview:
    tier = row.tier if row else fallback
    limit = effective(row) if row else (tier.concurrency if tier else None)
    found = counts.tenant(tenant, tier.name if tier else "")
    why = "limit of the database: that in force is unknown"
    if found:
        in_force = found[0].in_force
        limit, why = in_force.limit, str(in_force) if in_force.reasons[1:] else ""
    tasks = DemoTask.objects.filter(tenant=tenant)
    started = tasks.exclude(started_at=None)
    ended = tasks.exclude(ended_at=None).order_by("-ended_at")
    latest = list(ended[:SHOWN])
    waits = [(task.started_at - task.sent_at).total_seconds() for task in latest if task.started_at]
    return TenantOverview(
        tenant=tenant,
        tier=tier.name if tier else "",
        limit=limit,
        why=why,
        edit=row.pk if row else None,
        waiting=tasks.filter(started_at=None).count(),
        finished=ended.count(),
        running=[_line(task, now) for task in started.filter(ended_at=None).order_by("started_at")],
        latest=[_line(task, task.ended_at or now) for task in latest],
        wait_seconds=sum(waits) / len(waits) if waits else None,
    )


def _line(task: DemoTask, until: datetime) -> Line:
    began = task.started_at or until
    return Line(task.name, task.worker.partition("@")[0], (until - began).total_seconds())
