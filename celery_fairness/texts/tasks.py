"""The texts of tasks: lists, the place of one task, and why it does not start.

The admin of the Django app shows the same sentences.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import click

from celery_fairness.config.numbers import numbers_text
from celery_fairness.control.key.limit_in_force import time_text
from celery_fairness.control.task.views import (
    Amount,
    Blocker,
    DeadLetterPage,
    Explanation,
    TaskLimit,
    TaskPage,
    TaskRow,
)
from celery_fairness.limiter.types import HeldLease
from celery_fairness.texts.format import (
    Cell,
    count,
    held_by,
    held_for,
    page_line,
    quoted,
    seconds_text,
    table,
    wait_text,
)
from celery_fairness.texts.workers import enabled_text
from celery_fairness.util.printable import printable

LIMIT_HEADS = ("limit", "numbers", "on limit", "held", "state", "why")
HOLDER_HEADS = ("held by", "task", "state", "held for", "owner")

LIST_HEADS = (
    *("id", "task", "state", "why", "age", "due in", "tier", "priority", "tenant", "queue"),
    "arguments",
)
_DEAD = ("queue", "task", "id", "tenant", "attempts", "deaths", "cause")

_COLORS = {"notice": "yellow", "danger": "red"}


class Sentence(NamedTuple):
    """One fact about a task.

    Attributes:
        text: The sentence.
        level: ``notice`` if it is why the task does not start, or ``danger`` if it may never start.
        holders: The leases of the limit that the sentence names.
    """

    text: str
    level: Literal["", "notice", "danger"] = ""
    holders: tuple[HeldLease, ...] = ()


def list_lines(page: TaskPage) -> list[str]:
    """Return a page of tasks as a table, and how to see the next page."""
    lines = table(LIST_HEADS, list(map(list_cells, page.items)), empty="no tasks")
    notes = []
    if not page.is_ordered and page.items:
        notes.append("some of these tasks are in no order: a tenant's own are the oldest first")
    if page.cursor is not None:
        notes.append(f"there are more: --cursor {page.cursor}")
    return [*lines, *([""] if notes else []), *(click.style(each, fg="yellow") for each in notes)]


def list_cells(row: TaskRow) -> tuple[Cell, ...]:
    """Return the row of a task, in the order of :data:`LIST_HEADS`."""
    times = (wait_text(row.age_seconds), wait_text(row.due_in_seconds))
    priority = "" if row.priority is None else row.priority
    return (
        *(row.task_id, row.task, row.state, why_text(row), *times),
        *(row.tier, priority, row.tenant, row.queue, row.args or ""),
    )


def why_text(row: TaskRow) -> str:
    """Return why a task is in its state, with the limit or the process."""
    if row.owner:
        return f"{row.why} at {row.owner}"
    return f"{row.why} of {row.key}" if row.key else row.why


def explanation_lines(found: Explanation) -> list[str]:
    """Return the place of a task, and why it does not start."""
    lines = []
    for each in sentences(found):
        lines.append(click.style(each.text, fg=_COLORS[each.level]) if each.level else each.text)
        if each.holders:
            lines += ["", *table(HOLDER_HEADS, list(map(holder_cells, each.holders)))]
    rows = list(map(limit_cells, found.limits))
    return [*lines, "", *table(LIMIT_HEADS, rows)] if rows else lines


def holder_cells(lease: HeldLease) -> tuple[Cell, ...]:
    """Return the row of a lease, in the order of :data:`HOLDER_HEADS`."""
    return held_by(lease), lease.task, lease.state, held_for(lease), lease.owner


def limit_cells(limit: TaskLimit) -> tuple[Cell, ...]:
    """Return the row of a task's limit, in the order of :data:`LIMIT_HEADS`."""
    numbers = numbers_text(limit.numbers)
    state, why = limit.blocked_by or "available", limit.in_force.reasons_text
    return limit.key, numbers or "unlimited", limit.on_limit, limit.held, state, why


def sentences(found: Explanation) -> Iterator[Sentence]:
    """Yield where a task is, and why it does not start, a fact each."""
    what = f"task {found.task or '(no name)'}[{found.task_id}] of {found.key}"
    yield Sentence(f"{printable(what)}, queue {printable(found.queue)}")
    if found.tenant_from:
        yield Sentence(f"the header or property {printable(found.tenant_from)} names its tenant")
    if found.unique_key:
        yield Sentence(f"has the unique key {found.unique_key}")
    if found.state == "running":
        yield Sentence(f"runs at {printable(found.owner)}")
        return
    if found.state == "dead":
        again = f"celery -A APP fairness task requeue {quoted(found.task_id)}"
        yield Sentence(f"is a dead letter: {again}")
        return
    if found.state == "moving":
        yield Sentence("moves to another installation, where the move ends: queue migrate --from")
        return
    yield from _may_pass(found)
    if found.taken_by == ():
        queue = printable(found.queue)
        start = f"start one with -Q {quoted(found.queue)}"
        yield Sentence(f"no worker takes queue {queue}: {start}", "danger")
    if found.due_in_seconds is not None:
        by = f": {found.put_back_by} has rescheduled it" if found.put_back_by else ""
        time = "next try" if found.state == "parked" else "time"
        yield Sentence(f"waits for its {time}, {seconds_text(found.due_in_seconds)} from now{by}")
        return
    if found.ahead_in_lane is not None:
        least = "at least " if found.ahead_is_least else ""
        yield Sentence(f"{least}{count(found.ahead_in_lane, 'task')} before it in its lane")
    if found.raised:
        yield Sentence("goes as one of the highest priority: it has waited for priority_aging")
    if found.tenants_ahead is not None:
        where = "at this gate" if found.state == "parked" else "in this queue"
        yield Sentence(f"{count(found.tenants_ahead, 'tenant')} before its own {where}")
    if found.starts_in_seconds is not None and found.taken_by != ():
        yield Sentence(f"expected to start in about {seconds_text(found.starts_in_seconds)}")
    if not found.blocked_by:
        yield from map(Sentence, _blocked_by_no_limit(found))
    for each in found.blocked_by:
        yield from _blocked(each)


def _may_pass(found: Explanation) -> Iterator[Sentence]:
    for each in found.not_enforcing:
        worker = f"{printable(each.name)}, pid {each.pid}"
        text = f"worker {worker} does not enforce limits (enabled is {enabled_text(each)})"
        yield Sentence(f"{text}: it may start the task above them", "notice")


def _blocked_by_no_limit(found: Explanation) -> Iterator[str]:
    if found.state == "parked":
        yield "no limit blocks it: a worker brings it back to its queue in its turn"
        return
    task, queue = printable(found.task) or "it", printable(found.queue)
    worker = f"a worker that takes {queue} and has registered {task}"
    yield f"no limit blocks it: {worker} starts it in its turn"
    takers = len(found.taken_by or ())
    if takers:
        yield (
            f"{count(takers, 'worker')} {'takes' if takers == 1 else 'take'} {queue}; Redis does "
            f"not store whether one has registered {task}, and how fast (its rate_limit): see the "
            "workers' logs, and celery -A APP inspect registered"
        )


def _blocked(by: Blocker) -> Iterator[Sentence]:
    limit = "" if by.limit is None else f" of {by.limit}"
    opens = by.opens_in_seconds
    soon = "" if opens is None else f", available in {seconds_text(opens)}"
    if by.counted and by.opens_at is not None:
        soon = f", {by.counted} started{soon} at {time_text(by.opens_at)}"
    held = f"held {by.held}{limit}{' in each process' if by.reason == 'local' else ''}"
    if by.burst is not None and by.limit is not None and by.burst > by.limit:
        held = lent_text(by.held, by.limit, by.burst)
    if by.permits is not None and by.limit is not None and by.held < by.limit:
        has = f"its partition has {by.permits} and uses {by.held}"
        held = f"waits for a permit: the home of the key grants {by.limit}, {has}"
    if by.lends:
        held = f"waits for its partition's turn: the home of the key lends {by.lends}"
    reasons = by.in_force.reasons if by.in_force is not None else ()
    is_shown = reasons and (
        reasons[0].by_people or (reasons[0].kind == "tier" and (by.counted or by.burst))
    )
    why = f"; {reasons[0].text}" if is_shown else ""
    if by.amount is not None:
        why = f"; {_amount_text(by.amount)}{why}"
    found = [Sentence(printable(f"blocked by {by.key}: {by.reason}, {held}{soon}{why}"), "notice")]
    for caller in by.callers:
        text = f"{printable(caller)}, which called it, holds a slot of {by.key}"
        found.append(Sentence(f"{text}: if that waits for its result, neither ends", "danger"))
    yield from found[:-1]
    yield found[-1]._replace(holders=by.holders)


def lent_text(held: int, limit: int, burst: int) -> str:
    """Return how many slots a tenant with a burst has, and when it gets more."""
    lent = max(0, held - limit)
    more = "; more when a worker has nothing else" if held < burst else ""
    return f"held {held - lent} of {limit}, {lent} lent of {burst - limit}{more}"


def _amount_text(amount: Amount) -> str:
    """Return what a task needs of a key, and for whom the key saves it."""
    text = f"needs {amount.needs} of {amount.of}, {amount.free} free"
    if not amount.saves:
        return text
    if not amount.saved_for:
        return f"{text}; the key saves for it"
    most = (
        ""
        if amount.saved_seconds is None
        else f", for at most {seconds_text(amount.saved_seconds)}"
    )
    return f"{text}; the key saves {amount.saves} for {amount.saved_for}{most}"


def dead_lines(page: DeadLetterPage) -> list[str]:
    """Return a page of dead letters as a table."""
    rows = [
        (each.queue, each.task, each.task_id, each.tenant, each.attempts, each.deaths, each.cause)
        for each in page.items
    ]
    lines = table(_DEAD, rows, empty="no dead letters")
    return [*lines, page_line(page.pagination, "dead letter")]
