"""Parked tasks: finds them by id or tenant, and explains why they wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from celery_fairness.config.limit_spec import Limit, read_limits
from celery_fairness.config.tenants import key_part
from celery_fairness.control.ancestors import with_ancestors
from celery_fairness.control.at_gate import before_parked
from celery_fairness.control.find_task import MessageNames, read_message
from celery_fairness.control.forecast import Before, wait_for_limit
from celery_fairness.control.inspect import Inspector
from celery_fairness.control.judging import Judge, Judged
from celery_fairness.control.scan import Reader
from celery_fairness.control.views import Blocker, Explanation
from celery_fairness.scheduler.types import SYSTEM


class ParkedTask(NamedTuple):
    """A record of ``gate_tasks``, and its tag there."""

    tag: str
    record: str

    @property
    def names(self) -> MessageNames:
        """The ids and the name in its message."""
        return read_message(self.record.partition("\n")[2])

    @property
    def task_id(self) -> str:
        """Its id; the tag if its message has none."""
        return self.names.task_id or self.tag

    @property
    def fields(self) -> list[str]:
        """The fields of its record before the message."""
        return self.record.partition("\n")[0].split(" ")

    @property
    def key(self) -> str:
        """The key of its tenant's tier limit, or ``_system``."""
        return self.fields[2] or SYSTEM

    @property
    def tenant(self) -> str:
        """The charged tenant, in its form in keys; "" is a system task."""
        return self.fields[3].removeprefix("tenant:")

    @property
    def tier(self) -> str:
        """Its tier at the time of parking; "" for a system task."""
        return self.fields[4]

    @property
    def limits(self) -> tuple[Limit, ...]:
        """Its limits without the tier's."""
        return read_limits(self.fields[6])

    @property
    def queue(self) -> str:
        """The routing key of its message."""
        return read_route(self.record)


def read_route(record: str) -> str:
    """Return the routing key of a record's message."""
    try:
        return str(json.loads(record.partition("\n")[2])["routing_key"])
    except (ValueError, TypeError, KeyError):
        return ""


def parked(reader: Reader) -> Iterator[ParkedTask]:
    """Yield every parked task; some may occur twice."""
    for tag, record in reader.pairs("HSCAN", reader.keys.gate_tasks):
        yield ParkedTask(tag, record)


def find(reader: Reader, task_id: str) -> list[ParkedTask]:
    """Return the parked tasks of an id, the oldest first. A task without one has its tag as id."""
    tags = (reader.read("HGET", reader.keys.ids, key_part(task_id)) or task_id).split(" ")
    records = zip(tags, reader.read("HMGET", reader.keys.gate_tasks, *tags), strict=True)
    return [ParkedTask(tag, record) for tag, record in records if record]


def explain(reader: Reader, task: ParkedTask, inspector: Inspector) -> Explanation:
    """Return the limit at which a task waits, and the tasks before it there."""
    judge = Judge(reader, inspector)
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
    tiers = inspector.tiers()
    for each, place in zip(judged, places, strict=True):
        before = before_parked(reader, tiers, task.key, place, task.tag)
        if before is not None:
            blocker = _with_ancestors(_blocker(reader, each, before.tasks), task)
            return explained(
                ahead_in_lane=before.of_tenant,
                ahead_in_ring=before.tenants,
                blocked_by=(blocker,),
                starts_in_seconds=blocker.starts_in_seconds,
            )
    # A worker has just promoted it. It will soon be in its queue.
    return explained()


def _with_ancestors(blocker: Blocker, task: ParkedTask) -> Blocker:
    """Add the holders of a limit that called the task."""
    names = task.names
    callers = {each for each in (names.parent_id, names.root_id) if each} - {names.task_id}
    return next(with_ancestors([blocker], callers))


def _blocker(reader: Reader, judged: Judged, before: Before) -> Blocker:
    """Return the limit at which a task waits."""
    limit, state = judged.limit, judged.state
    if not judged.closed:
        # Its free slots are reserved for others, or older tasks wait before this one.
        by_time = limit.concurrency is None and (limit.rates or limit.throttle)
        judged = judged._replace(closed="rate" if by_time else "concurrency")
    starts_in = None
    if judged.closed in ("concurrency", "rate"):
        usual = (each.usual_seconds for each in state.leases)
        takes = next((each for each in usual if each is not None), None)
        starts_in = wait_for_limit(reader, limit, state, before._replace(takes=takes))
    (blocker,) = judged.blockers(starts_in, None)
    return blocker
