"""Explains where a task is, and why it does not start.

The function ``explain`` of the library returns all facts of one moment. It checks all limits of the
task by the rules of the next claim, even limits that no claim has checked yet.

A body may wait for the result of a task that it called, if it allows ``result.get()``. If it also
holds the slot that this task needs, neither ever ends. So a blocker names the callers of the task.

Weakness: Redis does not store which task names a worker has registered, and whether it is at the
task's own ``rate_limit``. It cannot show whether a body waits. A
message names the first caller and the last one, so those between them are not named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from celery_fairness.config.settings import Enforcement
from celery_fairness.config.tenants import id_part
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.task_records import read_head
from celery_fairness.control.task.checked_limits import read_limits_of
from celery_fairness.control.task.forecast import Positions, wait_for_limit
from celery_fairness.control.task.search import MessageNames, Place
from celery_fairness.control.task.views import Blocker, Explanation


def explain(installation: Installation, place: Place) -> Explanation | None:
    """Return where a task that was found is, and why it does not start; None if it has ended."""
    settings = installation.settings
    # At a gate each task costs 1.
    fairness_by = "tasks" if place.task.is_parked else settings.fairness_by
    answer = installation.limiter.explain(place.task.tag, fairness_by, settings.priority_scope)
    task = read_head(place.task.tag, answer["head"]) if answer else None
    if answer is None or task is None or answer["state"] == "ended":
        return None
    names = place.names
    checked = read_limits_of(answer)
    explained = partial(
        Explanation,
        task_id=place.task_id,
        task=names.task,
        key=task.key,
        tenant_from=place.tenant_from,
        queue=task.shown_queue,
        state="parked" if task.is_parked else answer["state"],
        owner="" if task.is_parked else answer["owner"],
        unique_key=answer.get("unique_key", ""),
        limits=tuple(each.shown for each in checked),
    )
    if answer["state"] == "delayed":
        due_in = max(0.0, (answer["due"] - answer["now"]) / 1000)
        return explained(due_in_seconds=due_in, put_back_by=answer.get("rescheduled_by", ""))
    if answer["state"] != "waiting":
        return explained()
    positions = Positions(answer, task, settings)
    # With priorities over all tenants, later tasks may go first, so there is no estimate.
    in_turn = None if settings.priority_scope == "queue" else positions.wait_in_queue()
    enforced = settings.enforcement is Enforcement.ON
    blocked: list[Blocker] = []
    opened: list[float | None] = []
    for each in checked:
        starts_in = None
        if enforced and each.state.blocked_by in ("", "concurrency", "rate", "throttle"):
            before = positions.before(each.state.limit)
            starts_in = wait_for_limit(each.state, before, answer["logical"])
        # An available limit is exhausted after the starts of the tasks before this one.
        opened += [] if each.state.blocked_by else [starts_in]
        blocked += each.blockers(starts_in, in_turn)
    return explained(
        ahead_in_lane=positions.in_lane,
        ahead_is_least=positions.is_least,
        tenants_ahead=positions.tenants_ahead,
        raised=answer.get("raised", False),
        blocked_by=tuple(_with_callers(blocked, names)),
        starts_in_seconds=_latest(blocked, in_turn, opened),
    )


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


def _with_callers(blocked: Iterable[Blocker], names: MessageNames) -> Iterator[Blocker]:
    """Yield blockers, each with the holders that called the task."""
    callers = {names.root_id, names.parent_id} - {"", names.task_id}
    # A lease has the id of its task in the form that keys have.
    known = {id_part(each): each for each in callers}
    for each in blocked:
        its = tuple(known[lease.task_id] for lease in each.holders if lease.task_id in known)
        yield replace(each, callers=its)
