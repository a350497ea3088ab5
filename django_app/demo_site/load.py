"""The load of the site: one free tenant floods, the others send a few tasks.

Invariant: a tenant's row in the ledger is written before its task is sent, so none is missing.

Weakness: a site keeps sending until it is stopped. The ledger drops tasks ten minutes after they
ended.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from django_celery_fairness.models import TenantTier, Tier

from demo_site.models import DemoTask
from demo_site.tasks import analyze, render

KEPT = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class DemoTenant:
    """A tenant of the demo.

    Attributes:
        name: The tenant's id.
        tier: Its tier at the first set-up. Later the admin decides.
        waiting: Number of tasks that it keeps waiting or running.
    """

    name: str
    tier: str
    waiting: int


TENANTS = (
    DemoTenant("alice", "free", 30),
    DemoTenant("bob", "free", 2),
    DemoTenant("carol", "pro", 5),
    DemoTenant("dave", "enterprise", 6),
)


def create_tenants() -> None:
    """Give each tenant of the demo its tier, unless it already has one."""
    for tenant in TENANTS:
        tier = Tier.objects.filter(name=tenant.tier).first()
        if tier is not None:
            TenantTier.objects.get_or_create(tenant=tenant.name, defaults={"tier": tier})


def top_up() -> None:
    """Send the missing tasks of each tenant, and delete old ones from the ledger."""
    DemoTask.objects.filter(ended_at__lt=datetime.now(UTC) - KEPT).delete()
    for tenant in TENANTS:
        unfinished = DemoTask.objects.filter(tenant=tenant.name, ended_at=None).count()
        for _ in range(tenant.waiting - unfinished):
            send(tenant.name, random.choice(("analyze", "render")), random.uniform(0.5, 2.0))


def send(tenant: str, name: str, seconds: float) -> None:
    """Write one task to the ledger, and send it."""
    task = {"analyze": analyze, "render": render}[name]
    row = DemoTask.objects.create(
        task_id=uuid4(), tenant=tenant, name=name, sent_at=datetime.now(UTC)
    )
    task.apply_async(args=[seconds], kwargs={"user_id": tenant}, task_id=str(row.task_id))
