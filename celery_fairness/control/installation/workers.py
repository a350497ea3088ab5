"""The live worker processes. Each stores its status once in a third of a lease.

Weakness: a killed worker stays in the list until its last status is one lease old.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from celery_fairness.config.settings import Enforcement
from celery_fairness.control.installation.reader import Reader, server_now
from celery_fairness.control.installation.views import WorkerStatus

#: Most workers in an answer.
READ_AT_MOST = 1000


def living(reader: Reader) -> tuple[WorkerStatus, ...]:
    """Return the live worker processes, by name.

    The status from before a change of a worker's queues is stored for one lease. The newest
    counts.
    """
    now = f"({server_now(reader):.0f}"
    texts = reader.read("ZRANGEBYSCORE", reader.keys.workers, now, "+inf", "LIMIT", 0, READ_AT_MOST)
    found = dict[tuple[str, int], WorkerStatus]()
    for text in texts:
        try:
            worker = WorkerStatus.model_validate_json(text)
        except ValidationError:
            continue  # A worker of another version has other fields.
        found[worker.name, worker.pid] = worker
    return tuple(found[each] for each in sorted(found))


def are_too_many(reader: Reader) -> bool:
    """Return whether more workers are announced than :func:`living` reads."""
    now = f"({server_now(reader):.0f}"
    return int(reader.read("ZCOUNT", reader.keys.workers, now, "+inf")) > READ_AT_MOST


def not_enforcing(workers: Sequence[WorkerStatus]) -> tuple[WorkerStatus, ...]:
    """Return those of ``workers`` that start tasks above their limits."""
    return tuple(each for each in workers if each.enforcement != Enforcement.ON.value)
