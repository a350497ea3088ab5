"""What a claim tells of the tasks that it leased: each behind its length, in one string."""

from __future__ import annotations

from collections.abc import Iterator

from celery_fairness.scheduler.types import Claimed


def read_tasks(told: bytes) -> Iterator[Claimed]:
    """Yield the tasks, in their order."""
    at = 0
    while at < len(told):
        begins = told.index(b" ", at) + 1
        at = begins + int(told[at:begins])
        yield _claimed(told[begins:at])


def _claimed(told: bytes) -> Claimed:
    lease, attempt, key, rank, length, rest = told.split(b" ", 5)
    queue_ends = int(length)
    return Claimed(
        lease.decode(),
        rest[:queue_ends].decode(),
        int(attempt),
        key.decode(),
        int(rank),
        rest[queue_ends:].decode(),
    )
