"""Why the tasks of all queues wait, and how many of them free places could start now.

A scrape checks a fixed number of tenants, so its cost does not grow with them. It checks those of
the queues with the most waiting tasks first, and one of each queue if possible. If a queue has more
tenants, its numbers are estimates, which add up to its waiting tasks.

Invariant: no call checks more than :data:`CALL_TENANTS` tenants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.reader import Command, Reader
from celery_fairness.control.queue.queue_status import merge_tenants, tenant_share, with_entitled
from celery_fairness.control.queue.views import TenantShare
from celery_fairness.limiter.redis import Limiter
from celery_fairness.util.durations import Milliseconds, seconds

#: How many tenants one scrape checks, and one call at most.
TENANTS, CALL_TENANTS = 300, 60
#: How many tenants it checks at least of each partition.
LEAST_TENANTS = 20
#: Queues whose tenants are counted before the scrape decides how many of them it checks.
COUNTED_QUEUES = 100
#: The reason of tasks whose tenants were not checked.
NOT_CHECKED = "not_checked"
READY = "ready"


@dataclass
class QueueBacklog:
    """The waiting tasks of one queue.

    Attributes:
        waiting: How many they are.
        is_checked: Whether a tenant was checked.
        is_complete: Whether all tenants were checked, so that no number is an estimate.
        reasons: Tasks by tier and reason.
        oldest_seconds: The longest wait by reason.
        tenants: The tenants that were checked, with their shares.
    """

    waiting: int
    is_checked: bool = False
    is_complete: bool = False
    reasons: dict[tuple[str, str], int] = field(default_factory=dict)
    oldest_seconds: dict[str, float] = field(default_factory=dict)
    tenants: tuple[TenantShare, ...] = ()

    @property
    def startable(self) -> int:
        """How many of the tasks free places could start now."""
        return sum(tasks for (_, reason), tasks in self.reasons.items() if reason == READY)


def backlogs(
    installation: Installation, waiting: Mapping[str, int], budget: int = TENANTS
) -> dict[str, QueueBacklog]:
    """Return the waiting tasks of queues by queue, those with the most tasks first.

    Args:
        installation: The installation.
        waiting: The number of waiting tasks by queue.
        budget: How many tenants are checked.
    """
    limiter, reader = installation.limiter, installation.reader
    if not limiter.partitions.are_several:
        return _backlogs_of(limiter, reader, waiting, budget)
    found: dict[str, list[QueueBacklog]] = {
        each: [] for each in sorted(waiting, key=lambda each: -waiting[each])
    }
    budget = max(LEAST_TENANTS, budget // limiter.partitions.count)
    for part, part_reader in zip(limiter.parts, reader.parts, strict=True):
        tasks = dict(part_reader.pairs("HSCAN", part_reader.keys.waiting))
        here = {queue: int(number) for queue, number in tasks.items() if queue in found}
        for queue, backlog in _backlogs_of(part, part_reader, here, budget).items():
            found[queue].append(backlog)
    return {queue: _merged(its) for queue, its in found.items() if its}


def _merged(its: Sequence[QueueBacklog]) -> QueueBacklog:
    """Return the backlogs of a queue in several partitions as one."""
    merged = QueueBacklog(
        waiting=sum(each.waiting for each in its),
        is_checked=any(each.is_checked for each in its),
        is_complete=all(each.is_complete for each in its),
        reasons=dict(sum((Counter(each.reasons) for each in its), Counter[tuple[str, str]]())),
        tenants=tuple(with_entitled(merge_tenants(chain(*(each.tenants for each in its))))),
    )
    for each in its:
        for reason, waits in each.oldest_seconds.items():
            oldest = merged.oldest_seconds.get(reason, 0.0)
            merged.oldest_seconds[reason] = max(waits, oldest)
    return merged


def _backlogs_of(
    limiter: Limiter, reader: Reader, waiting: Mapping[str, int], budget: int
) -> dict[str, QueueBacklog]:
    queues = sorted((each for each in waiting if waiting[each]), key=lambda each: -waiting[each])
    found = {each: QueueBacklog(waiting[each]) for each in queues}
    plan = _plan(_tenant_counts(reader, queues), budget)
    for call in _calls(plan):
        answer = limiter.backlog(call)
        for row in answer["queues"]:
            _check(found[row[0]], row, answer["now"])
    for each in found.values():
        if not each.is_checked:
            each.reasons = {("", NOT_CHECKED): each.waiting}
    return found


def _tenant_counts(reader: Reader, queues: Sequence[str]) -> dict[str, int]:
    """Return how many tenants each queue has. A queue after the first ones counts as one tenant."""
    first = queues[:COUNTED_QUEUES]
    commands: list[Command] = [
        ("ZCARD", reader.keys.of(kind, queue)) for queue in first for kind in ("active", "blocked")
    ]
    counts = iter(reader.together(commands) if commands else ())
    known = {queue: int(next(counts)) + int(next(counts)) for queue in first}
    return {queue: max(1, known.get(queue, 1)) for queue in queues}


def _plan(tenants: Mapping[str, int], budget: int) -> dict[str, int]:
    """Return how many tenants of each queue are checked."""
    plan = dict.fromkeys(list(tenants)[:budget], 1)
    left = budget - len(plan)
    for queue in plan:
        more = min(left, min(tenants[queue], CALL_TENANTS) - 1)
        plan[queue] += more
        left -= more
    return plan


def _calls(plan: Mapping[str, int]) -> Iterator[dict[str, int]]:
    call: dict[str, int] = {}
    for queue, tenants in plan.items():
        if call and sum(call.values()) + tenants > CALL_TENANTS:
            yield call
            call = {}
        call[queue] = tenants
    if call:
        yield call


def _check(queue: QueueBacklog, row: Sequence[Any], now_ms: int) -> None:
    _, active, blocked, of_active, of_blocked = row
    parts = [
        (int(total), list(rows)) for total, rows in ((active, of_active), (blocked, of_blocked))
    ]
    rows = [each for _, some in parts for each in some]
    queue.is_checked = bool(rows)
    queue.is_complete = all(len(some) >= total for total, some in parts)
    counts: Counter[tuple[str, str]] = Counter()
    estimates: dict[tuple[str, str], float] = {}
    for total, some in parts:
        for each in some:
            for reason, tasks, since in each[9]:
                place = (str(each[1]), str(reason))
                counts[place] += int(tasks)
                estimates[place] = estimates.get(place, 0.0) + tasks * total / len(some)
                if since:
                    waits = seconds(Milliseconds(max(0, now_ms - int(since))))
                    queue.oldest_seconds[reason] = max(waits, queue.oldest_seconds.get(reason, 0.0))
    queue.reasons = dict(counts) if queue.is_complete else _scaled(estimates, queue.waiting)
    if queue.is_complete:
        queue.waiting = counts.total()
    queue.tenants = tuple(with_entitled([tenant_share(each, now_ms) for each in rows]))


def _scaled(estimates: Mapping[tuple[str, str], float], total: int) -> dict[tuple[str, str], int]:
    """Return whole numbers in proportion to estimates, which add up to ``total``."""
    whole, found = sum(estimates.values()), {}
    reached, given = 0.0, 0
    for place, tasks in estimates.items():
        reached += tasks * total / whole
        found[place] = round(reached) - given
        given += found[place]
    return found
