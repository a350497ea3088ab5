"""Where a task is and why it does not run, written for people."""

from __future__ import annotations

import click

from celery_fairness.cli.words import count, held_for, printable, quoted, seconds_text, table
from celery_fairness.looking.values import Explanation


def explanation_lines(found: Explanation) -> list[str]:
    """Return where a task is, and why it does not run."""
    what = f"task {found.task or '(no name)'}[{found.task_id}] of {found.key}"
    lines = [f"{printable(what)}, queue {printable(found.queue)}"]
    if found.state == "running":
        return [*lines, f"runs at {printable(found.owner)}"]
    if found.state == "dead":
        again = f"celery -A APP fairness dead requeue {quoted(found.task_id)}"
        return [*lines, f"is a dead letter: {again}"]
    if found.due_in_seconds is not None:
        return [*lines, f"waits for its time, {seconds_text(found.due_in_seconds)} from now"]
    where = "at its limit" if found.state == "parked" else "in its lane"
    lines.append(f"{count(found.ahead_in_lane or 0, 'task')} before it {where}")
    if found.ahead_in_ring is not None:
        lines.append(f"{count(found.ahead_in_ring, 'tenant')} before its own in the ring")
    if found.starts_in_seconds is not None:
        lines.append(f"expected to start in about {seconds_text(found.starts_in_seconds)}")
    if not found.blocked_by:
        return [*lines, "nothing keeps it: a free place in a worker starts it in its turn"]
    for each in found.blocked_by:
        limit = "" if each.limit is None else f" of {each.limit}"
        opens = each.opens_in_seconds
        soon = "" if opens is None else f", opens in {seconds_text(opens)}"
        text = f"kept by {each.key}: {each.reason}, held {each.held}{limit}{soon}"
        lines.append(click.style(text, fg="yellow"))
        for ancestor in each.ancestors:
            text = f"{printable(ancestor)}, which called it, holds a slot of {each.key}"
            warning = f"{text}: if that waits for its result, neither ends"
            lines.append(click.style(warning, fg="red"))
        rows = [
            (lease.id, lease.task, lease.state, held_for(lease), lease.owner)
            for lease in each.holders
        ]
        if rows:
            lines += ["", *table(("lease", "task", "state", "held for", "owner"), rows)]
    return lines
