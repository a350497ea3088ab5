"""One tenant on the dispatch path: its leases, its waiting tasks, whether it is at its limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from celery_fairness.control.holds import logical_now, with_holds
from celery_fairness.control.keys import Row, lane_key, read_row, tag_of
from celery_fairness.control.scan import LANES_AT_MOST, Command, Reader, orders_of
from celery_fairness.limiter.types import HeldLease, LimitState, WaitingLane
from celery_fairness.util.ids import holder_of

#: Leases whose rows are read in one call.
ROWS = 100


def tier_of_waiting(reader: Reader, key: str) -> str:
    """Return the tier of a tenant's waiting tasks; "" if no task waits."""
    return str(reader.read("HGET", reader.keys.of("account", key), "tier") or "")


def waiting_in_lanes(reader: Reader, key: str) -> tuple[str, int]:
    """Return the tier of a tenant's waiting tasks, and their number; "" and 0 without one."""
    flat = reader.read("HGETALL", reader.keys.of("account", key))
    # A cluster answers with a mapping.
    fields = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
    tasks = sum(int(number) for name, number in fields.items() if name.startswith("q:"))
    return str(fields.get("tier", "")), tasks


def with_dispatch(reader: Reader, state: LimitState, of_all: str = "") -> LimitState:
    """Return ``state`` with the facts of the dispatch path.

    Args:
        reader: The reader of the installation.
        state: The state of a tenant's key.
        of_all: Key of the whole tenant, if the state's key is of one of its services.
    """
    keys = reader.keys
    account = keys.of("account", state.key)
    state = with_holds(reader, state, of_all)
    fields = reader.read("HKEYS", account)
    queues = sorted(field[2:] for field in fields if field.startswith("q:"))
    commands: list[Command] = [("HGET", account, "closed"), ("ZSCORE", keys.closed, state.key)]
    commands += [("ZSCORE", keys.of("full", queue), state.key) for queue in queues]
    closed, judged, *full = reader.together(commands)
    waiting: list[WaitingLane] = []
    for queue in queues:
        waiting += _lanes(reader, state.key, queue)
    return replace(
        state,
        leases=tuple(with_rows(reader, state.key, state.leases)),
        waiting=tuple(waiting),
        closed=closed is not None,
        full_in=tuple(
            queue for queue, start in zip(queues, full, strict=True) if start is not None
        ),
        # 0 means that a put has changed the tier since.
        judged_by=abs(int(float(judged))) - 1 if judged and float(judged) else None,
    )


def _lanes(reader: Reader, key: str, queue: str) -> Iterator[WaitingLane]:
    """Yield the number of waiting tasks of each priority, 9 first."""
    lanes = orders_of(reader, key, queue)[1][:LANES_AT_MOST]
    lengths = reader.together(
        [("ZCARD", lane_key(reader.keys, key, lane, queue)) for lane in lanes]
    )
    of_rank: Counter[str] = Counter()
    for lane, length in zip(lanes, lengths, strict=True):
        of_rank[lane[0]] += length
    for rank in sorted(+of_rank, reverse=True):
        yield WaitingLane(queue, int(rank), of_rank[rank])


def with_rows(reader: Reader, key: str, leases: tuple[HeldLease, ...]) -> Iterator[HeldLease]:
    """Yield leases of a key with the known facts of the tasks that hold them."""
    logical = logical_now(reader) if leases else 0.0
    mean = reader.read("HGET", reader.keys.of("pace", key), "mean") if leases else None
    for start in range(0, len(leases), ROWS):
        some = leases[start : start + ROWS]
        ids = [lease.id for lease in some]
        tags = list(map(tag_of, ids))
        rows, heads, began = reader.together(
            [
                ("HMGET", reader.keys.running, *tags),
                ("HMGET", reader.keys.tasks, *tags),
                ("ZMSCORE", reader.keys.of("began", key), *ids),
            ]
        )
        for lease, tag, text, head, since in zip(some, tags, rows, heads, began, strict=True):
            row = read_row(tag, text, head)
            if row is not None and lease.id.startswith(f"{tag}.{text.partition(' ')[0]}"):
                yield with_row(lease, row, logical)
                continue
            # It is a lease of a gate, or it has ended since.
            owner, task_id = holder_of(lease.id)
            yield replace(
                lease,
                owner=owner,
                task_id=task_id,
                held_seconds=None if since is None else max(0.0, (logical - float(since)) / 1000),
                usual_seconds=None if since is None or not mean else float(mean) / 1000,
            )


def with_row(lease: HeldLease, row: Row, logical: float) -> HeldLease:
    """Return a lease with the facts in its task's row."""
    return replace(
        lease,
        owner=row.owner,
        queue=row.queue,
        state=row.state,
        task=row.task.name,
        charged=row.task.key,
        task_id=row.task.task_id or row.task.tag,
        held_seconds=None if row.since is None else max(0.0, (logical - row.since) / 1000),
        usual_seconds=None if row.mean_ms is None else row.mean_ms / 1000,
    )
