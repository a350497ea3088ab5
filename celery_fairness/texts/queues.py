"""The texts of queues: their tasks, their tenants' shares, their limits and their moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from celery_fairness.config.numbers import PARTITION, numbers_of
from celery_fairness.control.key.limit_in_force import number_text
from celery_fairness.control.queue.views import (
    PartitionLimit,
    QueueLimit,
    QueueState,
    QueueStatus,
)
from celery_fairness.texts.format import PARKED, Cell, count, table, wait_text
from celery_fairness.transport.migration import Moved
from celery_fairness.transport.other_installation import MovedHere
from celery_fairness.util.printable import printable

_QUEUE = (
    *("queue", "waiting", "startable", "at tier limit", "at other limit", "paused"),
    *("oldest wait", "running", "delayed", "dead"),
)
_SHARE = (
    *("tenant", "tier", "limit", "held", "entitled", "waiting", "startable", "state"),
    "first waits",
)


def queue_limit_lines(found: QueueLimit) -> list[str]:
    """Return a queue's limit, and that of its partitions."""
    queue = printable(found.queue)
    lines = [f"{queue}: {_limit_text('queue', found)}; {found.held} running"]
    if found.partition is not None:
        lines.append(f"{queue}, each partition: {_limit_text(PARTITION, found.partition)}")
    return lines


def _limit_text(holder: str, found: QueueLimit | PartitionLimit) -> str:
    numbers = [
        f"{word} {each.kind.show_one(getattr(found, word))}"
        for word, each in numbers_of(holder).items()
        if getattr(found, word) is not None
    ]
    whose = {"people": "set by an operator", "settings": "of the settings"}.get(
        found.source, "declared by nobody"
    )
    return f"{', '.join(numbers) or 'unlimited'}, on limit {found.on_limit}; {whose}"


def queues_lines(found: Sequence[QueueState]) -> list[str]:
    """Return queues with their limits."""
    counted = [each.tasks for each in found if each.tasks is not None]
    limits = [line for each in found if each.limit for line in queue_limit_lines(each.limit)]
    lines = queue_table(counted) if counted else []
    if limits:
        lines += [*([""] if lines else []), "limits", *limits]
    return lines or ["no queue is known"]


def queue_lines(found: QueueState) -> list[str]:
    """Return one queue with its limit."""
    lines = []
    if found.tasks is not None:
        lines = [*queue_table([found.tasks]), *_shares(found.tasks), ""]
    own = queue_limit_lines(found.limit) if found.limit else [f"{printable(found.queue)}: no limit"]
    return [*lines, *own]


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
        queue.delayed,
        queue.dead,
    )


def queue_table(queues: Iterable[QueueStatus]) -> list[str]:
    """Return the counts of queues as a table."""
    rows = []
    for each in queues:
        *counts, _, running, delayed, dead = queue_cells(each)
        rows.append((*counts, wait_text(each.oldest_wait_seconds), running, delayed, dead))
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


def moved_here_lines(found: MovedHere) -> list[str]:
    """Return the text of a move from another installation."""
    source = printable(found.source)
    lines = [
        f"{printable(queue)}: {count(tasks, 'task')} moved from {source}"
        for queue, tasks in found.moved.items()
    ] or [f"no task moved from {source}"]
    lines += [f"copied: {printable(change)}" for change in found.copied]
    if found.running:
        lines.append(
            f"{count(found.running, 'task')} still running there: run the command again before you "
            "stop its worker, because a retry waits there"
        )
    if found.waiting:
        lines.append(f"{count(found.waiting, 'task')} left there: run the command again")
    return lines
