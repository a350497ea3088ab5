"""The demo's tasks: waiting, a payment API that answers 429, a chord, a task whose process dies.

Invariant: the times in the ledger are read next to the work, and not next to the write, which may
wait for the database.

Weakness: the work is only waiting. ``make demo`` has real work.
"""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from celery import Signature, Task, chord, shared_task
from django.conf import settings

from celery_fairness import FairTask, RateLimitExceeded, RateLimitPolicy
from demo_site.models import DemoTask

#: The limit is a little above what the API accepts, so now and then the API answers 429.
PAYMENTS = RateLimitPolicy("payments.example.com", concurrency=3, rate="12/PT10S")
#: Calls that the API accepts in this time, and the ``Retry-After`` of its 429.
ACCEPTED, WINDOW, RETRY_AFTER_SECONDS = 10, timedelta(seconds=10), 4
PARTS = 6
#: Whether Redis counts the deaths of a task. Stock Redis would deliver it again without an end.
COUNTS_DEATHS = settings.CELERY_BROKER_URL.startswith("fairredis")


@shared_task(base=FairTask, bind=True, tenant="user_id", service="analysis")
def analyze(
    self: Task[Any, Any],
    seconds: float,
    user_id: str | None = None,
) -> None:
    """Pretend to analyse something of ``user_id`` for ``seconds``."""
    _work(self, seconds)


@shared_task(base=FairTask, bind=True, tenant="user_id", service="specview")
def render(
    self: Task[Any, Any],
    seconds: float,
    user_id: str | None = None,
) -> None:
    """Pretend to render a document of ``user_id`` for ``seconds``."""
    _work(self, seconds)


@shared_task(base=FairTask, bind=True, tenant="user_id", service="billing", limits=[PAYMENTS])
def charge(
    self: Task[Any, Any],
    seconds: float,
    user_id: str | None = None,
) -> None:
    """Pretend to call the payment API of all tenants. A rejected call waits, and runs again."""
    since = datetime.now(UTC) - WINDOW
    if DemoTask.objects.filter(name="charge", started_at__gt=since).count() >= ACCEPTED:
        raise RateLimitExceeded(retry_after=RETRY_AFTER_SECONDS)
    _work(self, seconds)


@shared_task(base=FairTask, bind=True, tenant="user_id", service="reports")
def report(self: Task[Any, Any], seconds: float, user_id: str) -> None:
    """Pretend to plan a report, then send its parts and, after them, the task that joins them."""
    _work(self, seconds)
    parts = [ordered(part, user_id, seconds) for _ in range(PARTS)]
    chord(parts)(ordered(join, user_id, seconds))


@shared_task(base=FairTask, bind=True, tenant="user_id", service="reports", ignore_result=False)
def part(
    self: Task[Any, Any],
    seconds: float,
    user_id: str | None = None,
) -> float:
    """Pretend to make a part of a report."""
    _work(self, seconds)
    return seconds


@shared_task(base=FairTask, bind=True, tenant="user_id", service="reports")
def join(
    self: Task[Any, Any],
    parts: list[float],
    seconds: float,
    user_id: str | None = None,
) -> None:
    """Pretend to join the parts of a report."""
    _work(self, seconds)


@shared_task(
    base=FairTask,
    tenant="user_id",
    service="conversion",
    acks_late=COUNTS_DEATHS,
    reject_on_worker_lost=COUNTS_DEATHS,
)
def convert(user_id: str | None = None) -> None:
    """Kill its own process, as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def ordered(
    task: Task[Any, Any], tenant: str, seconds: float, task_id: UUID | None = None
) -> Signature[Any]:
    """Write a task to the ledger, and return its signature."""
    row = DemoTask.objects.create(
        task_id=task_id or uuid4(),
        tenant=tenant,
        name=task.name.rpartition(".")[2],
        sent_at=datetime.now(UTC),
    )
    return task.s(seconds, user_id=tenant).set(task_id=str(row.task_id))


def _work(task: Task[Any, Any], seconds: float) -> None:
    row = DemoTask.objects.filter(pk=str(task.request.id))
    row.update(started_at=datetime.now(UTC), worker=task.request.hostname or "")
    time.sleep(seconds)
    row.update(ended_at=datetime.now(UTC))
