"""The Celery app that is measured: the same no-op task, plain and fair."""

from __future__ import annotations

import json
import os
import threading
import time

from celery import Celery

from celery_fairness import Fairness, FairTask, RateLimitPolicy

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
    **json.loads(os.environ.get("BENCH_FAIRNESS", "{}")),
}
fairness = Fairness(app)
#: As the benchmark of rates says it.
RATE = RateLimitPolicy("bench.rate", rate="250/PT5S")


def tier_of(tenant: str) -> str | None:
    """Return the tier of a benchmark's tenant."""
    if tenant.startswith("pro-"):
        return "pro"
    return {"flood": "capped", "two": "two"}.get(tenant, tenant if tenant[0] == "w" else None)


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
    place = f"{os.getpid()}.{threading.get_ident()}"
    line = json.dumps({**entry, "ended_at": time.time(), "place": place}) + "\n"
    with open(os.environ["BENCH_LEDGER"], "a") as ledger:
        ledger.write(line)


@app.task(base=FairTask, tenant="user", service="flood", limits=[RATE])
def rated(sent_at: float, seconds: float, user: str) -> None:
    """Take its time under a rate, and write down when it ran."""
    span.run(sent_at, seconds, user)


@app.task
def plain(user: str) -> None:
    """Do nothing."""


@app.task(base=FairTask, tenant="user")
def fair(user: str) -> None:
    """Do nothing, within a limit."""


def count(user: str) -> None:
    """Write down whose task ran."""
    number = os.open(os.environ["BENCH_LEDGER"], os.O_WRONLY | os.O_APPEND)
    try:
        os.write(number, user.encode() + b"\n")
    finally:
        os.close(number)


@app.task
def counted_plain(user: str) -> None:
    """Write down whose task it is."""
    count(user)


@app.task(base=FairTask, tenant="user")
def counted_fair(user: str) -> None:
    """Write down whose task it is, within a limit."""
    count(user)
