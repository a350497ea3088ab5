"""Where one task is, and why it does not run.

The tenant's limit is judged as the next claim would. Of a limit at which its lane waits it is said
what a claim found last: one that has opened since keeps its tasks until the next claim looks at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from celery_fairness.decision import HeldLease, LimitState
from celery_fairness.looking.ancestors import ancestors_of, with_ancestors
from celery_fairness.looking.expecting import Turns, wait_for_ends, wait_for_limit, wait_for_slot
from celery_fairness.looking.finding import Place, read_message
from celery_fairness.looking.keys import group_of, read_record, read_row
from celery_fairness.looking.looker import Looker
from celery_fairness.looking.opening import starts_wait_seconds
from celery_fairness.looking.reading import Reader
from celery_fairness.looking.steered import judged_by, logical_now
from celery_fairness.looking.tenant import with_row
from celery_fairness.looking.values import Blocker, Explanation
from celery_fairness.looking.waited import numbered
from celery_fairness.scheduling.limits import Limit, limit_named
from celery_fairness.scheduling.queues import QueueNumbers
from celery_fairness.scheduling.queues import read_row as read_queue

#: Running tasks that stand for all, where it is asked how soon a place is free.
RUNNING_AT_MOST = 1000


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
    turns = Turns(
        reader, place.queue, task, int(place.fields[0]), looker.weights(), looker.by_runtime
    )
    in_ring = turns.in_ring()
    blocked = [
        *_by_tenant(tenant, looker.enforced, turns.in_group(group)),
        *_by_limit(reader, place.queue, group, looker, turns),
        *_by_queue(reader, place.queue, looker, in_ring),
    ]
    if blocked:
        expected = _latest(blocked)
    else:
        expected = None if in_ring is None else _wait_for_place(reader, place.queue, in_ring)
    ancestors = ancestors_of(reader, told) if blocked else ()
    return replace(
        found,
        ahead_in_lane=turns.in_lane(group),
        ahead_in_ring=reader.read("ZRANK", keys.of("ring", place.queue), task.key),
        blocked_by=tuple(with_ancestors(blocked, ancestors)),
        starts_in_seconds=expected,
    )


def _latest(blocked: Iterable[Blocker]) -> float | None:
    """Return when all of them let a task start; None where one does not say it."""
    waits = [each.starts_in_seconds for each in blocked]
    return None if None in waits else max(each for each in waits if each is not None)


def _wait_for_place(reader: Reader, queue: str, before: int) -> float | None:
    """Return how long until a worker has a place for a task that so many go before.

    The places are those that tasks of its queue hold now.
    """
    logical, rows = logical_now(reader), []
    for _, text in islice(reader.pairs("HSCAN", reader.keys.running), RUNNING_AT_MOST):
        row = read_row(text)
        if row is not None:
            rows.append(row)
    holders = [with_row(HeldLease("", 0.0), row, logical) for row in rows if row.queue == queue]
    if not holders:
        return None
    running = int(reader.read("HLEN", reader.keys.running))
    return wait_for_ends(holders, max(1, len(holders) * running // len(rows)), before + 1)


def _by_tenant(state: LimitState, enforced: bool, before: int) -> Iterator[Blocker]:
    if state.limit == 0:
        yield Blocker(state.key, "paused", state.held, 0, None, state.leases)
    elif enforced and state.limit is not None and state.held >= state.limit:
        yield Blocker(
            *(state.key, "concurrency", state.held, state.limit, None, state.leases),
            starts_in_seconds=wait_for_slot(state, state.limit, before),
        )


def _by_limit(
    reader: Reader, queue: str, group: str, looker: Looker, turns: Turns
) -> Iterator[Blocker]:
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
    before = turns.at_limit(limit.key, group)
    yield from _by_one(reader, limit, looker, opens_in, before, is_closed=True)


def _by_queue(reader: Reader, queue: str, looker: Looker, before: int | None) -> Iterator[Blocker]:
    """Yield the limit of the queue as a whole, where it is closed: as the next claim judges it."""
    text = reader.read("HGET", reader.keys.queue_limits, queue)
    if text:
        row = read_queue(text)
        limit = (QueueNumbers() if row.parts else row.numbers).limit(row.key)
        override = looker.inspect(row.key).override
        if override is not None:
            limit = judged_by(limit, override)
        opens_in = starts_wait_seconds(reader, limit)
        yield from _by_one(reader, limit, looker, opens_in or None, before, is_closed=opens_in > 0)


def _by_one(
    reader: Reader,
    limit: Limit,
    looker: Looker,
    opens_in: float | None,
    before: int | None,
    *,
    is_closed: bool,
) -> Iterator[Blocker]:
    """Yield a limit that keeps a task; `is_closed` by its starts, until `opens_in` seconds."""
    state = looker.inspect(limit.key)
    if state.override is not None:
        limit = judged_by(limit, state.override)
    reason, by_time = "", opens_in
    opens_in = starts_in = None
    if state.stops is not None and state.stops.paused:
        reason = "paused"
    elif state.stops is not None and state.stops.cool_down_seconds:
        reason, opens_in = "cool-down", state.stops.cool_down_seconds
    elif looker.enforced and limit.concurrency is not None and state.held >= limit.concurrency:
        reason = "paused" if limit.concurrency == 0 else "concurrency"
    elif looker.enforced and is_closed and (limit.rates or limit.throttle):
        reason, opens_in = "rate", by_time
    if reason in ("concurrency", "rate") and before is not None:
        starts_in = wait_for_limit(reader, limit, state, before)
    if reason:
        yield Blocker(
            *(state.key, reason, state.held, limit.concurrency, opens_in, state.leases),
            starts_in_seconds=starts_in,
        )
