"""The worker processes that live, as each announces itself once in a third of a lease.

Weakness: a worker that was killed is listed until its last announcement is one lease old.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from celery_fairness.config.settings import Enforcement
from celery_fairness.control.holds import server_now
from celery_fairness.control.scan import Reader
from celery_fairness.control.views import WorkerStatus

#: Workers that are read.
READ_AT_MOST = 1000


def living(reader: Reader) -> tuple[WorkerStatus, ...]:
    """Return the worker processes that live, by name."""
    now = f"({server_now(reader):.0f}"
    texts = reader.read("ZRANGEBYSCORE", reader.keys.workers, now, "+inf", "LIMIT", 0, READ_AT_MOST)
    found = []
    for text in texts:
        try:
            found.append(WorkerStatus.model_validate_json(text))
        except ValidationError:
            continue  # Of a version that says more or less of itself.
    return tuple(sorted(found, key=lambda worker: (worker.name, worker.pid)))


def not_enforcing(workers: Sequence[WorkerStatus]) -> tuple[WorkerStatus, ...]:
    """Return those of ``workers`` that start tasks above their limits."""
    return tuple(each for each in workers if each.enforcement != Enforcement.ON.value)
