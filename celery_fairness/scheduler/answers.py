"""Reads the tasks in the answer to a claim: one string, in which each task follows its length."""

from __future__ import annotations

from collections.abc import Iterator

from celery_fairness.scheduler.types import Claimed


def read_tasks(text: bytes) -> Iterator[Claimed]:
    """Yield the tasks in their order."""
    at = 0
    while at < len(text):
        begins = text.index(b" ", at) + 1
        at = begins + int(text[at:begins])
        yield _claimed(text[begins:at])


def _claimed(text: bytes) -> Claimed:
    lease, attempt, key, rank, length, rest = text.split(b" ", 5)
    queue_ends = int(length)
    return Claimed(
        lease.decode(),
        rest[:queue_ends].decode(),
        int(attempt),
        key.decode(),
        int(rank),
        rest[queue_ends:].decode(),
    )
