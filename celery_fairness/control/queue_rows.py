"""The rows of a status: queues of the dispatch path, and owners of leases.

Invariant: the number of rows that it reads is bounded. The function library counts waiting tasks,
and only running tasks are counted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

from celery_fairness.config.queue_limits import PARKED_QUEUES
from celery_fairness.control.find_task import running
from celery_fairness.control.scan import Command, Reader, batches
from celery_fairness.control.views import OwnerStatus, QueueStatus

#: Queues, running tasks, and tenants at their limit in one queue, that one status reads.
QUEUES_AT_MOST = 10_000
RUNNING_AT_MOST = 100_000
FULL_AT_MOST = 10_000
#: Tenants or queues in one call.
BATCH = 500


def read_queues(reader: Reader, known_queues: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a status with queues, owners and totals."""
    notes: list[str] = []
    owners, running = _running(reader, notes)
    names = {*known_queues, *running, *_named(reader)}
    queues = [_queue(reader, name, running[name], notes) for name in sorted(names)]
    held = sorted(owners.items(), key=lambda each: (-each[1], each[0]))
    return {
        "queues": tuple(queues),
        "total": _total(queues),
        "owners": tuple(OwnerStatus(owner, leases) for owner, leases in held),
        "notes": tuple(notes),
    }


def _running(reader: Reader, notes: list[str]) -> tuple[Counter[str], Counter[str]]:
    owners: Counter[str] = Counter()
    queues: Counter[str] = Counter()
    rows = running(reader)
    for row in islice(rows, RUNNING_AT_MOST):
        owners[row.owner] += 1
        queues[row.queue] += 1
    if next(rows, None) is not None:
        notes.append(f"only the first {RUNNING_AT_MOST} running tasks were counted")
    return owners, queues


def _named(reader: Reader) -> set[str]:
    keys = reader.keys
    names = {name for name, _ in islice(reader.pairs("HSCAN", keys.waiting), QUEUES_AT_MOST)}
    others = islice(reader.members(keys.queues), QUEUES_AT_MOST)
    for some in batches(others, BATCH):
        commands: list[Command] = [
            ("EXISTS", keys.of("later", name), keys.of("dead", name)) for name in some
        ]
        there = zip(some, reader.together(commands), strict=True)
        names.update(name for name, count in there if count)
    return {name for name in names if not name.startswith(PARKED_QUEUES)}


def _queue(reader: Reader, queue: str, running: int, notes: list[str]) -> QueueStatus:
    keys = reader.keys
    waiting, virtual, later, dead, ring, full = reader.together(
        [
            ("HGET", keys.waiting, queue),
            ("HGET", keys.virtual, f"queue {queue}"),
            ("ZCARD", keys.of("later", queue)),
            ("ZCARD", keys.of("dead", queue)),
            ("ZCARD", keys.of("ring", queue)),
            ("ZCARD", keys.of("full", queue)),
        ]
    )
    behind: int | None = 0
    if full > FULL_AT_MOST:
        behind = None
        notes.append(f"{queue}: too many tenants are blocked to count their tasks")
    elif full:
        behind = _behind(reader, queue)
    return QueueStatus(
        queue, int(waiting or 0), later, ring, full, behind, running, dead, float(virtual or 0)
    )


def _behind(reader: Reader, queue: str) -> int:
    keys, total = reader.keys, 0
    tenants = (key for key, _ in reader.pairs("ZSCAN", keys.of("full", queue)))
    for some in batches(set(tenants), BATCH):
        commands: list[Command] = [("HGET", keys.of("account", key), f"q:{queue}") for key in some]
        total += sum(int(count or 0) for count in reader.together(commands))
    return total


def _total(queues: list[QueueStatus]) -> QueueStatus:
    numbers = ("waiting", "later", "ring", "full", "behind_full", "running", "dead")
    counts = {name: [getattr(queue, name) for queue in queues] for name in numbers}
    sums: dict[str, Any] = {
        name: None if None in each else sum(each) for name, each in counts.items()
    }
    return QueueStatus(queue="", virtual_time=None, **sums)
