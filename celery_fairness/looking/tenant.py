"""One tenant on the dispatch path: its leases, what it has waiting, whether it is closed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from celery_fairness.decision import HeldLease, LimitState, WaitingLane
from celery_fairness.looking.keys import Keys, read_row
from celery_fairness.looking.reading import Command, Reader

#: Leases whose rows are read at once: each holds a message.
ROWS = 20


def tier_of_waiting(reader: Reader, key: str) -> str:
    """Return the tier that claims judge ``key`` by before the news; "" where nothing waits."""
    return str(reader.read("HGET", reader.keys.of("account", key), "tier") or "")


def with_dispatch(reader: Reader, state: LimitState) -> LimitState:
    """Return ``state`` with what the dispatch path knows beside the limiter."""
    keys = reader.keys
    account = keys.of("account", state.key)
    fields = reader.read("HKEYS", account)
    queues = sorted(field[2:] for field in fields if field.startswith("q:"))
    commands: list[Command] = [("HGET", account, "closed"), ("ZSCORE", keys.closed, state.key)]
    for queue in queues:
        commands.append(("ZSCORE", keys.of("full", queue), state.key))
        commands += lane_lengths(keys, state.key, queue)
    closed, judged, *answers = reader.together(commands)
    waiting, full_in = [], []
    for queue, (full, *lengths) in zip(queues, _parts(answers, len(queues)), strict=True):
        if full is not None:
            full_in.append(queue)
        waiting += [
            WaitingLane(queue, 9 - place, new + back)
            for place, (new, back) in enumerate(zip(lengths[::2], lengths[1::2], strict=True))
            if new + back
        ]
    return replace(
        state,
        leases=tuple(_with_rows(reader, state.leases)),
        waiting=tuple(waiting),
        closed=closed is not None,
        full_in=tuple(full_in),
        # 0: a put said another tier since.
        judged_by=abs(int(float(judged))) - 1 if judged and float(judged) else None,
    )


def lane_lengths(keys: Keys, key: str, queue: str) -> list[Command]:
    """Return what asks for the lengths of all lanes, two of each rank, 9 first."""
    return [
        (command, keys.of(kind, f"{key} {rank} {queue}"))
        for rank in range(9, -1, -1)
        for command, kind in (("LLEN", "lane"), ("ZCARD", "back"))
    ]


def _parts(answers: list[Any], count: int) -> Iterator[list[Any]]:
    size = len(answers) // count if count else 0
    for start in range(0, size * count, size or 1):
        yield answers[start : start + size]


def _with_rows(reader: Reader, leases: tuple[HeldLease, ...]) -> Iterator[HeldLease]:
    for start in range(0, len(leases), ROWS):
        some = leases[start : start + ROWS]
        rows = reader.read("HMGET", reader.keys.running, *(lease.id for lease in some))
        for lease, text in zip(some, rows, strict=True):
            row = read_row(text) if text else None
            # One of the gate, or one that has ended since.
            yield (
                lease
                if row is None
                else replace(lease, owner=row.owner, queue=row.queue, state=row.state)
            )
