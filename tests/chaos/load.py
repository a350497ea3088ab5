"""The sender of a run: keeps some tasks waiting for every tenant until it is told to stop.

It learns from the ledger what has started, so that whatever is slow or down, tenants have work
that waits and the backlog stays small.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter, deque
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos import ledger, troubles
from tests.chaos.app import STOCK, app
from tests.chaos.plan import LIMITS, PACES, PLANS, next_job

TURN_SECONDS = 0.02


def backlog(limit: int | None) -> int:
    """Return how many tasks shall wait."""
    return 2 if limit is None else 3 + 3 * limit


def main(seed: int, form: str) -> None:
    """Send until SIGTERM."""
    plan = PLANS[form]
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    tail = ledger.Tail(Path(os.environ[ledger.VARIABLE]))
    random = Random(f"load {seed}")
    sent: Counter[str] = Counter()
    begun: Counter[str] = Counter()
    known: set[str] = set()
    wanted: deque[ledger.Event] = deque()
    # A poison that is wanted at the end is sent too.
    while not stop or wanted:
        for event in tail.read():
            if event["event"] == "wanted":
                wanted.append(event)
            if event["event"] == "start" and event["id"] not in known:
                known.add(event["id"])
                begun[event["tenant"]] += 1
        if wanted and troubles.cause(app, wanted[0]):
            wanted.popleft()
        for tenant, limit in LIMITS.items():
            if sent[tenant] - begun[tenant] >= backlog(limit) or stop:
                continue
            sent[tenant] += 1
            job = next_job(plan, random)
            task_id = f"{tenant}-{sent[tenant]}"
            facts: dict[str, Any] = {"id": task_id, "tenant": tenant, "late": job.late}
            task: Any = app.tasks["chaos.late" if job.late else "chaos.early"]
            kwargs: dict[str, Any] = {"seconds": job.seconds, "retries": job.retries}
            kwargs["tenant"] = None if limit is None else tenant
            paced = {} if STOCK or tenant not in PACES else {"limits": [PACES[tenant].policy]}
            begins = ledger.now()
            try:
                task.apply_async(
                    kwargs=kwargs,
                    task_id=task_id,
                    countdown=job.countdown or None,
                    retry=True,
                    **paced,
                )
            except Exception as error:  # noqa: BLE001 - whatever the transport raises
                ledger.write("submit_failed", error=repr(error), **facts)
            else:
                ledger.write("submit", begins, due=begins + job.countdown, **facts)
        time.sleep(TURN_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
