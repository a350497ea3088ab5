"""Where one task is, and why it does not run.

The tenant's limit is judged as the next claim would. Of a limit at which its lane waits it is said
what a claim found last: one that has opened since keeps its tasks until the next claim looks at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from celery_fairness.decision import LimitState
from celery_fairness.looking.finding import Place, read_message
from celery_fairness.looking.keys import (
    TaskName,
    group_of,
    order_key,
    part_key,
    read_part,
    read_record,
)
from celery_fairness.looking.looker import Looker
from celery_fairness.looking.opening import starts_wait_seconds
from celery_fairness.looking.reading import Reader
from celery_fairness.looking.steered import judged_by, logical_now
from celery_fairness.looking.values import Blocker, Explanation
from celery_fairness.looking.waited import numbered
from celery_fairness.scheduling.limits import Limit, limit_named
from celery_fairness.scheduling.queues import QueueNumbers, read_row


def explain(reader: Reader, place: Place, looker: Looker) -> Explanation:
    """Return where a task is, and why it does not run.

    Args:
        reader: Of the installation.
        place: Where the task lay just now.
        looker: Of the same installation.
    """
    task = read_record(place.record)
    told = read_message(place.record)
    if task is None:
        return Explanation(place.task_id, told.task, "", place.queue, place.state)
    found = Explanation(
        place.task_id, told.task, task.key, place.queue, place.state, owner=place.owner
    )
    if place.due_ms is not None:
        seconds, micros = reader.read("TIME")
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        return replace(found, due_in_seconds=max(0.0, (place.due_ms - now_ms) / 1000))
    if place.state != "waiting":
        return found
    tenant = looker.of_waiting(reader, task.key, place.tenant)
    keys = reader.keys
    alone = reader.read("ZSCORE", keys.of("parked", f"{task.key} {place.queue}"), task.lane)
    group = group_of(task.key, task.lane, alone)
    return replace(
        found,
        ahead_in_lane=_ahead_in_lane(reader, place, task, group),
        ahead_in_ring=reader.read("ZRANK", keys.of("ring", place.queue), task.key),
        blocked_by=(
            *_by_tenant(tenant, looker.enforced),
            *_by_limit(reader, place.queue, group, looker),
            *_by_queue(reader, place.queue, looker),
        ),
    )


def _ahead_in_lane(reader: Reader, place: Place, task: TaskName, group: str) -> int:
    order = order_key(reader.keys, task.key, group, place.queue)
    ahead = 0
    for part in reader.read("ZRANGE", order, 0, -1):
        lane, kind = read_part(part)
        if lane != task.lane:
            continue
        key = part_key(reader.keys, task.key, part, place.queue)
        if kind is None:
            ahead += _older(reader, key, int(place.fields[0]))
        else:
            ahead += int(reader.read("ZCOUNT", key, "-inf", f"({place.fields[0]}"))
    return ahead


def _older(reader: Reader, key: str, seq: int) -> int:
    """Return how many tasks of a list are older than ``seq``: it is in their order."""
    first, end = 0, int(reader.read("LLEN", key))
    while first < end:
        middle = (first + end) // 2
        record = reader.read("LINDEX", key, middle)
        if record is not None and int(record.partition(" ")[0]) < seq:
            first = middle + 1
        else:
            end = middle
    return first


def _by_tenant(state: LimitState, enforced: bool) -> Iterator[Blocker]:
    if state.limit == 0:
        yield Blocker(state.key, "paused", state.held, 0, None, state.leases)
    elif enforced and state.limit is not None and state.held >= state.limit:
        yield Blocker(state.key, "concurrency", state.held, state.limit, None, state.leases)


def _by_limit(reader: Reader, queue: str, group: str, looker: Looker) -> Iterator[Blocker]:
    """Yield the limit at which a group waits, where it is closed: of several, one."""
    keys = reader.keys
    name = group and reader.read("HGET", keys.of("groups", queue), group)
    looked = name and reader.read("ZSCORE", keys.of("candidates", queue), name)
    if not looked or float(looked) >= 0:
        # The next claim looks at it.
        return
    limit = numbered(reader, limit_named(name))
    at, logical = reader.read("ZSCORE", keys.opens, limit.key), logical_now(reader)
    opens_in = None if at is None else max(0.0, (float(at) - logical) / 1000)
    yield from _by_one(limit, looker, opens_in, is_closed=True)


def _by_queue(reader: Reader, queue: str, looker: Looker) -> Iterator[Blocker]:
    """Yield the limit of the queue as a whole, where it is closed: as the next claim judges it."""
    text = reader.read("HGET", reader.keys.queue_limits, queue)
    if text:
        row = read_row(text)
        limit = (QueueNumbers() if row.parts else row.numbers).limit(row.key)
        override = looker.inspect(row.key).override
        if override is not None:
            limit = judged_by(limit, override)
        opens_in = starts_wait_seconds(reader, limit)
        yield from _by_one(limit, looker, opens_in or None, is_closed=opens_in > 0)


def _by_one(
    limit: Limit, looker: Looker, opens_in: float | None, *, is_closed: bool
) -> Iterator[Blocker]:
    """Yield a limit that keeps a task; `is_closed` by its starts, until `opens_in` seconds."""
    state = looker.inspect(limit.key)
    if state.override is not None:
        limit = judged_by(limit, state.override)
    reason, by_time = "", opens_in
    opens_in = None
    if state.stops is not None and state.stops.paused:
        reason = "paused"
    elif state.stops is not None and state.stops.cool_down_seconds:
        reason, opens_in = "cool-down", state.stops.cool_down_seconds
    elif looker.enforced and limit.concurrency is not None and state.held >= limit.concurrency:
        reason = "paused" if limit.concurrency == 0 else "concurrency"
    elif looker.enforced and is_closed and (limit.rates or limit.throttle):
        reason, opens_in = "rate", by_time
    if reason:
        yield Blocker(state.key, reason, state.held, limit.concurrency, opens_in, state.leases)
