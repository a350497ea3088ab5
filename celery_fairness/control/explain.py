"""Explains where a task is, and why it does not start.

It checks all limits of the task by the rules of the next claim, even limits that no claim has
checked yet.

A body may wait for the result of a task that it called, if it allows ``result.get()``. If it also
holds the slot that this task needs, neither ever ends. So a blocker names the callers of the task.

Weakness: Redis does not store which workers consume a queue, which task names they have registered,
and which of them are at the task's own ``rate_limit``. It cannot show whether a body waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from celery_fairness.config.settings import Enforcement
from celery_fairness.config.tenants import id_part
from celery_fairness.control.find_task import MessageNames, Place, find
from celery_fairness.control.forecast import Positions, wait_for_limit
from celery_fairness.control.installation import Installation
from celery_fairness.control.keys import TaskHead, whole_of
from celery_fairness.control.scan import Reader, server_now
from celery_fairness.control.task_limits import CheckedLimit, limits_of
from celery_fairness.control.views import Blocker, Explanation

#: Callers whose own callers are read.
CALLERS_AT_MOST = 100


def explain(installation: Installation, place: Place) -> Explanation:
    """Return where a task that was found is, and why it does not start."""
    reader, settings = installation.reader, installation.settings
    task, names = place.task, place.names
    parked = task.is_parked
    explained = partial(
        Explanation,
        task_id=place.task_id,
        task=names.task,
        key=task.key,
        queue=place.queue,
        state="parked" if parked else place.state,
        owner="" if parked else place.owner,
    )
    if place.state not in ("waiting", "later"):
        return explained()
    positions = None
    if place.state == "waiting":
        answer = installation.redis.position(
            # At a gate each task costs 1.
            *(task.tag, "tasks" if parked else settings.fairness_by, settings.priority_scope)
        )
        positions = None if answer is None else Positions(answer, task, settings)
    checked = tuple(limits_of(installation, task, positions.rows if positions else ()))
    limits = tuple(each.shown for each in checked)
    if place.due_ms is not None:
        due_in = max(0.0, (place.due_ms - server_now(reader)) / 1000)
        by = _put_back_by(reader, task, checked)
        return explained(limits=limits, due_in_seconds=due_in, put_back_by=by)
    if positions is None:
        # It has started or ended since it was found.
        return explained(limits=limits)
    # With priorities over all tenants, later tasks may go first, so there is no estimate.
    in_turn = None if settings.priority_scope == "queue" else positions.wait_in_queue()
    enforced = settings.enforcement is Enforcement.ON
    blocked: list[Blocker] = []
    opened: list[float | None] = []
    for each in checked:
        starts_in = None
        if enforced and each.blocked_by in ("", "concurrency", "rate"):
            starts_in = wait_for_limit(reader, each.limit, each.state, positions.before(each.limit))
        # An available limit is exhausted after the starts of the tasks before this one.
        opened += [] if each.blocked_by else [starts_in]
        blocked += each.blockers(starts_in, in_turn)
    ancestors = _ancestors_of(reader, names) if blocked else ()
    return explained(
        limits=limits,
        ahead_in_lane=positions.in_lane,
        ahead_is_least=positions.is_least,
        tenants_ahead=positions.tenants_ahead,
        blocked_by=tuple(_with_ancestors(blocked, ancestors)),
        starts_in_seconds=_latest(blocked, in_turn, opened),
    )


def _put_back_by(reader: Reader, task: TaskHead, checked: Iterable[CheckedLimit]) -> str:
    """Return the key of the limit that rescheduled a task.

    A key stores only its first rescheduled tasks. For the others the record has the limit that
    rejected the task.
    """
    for key in (each.limit.key for each in checked if each.limit.on_limit == "reschedule"):
        there = reader.keys.of("rescheduled", whole_of(key))
        if reader.read("ZSCORE", there, f"{task.seq} {task.queue}") is not None:
            return key
    # A parked task may also wait because its broker did not take it.
    return "" if task.is_parked else task.rejected_by.partition("|")[2]


def _latest(
    blocked: Iterable[Blocker], in_turn: float | None, opened: Iterable[float | None]
) -> float | None:
    """Return the seconds until all limits let a task start; None if unknown.

    Args:
        blocked: Limits that block it now. The estimate of each must be known.
        in_turn: Seconds until it has a slot. It must be known if no limit blocks the task.
        opened: Seconds until limits that are available now let it start after the tasks before it.
            Unknown ones are ignored.
    """
    waits = [each.starts_in_seconds for each in blocked] or [in_turn]
    if None in waits:
        return None
    return max(each for each in (*waits, in_turn, *opened) if each is not None)


def _ancestors_of(reader: Reader, names: MessageNames) -> set[str]:
    """Return the ids of a task's callers: those in its message, and the callers of each."""
    found = {names.parent_id, names.root_id}
    caller = names.parent_id
    for _ in range(CALLERS_AT_MOST):
        places = find(reader, caller) if caller else []
        caller = places[0].names.parent_id if places else ""
        if caller in found:
            break
        found.add(caller)
    return found - {"", names.task_id}


def _with_ancestors(blocked: Iterable[Blocker], ancestors: Iterable[str]) -> Iterator[Blocker]:
    """Yield blockers, each with the holders that called the task."""
    # A lease has the id of its task in the form that keys have.
    known = {id_part(each): each for each in ancestors}
    for each in blocked:
        its = tuple(known[lease.task_id] for lease in each.holders if lease.task_id in known)
        yield replace(each, ancestors=its)
