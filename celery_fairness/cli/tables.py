"""The text of statuses, queues, dead letters, events and checks for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

import click

from celery_fairness.cli.format import PARKED, Cell, count, table, wait_text, weight_text
from celery_fairness.control.doctor.diagnosis import CHECKS
from celery_fairness.control.doctor.finding import Diagnosis
from celery_fairness.control.event_types import Event, EventPage
from celery_fairness.control.libraries import LibraryStatus
from celery_fairness.control.limit_in_force import holds_of, number_text, time_text
from celery_fairness.control.ojs_views import Pagination
from celery_fairness.control.verdict import clock_text, unannounced_name, unseen_text
from celery_fairness.control.views import (
    Check,
    DeadLetterPage,
    QueueLimit,
    QueueState,
    QueueStatus,
    Status,
    Verdict,
    WorkerReplies,
    WorkerStatus,
)
from celery_fairness.control.workers import not_enforcing
from celery_fairness.limiter.types import KeyHolds
from celery_fairness.transport.migration import Moved
from celery_fairness.util.durations import iso_duration, seconds
from celery_fairness.util.printable import printable

#: Number of owners in the text of a status; JSON has all.
OWNERS_SHOWN = 20
#: Longest line of running text.
WIDTH = 80


_QUEUE = (
    *("queue", "waiting", "startable", "at tier limit", "at other limit", "paused"),
    *("oldest wait", "running", "delayed", "dead"),
)
_SHARE = (
    *("tenant", "tier", "limit", "held", "entitled", "waiting", "startable", "state"),
    "first waits",
)
_TIER = ("tier", "concurrency", "weight", "queue class", "max waiting", "rejected")
_DEAD = ("queue", "task", "id", "tenant", "attempts", "deaths", "cause")


def libraries_lines(libraries: Sequence[LibraryStatus]) -> list[str]:
    """Return the libraries of a server for people."""
    rows = [
        (
            each.name,
            "this version" if each.current else "another version",
            time_text(each.used) if each.used else "never here",
            each.size,
        )
        for each in libraries
    ]
    return table(("library", "of", "used last", "bytes"), rows, empty="no library is loaded")


def status_lines(status: Status) -> list[str]:
    """Return a status for people."""
    where = f"{status.redis}, namespace {status.namespace}"
    lines = [f"{status.path} path, {where}, config version {status.config_version}"]
    lines += ["", *verdict_lines(status.verdict), "", *workers_lines(status.workers)]
    lines += replies_lines(status.replies)
    if status.queues:
        lines += ["", *_queue_table(status.queues)]
    more = status.queue_count - len(status.queues)
    if more > 0:
        lines.append(f"and {count(more, 'queue')} with fewer waiting tasks: queue list shows all")
    owners = [(each.owner, each.leases) for each in status.owners]
    shown_owners = owners[:OWNERS_SHOWN]
    lines += ["", *table(("owner", "leases"), shown_owners, empty="no leases are held")]
    if len(owners) > OWNERS_SHOWN:
        lines.append(f"and {len(owners) - OWNERS_SHOWN} more owners: --json has all")
    tiers = [
        (
            each.tier,
            number_text(each.concurrency),
            weight_text(each.weight),
            each.queue_class,
            number_text(each.max_waiting),
            each.rejected,
        )
        for each in status.tiers
    ]
    lines += ["", *table(_TIER, tiers)]
    lines.append(f"tiers are from {status.tiers_from or 'the settings: none are published'}")
    lines += ["", *table(("count", ""), sorted(status.counts.items()), empty="no counts yet")]
    return lines


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return a verdict with its causes, what was ruled out and when, and what was not checked."""
    lines = [verdict_line(verdict)]
    lines += [f"  {printable(cause)}" for cause in verdict.causes]
    at = "" if verdict.at is None else f" at {clock_text(verdict.at)}"
    lines += [f"  not the cause{at}: {printable(each)}" for each in verdict.ruled_out]
    return [*lines, *(f"  not checked: {printable(each)}" for each in verdict.unchecked)]


def verdict_line(verdict: Verdict) -> str:
    """Return a verdict's sentence."""
    color = {"ok": "green", "busy": "yellow", "trouble": "red"}[verdict.level]
    return click.style(printable(verdict.line), fg=color)


def doctor_lines(found: Diagnosis) -> list[str]:
    """Return what ``doctor`` found, and the verdict's sentence at the end."""
    lines = []
    for each in found.symptoms:
        color = "red" if each.level == "problem" else "yellow"
        head = f"{each.level.upper()} {each.check}"
        first, *rest = _wrapped(f"{head}: {each.what}")
        lines += [click.style(head, fg=color, bold=True) + first.removeprefix(head), *rest]
        lines += [*_wrapped(each.consequence, "  "), *_wrapped(f"fix: {each.fix}", "  "), ""]
    if not lines:
        lines = [f"{count(len(CHECKS), 'check')}: nothing is wrong", ""]
    return [*lines, verdict_line(found.verdict)]


def _wrapped(text: str, indent: str = "") -> list[str]:
    """Return lines that fit into a terminal; a word such as a command stays whole."""
    return textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


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


def queue_limit_lines(found: QueueLimit) -> list[str]:
    """Return a queue's limit."""
    numbers = []
    for name, number in (("global", found.global_limit), ("local", found.local_limit)):
        if number is not None:
            numbers.append(f"{name} {number}")
    for name, window in (("rate", found.rate), ("throttle", found.throttle)):
        if window is not None:
            numbers.append(f"{name} {window['limit']}/{window['period']}")
    each = " for each partition" if found.partitioned else ""
    whose = {"people": "set by an operator", "settings": "of the settings"}.get(
        found.source, "declared by nobody"
    )
    limit = f"{', '.join(numbers) or 'unlimited'}{each}, on limit {found.on_limit}"
    return [f"{printable(found.queue)}: {limit}; {whose}; {found.held} running"]


def queues_lines(found: Sequence[QueueState]) -> list[str]:
    """Return queues with their limits."""
    counted = [each.tasks for each in found if each.tasks is not None]
    limits = [line for each in found if each.limit for line in queue_limit_lines(each.limit)]
    lines = _queue_table(counted) if counted else []
    if limits:
        lines += [*([""] if lines else []), "limits", *limits]
    return lines or ["no queue is known"]


def queue_lines(found: QueueState) -> list[str]:
    """Return one queue with its limit."""
    lines = []
    if found.tasks is not None:
        lines = [*_queue_table([found.tasks]), *_shares(found.tasks), ""]
    own = queue_limit_lines(found.limit) if found.limit else [f"{printable(found.queue)}: no limit"]
    return [*lines, *own]


def holds_lines(holds: KeyHolds) -> list[str]:
    """Return the pause or cool-down of a key, with the key."""
    text = "; ".join(each.text for each in holds_of(holds))
    return [f"{holds.key}: {printable(text) or 'not stopped: tasks start as its limits allow'}"]


def dead_lines(page: DeadLetterPage) -> list[str]:
    """Return a page of dead letters as a table."""
    rows = [
        (each.queue, each.task, each.task_id, each.tenant, each.attempts, each.deaths, each.cause)
        for each in page.items
    ]
    lines = table(_DEAD, rows, empty="no dead letters")
    return [*lines, page_line(page.pagination, "dead letter")]


def page_line(pagination: Pagination, noun: str) -> str:
    """Return the position of a page in the whole."""
    pages = -(-pagination.total // pagination.per_page) or 1
    return f"page {pagination.page} of {pages}, {count(pagination.total, noun)}"


def numbers_text(
    concurrency: int | None,
    rates: Sequence[tuple[int, int]],
    throttle: tuple[int, int] | None,
    local: int | None = None,
) -> str:
    """Return the numbers of a limit; "" if it has none."""
    numbers = [] if concurrency is None else [f"{concurrency} at once"]
    numbers += [] if local is None else [f"{local} in one process"]
    numbers += [f"{starts}/{iso_duration(seconds(period_ms))}" for starts, period_ms in rates]
    if throttle:
        starts, period_ms = throttle
        numbers.append(f"{starts}/{iso_duration(seconds(period_ms))} evenly")
    return ", ".join(numbers)


def page_lines(page: EventPage, if_more: str) -> list[str]:
    """Return a page of events, and a note if there are more."""
    lines = [event_line(each) for each in page.events] or ["no events"]
    return [*lines, "", click.style(f"note: {if_more}", fg="yellow")] if page.has_more else lines


def event_line(event: Event) -> str:
    """Return one event as a line."""
    present = ((name, value) for name, value in event.data.items() if value not in ("", None))
    facts = " ".join(f"{name}={value}" for name, value in present)
    return printable(f"{event.at:%Y-%m-%d %H:%M:%S}  {event.type}  {facts}".rstrip())


def check_lines(check: Check) -> list[str]:
    """Return the findings of a check, each with its repair or an advice, as text."""
    findings = check.findings
    head = f"{count(len(findings), 'finding')} in {count(check.keys, 'key')}"
    lines = [click.style(head, fg="red" if findings else "green")]
    for each in findings:
        where = f"{each.key} {each.row}".strip()
        then = f"repaired: {each.repaired}" if each.repaired else each.advice
        lines += ["", printable(where), f"  {printable(each.problem)}", f"  {then}"]
    return lines


def queue_cells(queue: QueueStatus) -> tuple[Cell, ...]:
    """Return the row of a queue, with its oldest wait in seconds."""
    blocked = queue.blocked_tasks
    seen = queue.startable is not None
    return (
        queue.queue or PARKED,
        queue.waiting,
        queue.startable,
        *(blocked.get(state, 0) if seen else None for state in ("tier", "limit", "paused")),
        queue.oldest_wait_seconds,
        queue.running,
        queue.later,
        queue.dead,
    )


def _queue_table(queues: Iterable[QueueStatus]) -> list[str]:
    rows = []
    for each in queues:
        *counts, _, running, later, dead = queue_cells(each)
        rows.append((*counts, wait_text(each.oldest_wait_seconds), running, later, dead))
    return table(_QUEUE, rows)


def _shares(queue: QueueStatus) -> list[str]:
    rows = [
        (
            each.key,
            each.tier,
            number_text(each.limit),
            each.held,
            round(each.entitled, 1),
            each.waiting,
            each.startable,
            each.state,
            wait_text(each.waits_seconds),
        )
        for each in queue.tenants
    ]
    limits = [(each.key, each.reason, each.waiting) for each in queue.limits]
    lines = ["", *table(_SHARE, rows)] if rows else []
    if not queue.is_complete:
        more = queue.active + queue.blocked - len(rows)
        lines.append(f"and {count(more, 'tenant')} more: all sums are lower bounds")
    return [*lines, *(["", *table(("limit", "blocks by", "waiting"), limits)] if limits else [])]


def moved_lines(moved: Moved) -> list[str]:
    """Return the text of a move of a queue."""
    lines = [f"{printable(moved.queue)}: {count(moved.moved, 'task')} moved to {moved.to}://"]
    if moved.held_by:
        owners = ", ".join(map(printable, moved.held_by))
        lines.append(f"tasks that {owners} holds end on fairredis://")
    if moved.waiting:
        why = {
            "redis": "a pause, a cool-down or a limit of 0 holds them, or they have just come",
            "fairredis": "Redis rejects them, or they have just come",
        }[moved.to]
        lines.append(f"{count(moved.waiting, 'task')} did not move: {why}")
    return lines
