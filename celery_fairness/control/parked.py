"""Tasks of a gate that wait in Redis: by their id, by their tenant, and why they wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from celery_fairness.config.limit_spec import Limit, read_limits
from celery_fairness.control.ancestors import with_ancestors
from celery_fairness.control.at_gate import before_parked
from celery_fairness.control.find_task import MessageNames, read_message
from celery_fairness.control.forecast import Before, wait_for_limit
from celery_fairness.control.holders import with_jobs
from celery_fairness.control.judging import Judge, Judged
from celery_fairness.control.scan import Reader
from celery_fairness.control.stats import Stats
from celery_fairness.control.views import Blocker, Explanation
from celery_fairness.scheduler.types import SYSTEM


class ParkedTask(NamedTuple):
    """A record as it lies in ``gate_tasks``, and what names it there."""

    tag: str
    record: str

    @property
    def names(self) -> MessageNames:
        """What its message says of it."""
        return read_message(self.record)

    @property
    def task_id(self) -> str:
        """Its id; what names its message where that says none."""
        return self.names.task_id or self.tag

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
    def tier(self) -> str:
        """Its tier as the gate knew it; "" of a system task."""
        return self.fields[4]

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


def explain(reader: Reader, task: ParkedTask, looker: Stats) -> Explanation:
    """Return at which limit a task waits, and what goes before it there."""
    judge = Judge(reader, looker)
    of_tenant = []
    if task.key != SYSTEM:
        of_tenant.append(judge.of_tenant(task.key, task.tenant, task.tier))
    judged = (*of_tenant, *judge.of_task(task.limits))
    places = (*(each.limit.key for each in of_tenant), *(limit.name for limit in task.limits))
    explained = partial(
        Explanation,
        task_id=task.task_id,
        task=task.names.task,
        key=task.key,
        queue=task.queue,
        state="parked",
        limits=tuple(each.shown for each in judged),
    )
    tiers = looker.tiers()
    for each, place in zip(judged, places, strict=True):
        before = before_parked(reader, tiers, task.key, place, task.tag)
        if before is not None:
            blocker = _with_ancestors(reader, _blocker(reader, each, before.tasks), task)
            return explained(
                ahead_in_lane=before.of_tenant,
                ahead_in_ring=before.tenants,
                blocked_by=(blocker,),
                starts_in_seconds=blocker.starts_in_seconds,
            )
    # It was promoted, and is about to be in its queue.
    return explained()


def _with_ancestors(reader: Reader, blocker: Blocker, task: ParkedTask) -> Blocker:
    """Name who holds what a task waits for, and who of them called it, as far as that is known."""
    names = task.names
    callers = {each for each in (names.parent_id, names.root_id) if each} - {names.task_id}
    holders = with_jobs(reader, blocker.holders, callers)
    return next(with_ancestors([replace(blocker, holders=holders)], callers))


def _blocker(reader: Reader, judged: Judged, before: Before) -> Blocker:
    """Return the limit at which a task waits."""
    limit, state = judged.limit, judged.state
    if not judged.closed:
        # What it has is promised to others, or others wait since longer.
        by_time = limit.concurrency is None and (limit.rates or limit.throttle)
        judged = judged._replace(closed="rate" if by_time else "concurrency")
    starts_in = None
    if judged.closed in ("concurrency", "rate"):
        usual = (each.usual_seconds for each in state.leases)
        takes = next((each for each in usual if each is not None), None)
        starts_in = wait_for_limit(reader, limit, state, before._replace(takes=takes))
    (blocker,) = judged.blockers(starts_in, None)
    return blocker
