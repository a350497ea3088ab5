"""The text of one task: its place, and why it does not start."""

from __future__ import annotations

from collections.abc import Iterator

import click

from celery_fairness.cli.format import (
    Cell,
    count,
    held_by,
    held_for,
    printable,
    quoted,
    seconds_text,
    table,
)
from celery_fairness.cli.tables import enabled_text, numbers_text
from celery_fairness.control.views import Blocker, Explanation, TaskLimit

_LIMIT = ("limit", "numbers", "on limit", "held", "state", "why")


def explanation_lines(found: Explanation) -> list[str]:
    """Return the place of a task, and why it does not start."""
    what = f"task {found.task or '(no name)'}[{found.task_id}] of {found.key}"
    lines = [f"{printable(what)}, queue {printable(found.queue)}"]
    if found.state == "running":
        return [*lines, f"runs at {printable(found.owner)}"]
    if found.state == "dead":
        again = f"celery -A APP fairness task requeue {quoted(found.task_id)}"
        return [*lines, f"is a dead letter: {again}"]
    lines += _may_pass(found)
    if found.due_in_seconds is not None:
        by = f": {found.put_back_by} has rescheduled it" if found.put_back_by else ""
        time = "next try" if found.state == "parked" else "time"
        lines.append(f"waits for its {time}, {seconds_text(found.due_in_seconds)} from now{by}")
        return [*lines, *_limits(found)]
    if found.ahead_in_lane is not None:
        lines.append(f"{count(found.ahead_in_lane, 'task')} before it in its lane")
    if found.ahead_in_ring is not None:
        where = "at this gate" if found.state == "parked" else "in this queue"
        lines.append(f"{count(found.ahead_in_ring, 'tenant')} before its own {where}")
    if found.starts_in_seconds is not None:
        lines.append(f"expected to start in about {seconds_text(found.starts_in_seconds)}")
    if not found.blocked_by:
        lines += _blocked_by_no_limit(found)
    for each in found.blocked_by:
        lines += _blocked(each)
    return [*lines, *_limits(found)]


def _may_pass(found: Explanation) -> Iterator[str]:
    for each in found.not_enforcing:
        worker = f"{printable(each.name)}, pid {each.pid}"
        text = f"worker {worker} does not enforce limits (enabled is {enabled_text(each)})"
        yield click.style(f"{text}: it may start the task above them", fg="yellow")


def _blocked_by_no_limit(found: Explanation) -> Iterator[str]:
    if found.state == "parked":
        yield "no limit blocks it: a worker brings it back to its queue in its turn"
        return
    task, queue = printable(found.task) or "it", printable(found.queue)
    worker = f"a worker that takes {queue} and has registered {task}"
    yield f"no limit blocks it: {worker} starts it in its turn"
    yield (
        "Redis does not store whether one does, and how fast (its rate_limit): "
        "see the workers' logs, and celery -A APP inspect active_queues"
    )


def _blocked(by: Blocker) -> Iterator[str]:
    limit = "" if by.limit is None else f" of {by.limit}"
    opens = by.opens_in_seconds
    soon = "" if opens is None else f", available in {seconds_text(opens)}"
    held = f"held {by.held}{limit}{' in each process' if by.reason == 'local' else ''}"
    reasons = by.in_force.reasons if by.in_force is not None else ()
    why = f"; {reasons[0].text}" if reasons and reasons[0].by_people else ""
    yield click.style(
        printable(f"blocked by {by.key}: {by.reason}, {held}{soon}{why}"), fg="yellow"
    )
    for ancestor in by.ancestors:
        text = f"{printable(ancestor)}, which called it, holds a slot of {by.key}"
        yield click.style(f"{text}: if that waits for its result, neither ends", fg="red")
    rows = [
        (held_by(lease), lease.task, lease.state, held_for(lease), lease.owner)
        for lease in by.holders
    ]
    if rows:
        yield ""
        yield from table(("held by", "task", "state", "held for", "owner"), rows)


def _limits(found: Explanation) -> list[str]:
    rows = [_limit(each) for each in found.limits]
    return ["", *table(_LIMIT, rows)] if rows else []


def _limit(each: TaskLimit) -> tuple[Cell, ...]:
    numbers = numbers_text(each.concurrency, each.rates, each.throttle, each.local)
    state, why = each.closed or "available", each.in_force.reasons_text
    return each.key, numbers or "unlimited", each.on_limit, each.held, state, why
