"""The demo's tasks: two services whose work takes a moment, so that a person can watch it.

Invariant: the times in the ledger are read next to the work, and not next to the write, which may
wait for the database.

Weakness: the work is only waiting. ``make demo`` has real work.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from celery import Task, shared_task

from celery_fairness import FairTask
from demo_site.models import DemoTask


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


def _work(task: Task[Any, Any], seconds: float) -> None:
    row = DemoTask.objects.filter(pk=str(task.request.id))
    row.update(started_at=datetime.now(UTC), worker=task.request.hostname or "")
    time.sleep(seconds)
    row.update(ended_at=datetime.now(UTC))
