"""The Celery app that is measured: the same no-op task, plain and fair."""

from __future__ import annotations

import json
import os
import time

from celery import Celery

from celery_fairness import Fairness, FairTask

app = Celery("bench", broker=os.environ.get("BENCH_BROKER_URL", "redis://localhost:6379/0"))
app.conf.update(task_ignore_result=True, worker_enable_remote_control=False)
# The limit is on and is never reached.
app.conf.fairness = {
    "tiers": {
        "free": {"concurrency": 1000},
        "capped": {"concurrency": 1},
        "two": {"concurrency": 2},
    },
    "tier_resolver": "tests.benchmarks.app:tier_of",
}
fairness = Fairness(app)


def tier_of(tenant: str) -> str | None:
    """Return the tier of a benchmark's tenant."""
    if tenant.startswith("pro-"):
        return "pro"
    return {"flood": "capped", "two": "two"}.get(tenant)


@app.task(base=FairTask, tenant="user", service="flood")
def job(sent_at: float, seconds: float, user: str) -> None:
    """Write down how long it waited, and take its time."""
    line = json.dumps({"user": user, "waited": time.time() - sent_at}) + "\n"
    with open(os.environ["BENCH_LEDGER"], "a") as ledger:
        ledger.write(line)
    time.sleep(seconds)


@app.task(base=FairTask, tenant="user", service="flood")
def span(sent_at: float, seconds: float, user: str) -> None:
    """Take its time, and write down how long it waited and when it ran."""
    began_at = time.time()
    time.sleep(seconds)
    entry = {"user": user, "waited": began_at - sent_at, "began_at": began_at}
    line = json.dumps({**entry, "ended_at": time.time()}) + "\n"
    with open(os.environ["BENCH_LEDGER"], "a") as ledger:
        ledger.write(line)


@app.task
def plain(user: str) -> None:
    """Do nothing."""


@app.task(base=FairTask, tenant="user")
def fair(user: str) -> None:
    """Do nothing, within a limit."""
