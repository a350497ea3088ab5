"""Tasks of a gate that wait in Redis: by their id, by their tenant, and why they wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from celery_fairness.ids import is_lease_of
from celery_fairness.looking.expecting import wait_for_limit, wait_for_slot
from celery_fairness.looking.finding import Told, read_message
from celery_fairness.looking.looker import Looker
from celery_fairness.looking.reading import Reader
from celery_fairness.looking.steered import judged_by, with_steering
from celery_fairness.looking.values import Blocker, Explanation
from celery_fairness.scheduling.limits import Limit, read_limits
from celery_fairness.scheduling.words import SYSTEM


class ParkedTask(NamedTuple):
    """A record as it lies in ``gate_tasks``, and what names it there."""

    tag: str
    record: str

    @property
    def told(self) -> Told:
        """What its message says of it."""
        return read_message(self.record)

    @property
    def task_id(self) -> str:
        """Its id; what names its message where that says none."""
        return self.told.task_id or self.tag

    @property
    def fields(self) -> list[str]:
        """Those before its message."""
        return self.record.partition("\n")[0].split(" ")

    @property
    def key(self) -> str:
        """Of its tenant's tier limit, or ``_system``."""
        return self.fields[2] or SYSTEM

    @property
    def tenant(self) -> str:
        """Who is charged, as written in keys; "" is a system task."""
        return self.fields[3].removeprefix("tenant:")

    @property
    def limits(self) -> tuple[Limit, ...]:
        """Those beside its tier's."""
        return read_limits(self.fields[6])

    @property
    def queue(self) -> str:
        """The routing key under which it is published again."""
        return read_route(self.record)


def read_route(record: str) -> str:
    """Return under which routing key a record's message is published."""
    try:
        return str(json.loads(record.partition("\n")[2])["routing_key"])
    except (ValueError, TypeError, KeyError):
        return ""


def parked(reader: Reader) -> Iterator[ParkedTask]:
    """Yield every parked task; some may come twice."""
    for tag, record in reader.pairs("HSCAN", reader.keys.gate_tasks):
        yield ParkedTask(tag, record)


def explain(reader: Reader, task: ParkedTask, looker: Looker) -> Explanation:
    """Return at which limit a task waits, and how many wait there since longer."""
    found = Explanation(task.task_id, task.told.task, task.key, task.queue, "parked")
    for key in dict.fromkeys([task.key, *(limit.key for limit in task.limits)]):
        ahead = reader.read("ZRANK", reader.keys.of("gate_wait", key), task.tag)
        if ahead is not None:
            blocker = _with_ancestors(_blocker(reader, key, task, looker, int(ahead)), task)
            return replace(
                found,
                ahead_in_lane=int(ahead),
                blocked_by=(blocker,),
                starts_in_seconds=blocker.starts_in_seconds,
            )
    # It was promoted, and is about to be in its queue.
    return found


def _with_ancestors(blocker: Blocker, task: ParkedTask) -> Blocker:
    """Name those that called a task and hold what it waits for, as far as its message says."""
    told = task.told
    callers = dict.fromkeys(each for each in (told.parent_id, told.root_id) if each)
    holds = (
        each
        for each in callers
        if each != told.task_id and any(is_lease_of(lease.id, each) for lease in blocker.holders)
    )
    return replace(blocker, ancestors=tuple(holds))


def _blocker(reader: Reader, key: str, task: ParkedTask, looker: Looker, before: int) -> Blocker:
    if key == task.key:
        state = looker.of_waiting(reader, key, task.tenant)
        starts_in = wait_for_slot(state, state.limit, before) if state.limit else None
        return Blocker(
            *(key, "concurrency", state.held, state.limit, None, state.leases),
            starts_in_seconds=starts_in,
        )
    state = with_steering(reader, looker.inspect(key))
    limit = next(each for each in task.limits if each.key == key)
    if state.override is not None:
        limit = judged_by(limit, state.override)
    stops, opens_in, reason = state.stops, None, "rate"
    if limit.concurrency == 0 or (stops is not None and stops.paused):
        reason, opens_in = "paused", None if stops is None else stops.pause_seconds
    elif stops is not None and stops.cool_down_seconds:
        reason, opens_in = "cool-down", stops.cool_down_seconds
    elif limit.concurrency is not None and (state.held >= limit.concurrency or not limit.rates):
        # Or what it has is promised to others.
        reason = "concurrency"
    starts_in = None
    if reason in ("concurrency", "rate"):
        starts_in = wait_for_limit(reader, limit, state, before)
    return Blocker(
        *(key, reason, state.held, limit.concurrency, opens_in, state.leases),
        starts_in_seconds=starts_in,
    )
