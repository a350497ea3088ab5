"""The Celery app that is measured: the same no-op task, plain and fair."""

from __future__ import annotations

import os

from celery import Celery

from celery_fairness import Fairness, FairTask

app = Celery("bench", broker=os.environ.get("BENCH_BROKER_URL", "redis://localhost:6379/0"))
app.conf.update(task_ignore_result=True, worker_enable_remote_control=False)
# The limit is on and is never reached.
app.conf.fairness = {"tiers": {"free": {"concurrency": 1000}}}
Fairness(app)


@app.task
def plain(user: str) -> None:
    """Do nothing."""


@app.task(base=FairTask, tenant="user")
def fair(user: str) -> None:
    """Do nothing, within a limit."""
