"""The load of the site: something happens on every page of the admin.

====== ============ =========================================================================
tenant tier         what it does
====== ============ =========================================================================
alice  free         floods: 40 tasks at once, and the same again when they have ended
bob    free         renders documents, and calls the payment API
carol  pro          makes reports, each a chord, has delayed tasks, and a boost for an hour
dave   enterprise   calls the payment API, whose limit all tenants share
erin   free         is paused, so its tasks wait
frank  free         has a task whose process dies, until it is a dead letter
====== ============ =========================================================================

Invariant: a tenant's row in the ledger is written before its task is sent, so none is missing.
No tenant has more unfinished tasks than its orders name, and the dead letters are at most three.

Weakness: a site keeps sending until it is stopped. The ledger drops tasks ten minutes after they
ended.
"""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django_celery_fairness.models import QueueLimit, TenantTier, Tier
from django_celery_fairness.redis_pages import quoted

from celery_fairness import BacklogFull, Fairness
from demo_site import tasks
from demo_site.models import DemoTask

KEPT = timedelta(minutes=10)
TIERS = {
    "alice": "free",
    "bob": "free",
    "carol": "pro",
    "dave": "enterprise",
    "erin": "free",
    "frank": "free",
}
#: The person who looks at the site. The admin shows each person the changes of their own.
ADMINISTRATOR = "admin"
#: A task of the paused tenant, so it waits until a person resumes the tenant.
WAITING_TASK = UUID(int=1)
#: Seconds between two tasks that die, and their dead letters. Then the oldest is requeued instead.
DEATH_SECONDS, DEAD_LETTERS = 30.0, 3


@dataclass(frozen=True, slots=True)
class Order:
    """Tasks of a tenant.

    Attributes:
        tenant: The tenant.
        name: Name of the task.
        most: Number of unfinished tasks after sending.
        least: Send again if fewer are unfinished. 1 is a flood that drains first.
        countdown: The tasks wait so many seconds first.
    """

    tenant: str
    name: str
    most: int
    least: int
    countdown: float | None = None


ORDERS = (
    Order("alice", "analyze", 40, 1),
    Order("bob", "render", 3, 3),
    Order("bob", "charge", 3, 3),
    Order("carol", "report", 1, 1),
    Order("carol", "analyze", 4, 4, countdown=15.0),
    Order("dave", "charge", 8, 8),
    Order("dave", "analyze", 6, 6),
    Order("erin", "analyze", 5, 5),
)


def create_tenants() -> None:
    """Give each tenant of the demo its tier, and a queue its limit, unless it already has one."""
    for tenant, name in TIERS.items():
        tier = Tier.objects.filter(name=name).first()
        if tier is not None:
            TenantTier.objects.get_or_create(tenant=tenant, defaults={"tier": tier})
    QueueLimit.objects.get_or_create(
        queue="reports_priority",
        defaults={"global_limit": 2, "note": "the report server renders two pages at once"},
    )


def operate() -> None:
    """Pause and boost a tenant on its page in the admin, and record the tasks that finish."""
    client = Client(SERVER_NAME="localhost")
    client.force_login(User.objects.get(username=ADMINISTRATOR))
    for tenant, action, reason in (
        ("erin", "pause", "its invoice is unpaid"),
        ("carol", "boost", "the quarter ends"),
    ):
        page = reverse(
            "admin:django_celery_fairness_limitkey_change", args=[quoted(f"tenant:{tenant}")]
        )
        client.post(page, {"action": action, "reason": reason})
    client.post(reverse("admin:django_celery_fairness_tenant_record"))


def top_up() -> None:
    """Send the missing tasks of each order, and delete old ones from the ledger."""
    DemoTask.objects.filter(ended_at__lt=datetime.now(UTC) - KEPT).delete()
    for order in ORDERS:
        names = ("report", "part", "join") if order.name == "report" else (order.name,)
        rows = DemoTask.objects.filter(tenant=order.tenant, name__in=names, ended_at=None)
        unfinished = rows.count()
        if unfinished < order.least:
            for _ in range(order.most - unfinished):
                seconds = random.uniform(0.5, 1.5)
                try:
                    send(order.tenant, order.name, seconds, countdown=order.countdown)
                except BacklogFull:
                    # A person has set `max_waiting`. The next turn tries again.
                    break


def send(
    tenant: str,
    name: str,
    seconds: float,
    task_id: UUID | None = None,
    countdown: float | None = None,
) -> None:
    """Write one task to the ledger, and send it.

    Raises:
        BacklogFull: The tenant's tier has a ``max_waiting``. The ledger lost the task again.
    """
    task = getattr(tasks, name)
    signature = tasks.ordered(task, tenant, seconds, task_id)
    try:
        signature.apply_async(countdown=countdown)
    except BacklogFull:
        DemoTask.objects.filter(pk=signature.options["task_id"]).delete()
        raise


class Deaths:
    """Sends tasks that die, one from time to time."""

    def __init__(self, fairness: Fairness) -> None:
        self._fairness, self._next = fairness, 0.0

    def send(self) -> None:
        """Send one if it is time. If there are enough dead letters, requeue the oldest."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + DEATH_SECONDS
        # Stock Redis keeps no dead letters: there the task fails.
        letters = self._fairness.tasks.dead_letters().items if tasks.COUNTS_DEATHS else ()
        if len(letters) < DEAD_LETTERS:
            with contextlib.suppress(BacklogFull):
                tasks.convert.delay(user_id="frank")
        else:
            self._fairness.tasks.requeue(letters[-1].task_id)
