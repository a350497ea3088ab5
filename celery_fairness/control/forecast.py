"""When a task will start, from what goes before it and how long that takes.

How long a task holds its place is known where those of its kind have ended lately (``took``); else
nothing is said. What comes later and goes before it, tasks that end early, and workers that come or
go are not foreseen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from celery_fairness.config.limit_spec import Limit
from celery_fairness.control.keys import Row
from celery_fairness.control.opening import starts_wait_seconds
from celery_fairness.control.scan import Reader
from celery_fairness.control.tenant_state import with_row
from celery_fairness.limiter.types import HeldLease, LimitState

#: Halvings after which a time is known well enough.
HALVINGS = 30


class Before(NamedTuple):
    """What goes before a task.

    Attributes:
        tasks: How many.
        takes: How long each of them holds its place, in seconds, in the mean; None where that is
            not known.
    """

    tasks: int
    takes: float | None = None


class Turn(NamedTuple):
    """A tenant where it stands among others: in a ring, or among those that wait at a limit.

    Attributes:
        key: Who.
        at: Where it stands: its start, or its tag.
        tasks: How many it has there.
        charge: What each of its tasks moves it.
        takes: How long each holds its place, in seconds; None where that is not known.
        limit: How many of them run at once; None is unlimited.
    """

    key: str
    at: float
    tasks: int
    charge: float
    takes: float | None = None
    limit: int | None = None


class Places:
    """The places of workers that tasks of one queue hold now.

    Args:
        rows: Tasks that run, or some of them.
        running: How many do.
        queue: Which.
        logical: The logical time.
        means: By tenant's key, how long its tasks take, in seconds, where that is known.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        running: int,
        queue: str,
        logical: float,
        means: Mapping[str, float],
    ) -> None:
        its = [row for row in rows if row.queue == queue]
        holders = (with_row(HeldLease("", 0.0), row, logical) for row in its)
        self.holders = [
            each
            if each.usual_seconds is not None
            else replace(each, usual_seconds=means.get(each.charged))
            for each in holders
        ]
        self.held = max(1, len(its) * running // len(rows)) if its else 0
        of_kind: defaultdict[str, list[float]] = defaultdict(list)
        for row in rows:
            if row.mean_ms is not None:
                of_kind[row.task.kind].append(row.mean_ms / 1000)
        self._takes = {kind: sum(each) / len(each) for kind, each in of_kind.items()}

    def takes(self, kind: str) -> float | None:
        """Return how long tasks of a kind hold their places, in seconds; None: nobody knows."""
        return self._takes.get(kind)

    def wait(self, before: Before) -> float | None:
        """Return how long until one is free for a task; None where that is not known."""
        if not self.holders:
            return None
        return wait_for_ends(self.holders, self.held, before.tasks + 1, before.takes)


def wait_for_ends(
    holders: Sequence[HeldLease], held: int, ends: int, takes: float | None = None
) -> float | None:
    """Return how long until so many places are free again; None where that is not known.

    Each place is taken again at once. What takes longer than is usual is expected to go on for as
    long again as it did since.

    Args:
        holders: Who hold the places, or some of them.
        held: How many there are.
        ends: The how manieth end, from 1.
        takes: How long those take that hold them next, in seconds; None: as long as these.
    """
    usual = [each.usual_seconds for each in holders if each.usual_seconds is not None]
    ages = [each.held_seconds for each in holders if each.held_seconds is not None]
    if not usual or not ages:
        return None
    mean = sum(usual) / len(usual)
    # Those of whom nothing is known may be of a kind that takes longer.
    later = max(mean, sum(ages) / len(ages)) if takes is None else takes * _longer(holders)
    left = sorted(
        abs((later if each.usual_seconds is None else each.usual_seconds) - each.held_seconds)
        for each in holders
        if each.held_seconds is not None
    )
    return _nth_end(left, later, max(1, ceil(ends * len(left) / held)))


def _nth_end(left: Sequence[float], takes: float, nth: int) -> float:
    """Return when so many have ended, where each place is taken again at once.

    Args:
        left: How long those go on that hold the places, the shortest first.
        takes: How long each does that takes one.
        nth: How many, from 1.
    """
    first, last = left[0], left[(nth - 1) % len(left)] + (nth - 1) // len(left) * takes
    for _ in range(HALVINGS if takes > 0 else 0):
        middle = (first + last) / 2
        if sum(int((middle - each) / takes) + 1 for each in left if each <= middle) < nth:
            first = middle
        else:
            last = middle
    return last


def _longer(holders: Iterable[HeldLease]) -> float:
    """Return how many times as long as is usual those have taken already that run; at least 1."""
    both = [
        (each.held_seconds, each.usual_seconds)
        for each in holders
        if each.held_seconds is not None and each.usual_seconds is not None
    ]
    usual = sum(usual for _, usual in both)
    return max(1.0, sum(age for age, _ in both) / usual) if usual else 1.0


def wait_for_slot(state: LimitState, limit: int, before: Before) -> float | None:
    """Return how long until a key has a slot for a task; None where that is not known."""
    free = limit - state.held
    if before.tasks < free:
        return 0.0
    if free <= 0:
        return wait_for_ends(state.leases, state.held, before.tasks + 1 - free, before.takes)
    if before.takes is None:
        return None
    # What is free is taken at once, and not for longer than the others.
    taken = HeldLease("", 0.0, held_seconds=0.0, usual_seconds=before.takes)
    holders = (*state.leases, *(taken for _ in range(free)))
    return wait_for_ends(holders, limit, before.tasks + 1 - free, before.takes)


def wait_for_limit(reader: Reader, limit: Limit, state: LimitState, before: Before) -> float | None:
    """Return how long until a limit lets a task start that some go before."""
    by_starts = starts_wait_seconds(reader, limit, before.tasks)
    if limit.concurrency is None:
        return by_starts
    by_slots = wait_for_slot(state, limit.concurrency, before)
    return None if by_slots is None else max(by_slots, by_starts)


def before_it(turns: Sequence[Turn], mine: Turn, of_all: int, places: int = 0) -> Before:
    """Return what has its turn before the task behind ``mine.tasks``.

    Nobody runs more at once than its limit: where ``places`` are shared, a tenant has had at most
    so many of them until the task starts, though it was its turn more often.

    Args:
        turns: Others, or the first of them.
        mine: Its tenant; ``tasks`` are those that it has before it.
        of_all: How many others there are.
        places: How many tasks run at once; 0: that many limits keep no tenant from its turn.
    """
    until = mine.at + mine.tasks * mine.charge
    others = [
        (each, min(each.tasks, _turns_until(each, until, mine.key)))
        for each in turns
        if each.at <= until and each.key != mine.key
    ]
    more = of_all / len(turns) if len(turns) < of_all else 1.0
    known = [each.takes for each, _ in [*others, (mine, 0)] if each.takes is not None]
    usual = sum(known) / len(known) if known else 1.0
    all_of_it = [(mine, float(mine.tasks))]
    all_of_it += [(each, tasks * more) for each, tasks in others]
    if places:
        seconds = _seconds_until(all_of_it, usual, places, more)
        all_of_it = [(each, _most(each, n, seconds, usual, more)) for each, n in all_of_it]
    tasks = sum(number for _, number in all_of_it)
    work = sum(number * (each.takes or usual) for each, number in all_of_it)
    return Before(int(tasks), work / tasks if known and tasks else None)


def _turns_until(each: Turn, until: float, key: str) -> int:
    """Return how often it is a tenant's turn until it is that of another: of equal ones by key."""
    turns = (until - each.at) / each.charge
    return ceil(turns) if each.key > key else int(turns) + 1


def _most(each: Turn, tasks: float, seconds: float, usual: float, more: float) -> float:
    """Return how many of its tasks a tenant has started after so many seconds."""
    if each.limit is None:
        return tasks
    return min(tasks, more * each.limit * seconds / (each.takes or usual))


def _seconds_until(
    turns: Iterable[tuple[Turn, float]], usual: float, places: int, more: float
) -> float:
    """Return when places have done all of this, where nobody has more of them than its limit.

    What is done by then grows ever slower with the time, so there is one such moment.
    """
    mine, *others = turns
    own = (mine[1] + 1) * (mine[0].takes or usual)
    first, last = 0.0, (own + sum(n * (each.takes or usual) for each, n in others)) / places
    for _ in range(HALVINGS):
        middle = (first + last) / 2
        done = sum(
            _most(each, n, middle, usual, more) * (each.takes or usual) for each, n in others
        )
        if places * middle < own + done:
            first = middle
        else:
            last = middle
    return last
