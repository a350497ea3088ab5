"""What the page of tasks shows: for each tenant its limit, and its tasks by state.

Invariant: tasks are counted from the ledger, not from Redis, so the page tells whether limits are
obeyed. The limit is the one in force in Redis, with what an operator set.

Weakness: a handful of queries for each tenant; made for a handful of tenants.
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
        limit: Tasks at once; None is unlimited. That of the database where ``why`` is so.
        why: What an operator set, or that the limit in force is unknown; "" of a tier's number.
        edit: Primary key of the row in the admin; None where the tenant has no row.
        wait_seconds: Waiting time of the finished tasks that are shown, on average.
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
        """The slots that are not in use, to be drawn; none where there is no limit."""
        return range(max(0, min(self.limit or 0, 30) - len(self.running)))


def overview(now: datetime, counts: LiveCounts) -> list[TenantOverview]:
    """Return every tenant that the database or the ledger knows.

    Args:
        now: The time, for tasks that run.
        counts: Those of the page.
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
