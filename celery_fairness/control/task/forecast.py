"""Estimates when a task will start, from the tasks before it and their usual run time.

The function ``explain`` of the library returns a sample of the tenants whose turn comes before, and
about how many there are. The run time is known if tasks of that name have ended lately. Without it
there is no estimate.

Weakness: an estimate cannot foresee tasks that arrive later and go first, tasks that end early, and
workers that start or stop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from statistics import fmean
from typing import Any, NamedTuple

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.settings import Enforcement, Settings
from celery_fairness.control.installation.task_records import Row, TaskHead, read_row
from celery_fairness.control.key.snapshot import KeyState
from celery_fairness.limiter.types import HeldLease

#: Steps of a binary search for a time, which make it exact enough.
HALVINGS = 30


class Before(NamedTuple):
    """The tasks that start before a task.

    Attributes:
        tasks: Number of tasks.
        takes: Mean time for which each holds its slot, in seconds, or None if unknown.
    """

    tasks: int
    takes: float | None = None


class Turn(NamedTuple):
    """The position of a tenant among active tenants, or among tenants that wait at a limit.

    Attributes:
        key: Key of the tenant.
        at: Its virtual time there: its start, or its finish tag.
        tasks: Number of its waiting tasks there.
        charge: Advance of its virtual time with each task.
        takes: Time for which each task holds its slot, in seconds, or None if unknown.
        limit: Number of its tasks that run at once. None is unlimited.
    """

    key: str
    at: float
    tasks: int
    charge: float
    takes: float | None = None
    limit: int | None = None


def wait_for_ends(
    holders: Sequence[HeldLease], held: int, ends: int, takes: float | None = None
) -> float | None:
    """Return the seconds until the nth of the slots becomes free, or None if unknown.

    The next task takes each free slot at once. A task that has run for longer than usual is
    expected to run as long again as it is late.

    Args:
        holders: Holders of the slots, or a sample of them.
        held: Number of all slots that are held.
        ends: The end to wait for, counted from 1.
        takes: Run time of the tasks that take the slots next, in seconds. None is the run time of
            the present holders.
    """
    usual = [each.usual_seconds for each in holders if each.usual_seconds is not None]
    ages = [each.held_seconds for each in holders if each.held_seconds is not None]
    if not usual or not ages:
        return None
    mean = fmean(usual)
    # A holder without a usual time may be of a task that runs longer, so ages count as well.
    later = max(mean, fmean(ages)) if takes is None else takes * _longer(holders)
    left = sorted(
        abs((later if each.usual_seconds is None else each.usual_seconds) - each.held_seconds)
        for each in holders
        if each.held_seconds is not None
    )
    return _nth_end(left, later, max(1, ceil(ends * len(left) / held)))


def _nth_end(left: Sequence[float], takes: float, nth: int) -> float:
    """Return the time of the nth end, in seconds from now, if each slot is taken again at once.

    Args:
        left: Remaining seconds of the present holders, the shortest first.
        takes: Run time of each task that follows, in seconds.
        nth: The end to wait for, counted from 1.
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
    """Return the ratio of the holders' ages to their usual run times; at least 1."""
    both = [
        (each.held_seconds, each.usual_seconds)
        for each in holders
        if each.held_seconds is not None and each.usual_seconds is not None
    ]
    usual = sum(usual for _, usual in both)
    return max(1.0, sum(age for age, _ in both) / usual) if usual else 1.0


def wait_for_slot(state: KeyState, limit: int, before: Before) -> float | None:
    """Return the seconds until a key has the slots of a task, or None if unknown.

    Tasks that go before are expected to take one slot each.
    """
    free, ends = limit - state.held, before.tasks + min(state.limit["slots"] or 1, limit)
    ends -= free
    if ends <= 0:
        return 0.0
    if free <= 0:
        return wait_for_ends(state.leases, state.held, ends, before.takes)
    if before.takes is None:
        return None
    # Other tasks take the free slots at once, and hold them for the usual time. The leases may be a
    # sample, so the free slots are one too.
    taken = HeldLease("", 0.0, held_seconds=0.0, usual_seconds=before.takes)
    part = len(state.leases) / state.held if state.held else 1.0
    holders = (*state.leases, *(taken for _ in range(ceil(free * part))))
    return wait_for_ends(holders, limit, ends, before.takes)


def wait_for_limit(state: KeyState, before: Before, logical_ms: float) -> float | None:
    """Return the seconds until a limit lets a task start after others, or None if unknown.

    ``logical_ms`` is the logical time of the snapshot.
    """
    limit = state.limit
    by_starts = _wait_for_rates(state, before.tasks, logical_ms)
    if limit["concurrency"] is None:
        return by_starts
    by_slots = wait_for_slot(state, limit["concurrency"], before)
    return None if by_slots is None else max(by_slots, by_starts)


def before_it(turns: Sequence[Turn], mine: Turn, of_all: int, places: int = 0) -> Before:
    """Return the tasks of all tenants that have their turn before a task.

    No tenant runs more tasks at once than its limit. So if tenants share ``places``, a tenant may
    start fewer tasks than it has turns until then.

    Args:
        turns: Positions of the other tenants, or of the first of them.
        mine: Position of the task's tenant, whose ``tasks`` are those before the task.
        of_all: Number of all other tenants.
        places: Number of tasks that run at once, or 0 to ignore the tenants' limits.
    """
    until = mine.at + mine.tasks * mine.charge
    others = [
        (each, min(each.tasks, _turns_until(each, until, mine.key)))
        for each in turns
        if each.at <= until and each.key != mine.key
    ]
    more = of_all / len(turns) if 0 < len(turns) < of_all else 1.0
    known = [each.takes for each, _ in [*others, (mine, 0)] if each.takes is not None]
    usual = fmean(known) if known else 1.0
    all_of_it = [(mine, float(mine.tasks))]
    all_of_it += [(each, tasks * more) for each, tasks in others]
    if places:
        seconds = _seconds_until(all_of_it, usual, places, more)
        all_of_it = [(each, _most(each, n, seconds, usual, more)) for each, n in all_of_it]
    tasks = sum(number for _, number in all_of_it)
    work = sum(number * (each.takes or usual) for each, number in all_of_it)
    return Before(int(tasks), work / tasks if known and tasks else None)


def _turns_until(each: Turn, until: float, key: str) -> int:
    """Return the number of a tenant's turns until another's; the key decides between equals."""
    turns = (until - each.at) / each.charge
    return ceil(turns) if each.key > key else int(turns) + 1


def _most(each: Turn, tasks: float, seconds: float, usual: float, more: float) -> float:
    """Return the number of tasks that a tenant has started after some seconds."""
    if each.limit is None:
        return tasks
    return min(tasks, more * each.limit * seconds / (each.takes or usual))


def _seconds_until(
    turns: Iterable[tuple[Turn, float]], usual: float, places: int, more: float
) -> float:
    """Return the seconds until the slots have done all this work within the tenants' limits.

    The work that is done grows with time, ever more slowly, so exactly one time fits.
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


def _wait_for_rates(state: KeyState, before: int, logical: float) -> float:
    """Return the seconds until the rates and the throttle of a limit allow a start; 0 is now.

    Tasks that go ``before`` are expected to start as soon as they may, and to take as many units.
    """
    limit, waits_ms = state.limit, [0.0]
    for (starts, period_ms), started in zip(limit["rate"] or (), state.started, strict=True):
        # A window allows a start when the start that is ``starts`` places earlier has left it. That
        # may be a task that goes before and has not started yet, so count whole periods (rounds)
        # until it is one that has.
        units = min(limit["units"] or 1, starts)
        needed = (before + 1) * units
        rounds = max(0, ceil((needed - starts) / starts))
        leaves = sum(number for _, number in started) + needed - starts - rounds * starts
        wait_ms: float = rounds * period_ms
        for at, number in started:
            if leaves > 0:
                wait_ms = at + (rounds + 1) * period_ms + 1 - logical
            leaves -= number
        waits_ms.append(wait_ms)
    for starts, period_ms in limit["throttle"] or ():
        interval = period_ms / starts
        due = logical if state.ideal_ms is None else state.ideal_ms + interval
        waits_ms.append(due + before * interval - logical)
    return max(waits_ms) / 1000


class Positions:
    """The positions of one task, by the answer of the function ``explain``."""

    def __init__(self, answer: Mapping[str, Any], task: TaskHead, settings: Settings) -> None:
        self._answer = answer
        self._by_runtime = settings.fairness_by == "runtime"
        self._enforced = settings.enforcement is Enforcement.ON
        read = (read_row(*row) for row in answer.get("rows", ()))
        rows = [row for row in read if row is not None]
        its = [row for row in rows if row.queue == task.queue]
        means = answer.get("means", {})
        self._holders = [_holder(row, float(answer["logical"]), means) for row in its]
        #: Number of the slots that tasks of the queue hold.
        self._held = len(its) and max(1, len(its) * answer["running"] // len(rows))
        of_name: defaultdict[str, list[float]] = defaultdict(list)
        for row in rows:
            if row.mean_ms is not None:
                of_name[row.task.name].append(row.mean_ms / 1000)
        #: How long tasks of a name hold their slots, in seconds.
        self._takes = {name: fmean(each) for name, each in of_name.items()}

    @property
    def in_lane(self) -> int:
        """Number of tasks before it with its tenant, its priority and its limits."""
        return int(self._answer["in_lane"])

    @property
    def is_least(self) -> bool:
        """Whether :attr:`in_lane` is a lower bound."""
        return bool(self._answer.get("is_least"))

    @property
    def tenants_ahead(self) -> int | None:
        """Number of active tenants before its own; None if its own is not active."""
        found: int | None = self._answer.get("tenants_ahead")
        return found

    def _before_in_queue(self) -> Before | None:
        """Return the tasks before it in its queue; None if its tenant has no position there."""
        place = self._answer.get("turn")
        return None if place is None else self._before(place, self._held)

    def wait_in_queue(self) -> float | None:
        """Return the seconds until a slot is free for it, or None if unknown."""
        before = self._before_in_queue()
        if before is None or not self._holders:
            return None
        return wait_for_ends(self._holders, self._held, before.tasks + 1, before.takes)

    def before(self, limit: Limit) -> Before:
        """Return the tasks before it at one of its limits, whose numbers apply."""
        place = self._answer["turns"].get(limit.key)
        if place is None:
            # It is the limit of the whole queue.
            return self._before_in_queue() or Before(0)
        if "of_all" not in place:
            mine = self._turn(place["mine"])
            return Before(mine.tasks, mine.takes)
        return self._before(place, limit["concurrency"] or 0)

    def _before(self, place: Mapping[str, Any], slots: int) -> Before:
        turns = [self._turn(each) for each in place["turns"] or ()]
        return before_it(turns, self._turn(place["mine"]), place["of_all"], slots)

    def _turn(self, row: Any) -> Turn:
        key, at, tasks, charge, names, mean, limit = row
        takes = mean if self._by_runtime and mean >= 0 else self._usual(names)
        most = limit if self._enforced and limit >= 0 else None
        return Turn(key, at, int(tasks), charge, takes, most)

    def _usual(self, names: list[str]) -> float | None:
        known = [self._takes[name] for name in names if name in self._takes]
        return fmean(known) if known else None


def _holder(row: Row, logical: float, means: Mapping[str, float]) -> HeldLease:
    held = None if row.since is None else max(0.0, (logical - row.since) / 1000)
    usual = means.get(row.task.key) if row.mean_ms is None else row.mean_ms / 1000
    return HeldLease("", 0.0, held_seconds=held, usual_seconds=usual)
