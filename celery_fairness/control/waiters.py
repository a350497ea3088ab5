"""The holders and the waiting tasks of a key that is no tenant's.

Waiting tasks are found from the key, by limit, wait group and tenant. Other tasks of the queues are
not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from celery_fairness.config.limit_spec import OF_QUEUE, SIZE, Limit, limit_numbered
from celery_fairness.config.queue_limits import PREFIX, QueueRow, read_row
from celery_fairness.control.holds import with_holds
from celery_fairness.control.keys import PAUSED, lane_key, order_key
from celery_fairness.control.scan import LANES_AT_MOST, Command, Reader, batches
from celery_fairness.control.tenant_state import with_rows
from celery_fairness.limiter.types import LimitState, WaitedLimit

#: Limits of one key in an answer, and wait groups and tenants of a limit whose tasks are counted.
LIMITS_AT_MOST = 100
GROUPS_AT_MOST = 10_000
TENANTS_AT_MOST = 10_000
#: Tenants in one call.
BATCH = 500


def _state(looked: float, cools: bool) -> str:
    if looked >= 0:
        return "available"
    # A partition's score is lower by the version of its queue's numbers.
    stopped = "cool-down" if cools else "paused"
    return stopped if looked <= PAUSED else "exhausted"


def with_waited(reader: Reader, state: LimitState) -> LimitState:
    """Return ``state`` with the holders of leases, and with waiting tasks."""
    keys = reader.keys
    waited = keys.of("waited", state.key)
    both = sorted(reader.read("LRANGE", waited, 0, LIMITS_AT_MOST - 1))
    row = row_of(reader, state.key)
    numbers = row.numbers if row is not None and row.parts == (state.key != row.key) else None
    state = with_holds(reader, state)
    stops = state.stops
    cools = stops is not None and stops.cool_down_seconds > 0 and not stops.paused
    return replace(
        state,
        # The numbers of other keys come with their tasks.
        limit=numbers.concurrency if numbers and row and state.key == row.key else None,
        local_limit=numbers.local if numbers else None,
        leases=tuple(with_rows(reader, state.key, state.leases)),
        waited=tuple(each for name in both if (each := _waited(reader, name, cools)) is not None),
    )


def numbered(reader: Reader, limit: Limit) -> Limit:
    """Return a limit with the newest numbers of its key, or those of its queue."""
    if limit.of == OF_QUEUE:
        row = row_of(reader, limit.key)
        return limit if row is None else row.numbers.limit(limit.key, limit.of)
    if limit.of:
        return limit
    newest = _newest(reader, limit.key)
    return limit._replace(
        concurrency=(limit.concurrency and newest.concurrency) or limit.concurrency,
        rates=(limit.rates and newest.rates) or limit.rates,
        throttle=(limit.throttle and newest.throttle) or limit.throttle,
    )


def _newest(reader: Reader, key: str) -> Limit:
    """Return the newest numbers that tasks of a key declared."""
    text = reader.read("GET", reader.keys.of("declared", key))
    return Limit(key) if text is None else limit_numbered(f"{key}|{text}")


def _limit_at(reader: Reader, name: str) -> Limit:
    """Return the limit at which tasks wait, by its name, with its numbers."""
    key, concurrency, rates, throttle = name.split("|")
    if concurrency == OF_QUEUE:
        return numbered(reader, limit_numbered(name))
    newest = _newest(reader, key)
    fixed = int(concurrency) if concurrency.isdecimal() else None
    return Limit(
        key,
        newest.concurrency if concurrency == SIZE else fixed,
        newest.rates if rates else (),
        newest.throttle if throttle else None,
    )


def row_of(reader: Reader, key: str) -> QueueRow | None:
    """Return the row of the queue that has this key, or a partition with it."""
    if not key.startswith(PREFIX):
        return None
    queue = reader.read("HGET", reader.keys.queue_keys, ":".join(key.split(":")[:2]))
    row = reader.read("HGET", reader.keys.queue_limits, queue) if queue is not None else None
    return read_row(row) if row else None


def _waited(reader: Reader, both: str, cools: bool) -> WaitedLimit | None:
    """Return the waiting tasks at one limit in one queue; None if there are none any more.

    Args:
        reader: The reader of the installation.
        both: The limit and the queue.
        cools: Whether the limit's key cools down and is not paused.
    """
    keys = reader.keys
    name, _, queue = both.partition(" ")
    looked, groups = reader.together(
        [
            ("ZSCORE", keys.of("candidates", queue), name),
            ("ZRANGE", keys.of("wait", both), 0, GROUPS_AT_MOST),
        ]
    )
    if looked is None:
        return None
    tenants = 0
    for some in batches(groups, BATCH):
        cards: list[Command] = [("ZCARD", keys.of("group", f"{each} {queue}")) for each in some]
        tenants += sum(reader.together(cards))
    few = tenants <= TENANTS_AT_MOST and len(groups) <= GROUPS_AT_MOST
    limit = _limit_at(reader, name)
    return WaitedLimit(
        queue,
        limit.concurrency,
        limit.rates,
        limit.throttle,
        _state(float(looked), cools and limit.concurrency != 0),
        tenants,
        sum(_tasks(reader, groups, queue)) if few else None,
    )


def _tasks(reader: Reader, groups: list[str], queue: str) -> Iterator[int]:
    """Yield the number of tasks in each lane in these wait groups."""
    keys = reader.keys
    members = (
        (key, group)
        for group in groups
        for key, _ in reader.pairs("ZSCAN", keys.of("group", f"{group} {queue}"))
    )
    for some in batches(members, BATCH):
        shelves: list[Command] = [
            ("ZRANGE", order_key(keys, key, group, queue), 0, LANES_AT_MOST) for key, group in some
        ]
        lanes: list[Command] = [
            ("ZCARD", lane_key(keys, key, lane, queue))
            for (key, _), shelf in zip(some, reader.together(shelves), strict=True)
            for lane in shelf
        ]
        for lengths in batches(lanes, BATCH):
            yield from reader.together(lengths)
