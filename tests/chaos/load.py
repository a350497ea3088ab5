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

from celery import Celery

from tests.chaos import ledger, troubles
from tests.chaos.app import ON, STOCK, app
from tests.chaos.plan import LIMITS, PACES, PLANS, next_job

TURN_SECONDS = 0.02
#: On a cluster a call of `delay()` ends as Celery's own settings say, so that it can fail.
POLICY = {"max_retries": 3, "interval_start": 0, "interval_max": 1, "interval_step": 0.2}
#: A key that nothing reads. kombu's prefix brings it into the slot of the installation.
MARK = "chaos"
#: How long a replica may take until it is asked again, in ms.
WAIT_MS = 100


def backlog(limit: int | None) -> int:
    """Return how many tasks shall wait."""
    return 2 if limit is None else 3 + 3 * limit


class Replica:
    """Learns which tasks the replica of the slot's primary has.

    A replica has all that its primary wrote before a mark that the replica has. A task may have
    gone to another server than the mark, so the same one must have answered before and after.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._server = ""
        self._tasks: list[str] = []

    def expect(self, task_id: str) -> None:
        """Note that the primary has taken a task."""
        self._tasks.append(task_id)

    def look(self) -> None:
        """Write the tasks that it has since the last call."""
        server, copies = "", 0
        try:
            with self._app.producer_or_acquire() as producer:
                client = producer.channel.client
                client.set(MARK, 1)
                copies = client.wait(1, WAIT_MS)
                server = client.info("server")["run_id"]
        except Exception:  # noqa: BLE001 - whatever the transport raises in an outage
            pass
        if server == self._server and copies and self._tasks:
            ledger.write("held", ids=self._tasks)
        if server != self._server or copies:
            self._tasks = []
        self._server = server


def main(seed: int, form: str) -> None:
    """Send until SIGTERM."""
    plan = PLANS[form]
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    tail = ledger.Tail(Path(os.environ[ledger.VARIABLE]))
    random = Random(f"load {seed}")
    replica = Replica(app) if ON == "faircluster" else None
    number: Counter[str] = Counter()
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
            done = wanted.popleft()
            if replica and done["what"] == "poison":
                replica.expect(done["id"])
        for tenant, limit in LIMITS.items():
            if sent[tenant] - begun[tenant] >= backlog(limit) or stop:
                continue
            number[tenant] += 1
            job = next_job(plan, random)
            task_id = f"{tenant}-{number[tenant]}"
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
                    retry_policy=POLICY if replica else None,
                    **paced,
                )
            except Exception as error:  # noqa: BLE001 - whatever the transport raises
                failed = {"failed": ledger.now(), "error": repr(error)}
                ledger.write("submit_failed", begins, **failed, **facts)
            else:
                sent[tenant] += 1
                due = begins + job.countdown
                ledger.write("submit", begins, taken=ledger.now(), due=due, **facts)
                if replica:
                    replica.expect(task_id)
        if replica:
            replica.look()
        time.sleep(TURN_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
