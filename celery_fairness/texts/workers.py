"""The texts of worker processes: those that enforce nothing, and those that Celery reaches."""

from __future__ import annotations

from collections.abc import Sequence

import click

from celery_fairness.control.health.verdict import clock_text, unannounced_name, unseen_text
from celery_fairness.control.installation.views import WorkerReplies, WorkerStatus
from celery_fairness.control.installation.workers import not_enforcing
from celery_fairness.texts.format import (
    count,
)
from celery_fairness.util.printable import printable

#: Number of owners in the text of a status; JSON has all.
OWNERS_SHOWN = 20


def workers_lines(workers: Sequence[WorkerStatus]) -> list[str]:
    """Return a line for each worker that does not enforce limits, or that all do."""
    others = not_enforcing(workers)
    if not workers:
        return ["no worker is announced"]
    if not others:
        number = count(len(workers), "worker")
        return [f"{number} {'enforces' if len(workers) == 1 else 'enforce'} limits"]
    number = f"{len(others)} of {count(len(workers), 'worker')}"
    head = f"{number} {'does' if len(others) == 1 else 'do'} not enforce limits:"
    rows = [
        f"  {printable(each.name)}, pid {each.pid}, {each.path} path: enabled is "
        f"{enabled_text(each)}"
        for each in others[:OWNERS_SHOWN]
    ]
    more = len(others) - OWNERS_SHOWN
    rows += [f"  and {count(more, 'worker')} more: --json has all"] if more > 0 else []
    return [click.style(line, fg="yellow") for line in (head, *rows)]


def replies_lines(replies: WorkerReplies) -> list[str]:
    """Return how many workers answered Celery, and a line for each that is not announced."""
    if why := unseen_text(replies):
        return [printable(why)]
    line = f"{count(replies.answered, 'worker')} answered Celery at {clock_text(replies.at)}"
    others = replies.unannounced
    if not others:
        return [line]
    lines = [f"{line}, {len(others)} of them not announced:"]
    for each in others[:OWNERS_SHOWN]:
        of = "" if each.shares else ", of which none is known here"
        text = f"  {printable(unannounced_name(each))}{of}"
        lines.append(click.style(text, fg="red") if each.shares else text)
    more = len(others) - OWNERS_SHOWN
    return [*lines, f"  and {count(more, 'worker')} more: --json has all"] if more > 0 else lines


def enabled_text(worker: WorkerStatus) -> str:
    """Return the setting ``enabled`` of a worker in the form of a settings file."""
    return {"on": "true", "off": "false"}.get(worker.enforcement, repr(worker.enforcement))
