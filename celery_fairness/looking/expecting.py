"""When a task will start, from what goes before it and how long that takes.

How long a task holds its place is known where those of its kind have ended lately (``took``); else
nothing is said. What comes later and goes before it, tasks that end early, and workers that come or
go are not foreseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import NamedTuple

from celery_fairness.decision import HeldLease, LimitState
from celery_fairness.looking.keys import (
    TaskName,
    order_key,
    part_key,
    part_length,
    read_part,
)
from celery_fairness.looking.opening import starts_wait_seconds
from celery_fairness.looking.places import LANES_AT_MOST
from celery_fairness.looking.reading import Command, Reader, batches
from celery_fairness.scheduling.limits import WHOLE, Limit

#: Tenants that are asked how much they have before a task; of more, these stand for all.
TENANTS_AT_MOST = 1000
#: Tenants asked in one call.
BATCH = 100


def wait_for_ends(holders: Sequence[HeldLease], held: int, ends: int) -> float | None:
    """Return how long until so many places are free again; None where that is not known.

    Each place is taken again at once, for as long. What takes longer than is usual is expected to
    go on for as long again as it did since.

    Args:
        holders: Who hold the places, or some of them.
        held: How many there are.
        ends: The how manieth end, from 1.
    """
    usual = [each.usual_seconds for each in holders if each.usual_seconds is not None]
    ages = [each.held_seconds for each in holders if each.held_seconds is not None]
    if not usual or not ages:
        return None
    takes = max(sum(usual) / len(usual), sum(ages) / len(ages))
    left = sorted(abs(takes - age) for age in ages)
    nth = max(1, ceil(ends * len(ages) / held))
    return left[(nth - 1) % len(left)] + (nth - 1) // len(left) * takes


def wait_for_slot(state: LimitState, limit: int, before: int) -> float | None:
    """Return how long until a key has a slot for a task that so many go before."""
    ends = state.held - limit + before + 1
    return wait_for_ends(state.leases, state.held, ends) if ends > 0 else 0.0


def wait_for_limit(reader: Reader, limit: Limit, state: LimitState, before: int) -> float | None:
    """Return how long until a limit lets a task start that so many go before."""
    by_starts = starts_wait_seconds(reader, limit, before)
    if limit.concurrency is None or state.held - limit.concurrency + before < 0:
        return by_starts
    by_slots = wait_for_slot(state, limit.concurrency, before)
    return None if by_slots is None else max(by_slots, by_starts)


class Turn(NamedTuple):
    """A tenant where it stands among others: in a ring, or among those that wait at a limit.

    Attributes:
        key: Who.
        at: Where it stands: its start, or its tag.
        tasks: How many it has there.
        charge: What each of its tasks moves it.
    """

    key: str
    at: float
    tasks: int
    charge: float


def before_it(turns: Sequence[Turn], mine: Turn, of_all: int) -> int:
    """Return how many tasks of all have their turn before the one behind ``mine.tasks``.

    Args:
        turns: Others, or the first of them.
        mine: Its tenant; ``tasks`` are those that it has before it.
        of_all: How many others there are.
    """
    until = mine.at + mine.tasks * mine.charge
    others = sum(
        min(each.tasks, int((until - each.at) / each.charge) + 1)
        for each in turns
        if each.at <= until and each.key != mine.key
    )
    return mine.tasks + (others * of_all // len(turns) if len(turns) < of_all else others)


class Turns:
    """Reads who goes before a task.

    Args:
        reader: Of the installation.
        queue: In which it waits.
        task: Which.
        weights: Of the tiers.
        by_runtime: Tasks are charged by the time they take.
    """

    def __init__(
        self,
        reader: Reader,
        queue: str,
        task: TaskName,
        weights: dict[str, float],
        by_runtime: bool,
    ) -> None:
        self._reader = reader
        self._queue = queue
        self._task = task
        self._weights = weights
        self._by_runtime = by_runtime

    def in_lane(self, group: str) -> int:
        """Return how many of its tenant go before it in its lane, which stands in a group."""
        return sum(
            self._older(part)
            for part in self._parts(group)
            if read_part(part)[0] == self._task.lane
        )

    def in_group(self, group: str) -> int:
        """Return how many of its tenant go before it in all lanes of a group, or that are ready."""
        parts = self._parts(group)
        higher = [part for part in parts if part[0] > self._task.rank]
        lengths = self._reader.together([self._length(self._task.key, part) for part in higher])
        same = [part for part in parts if part[0] == self._task.rank]
        return sum(map(int, lengths)) + sum(map(self._older, same))

    def in_ring(self) -> int | None:
        """Return how many of all tenants go before it in the ring; None where it is in none."""
        ring = self._reader.keys.of("ring", self._queue)
        at = self._reader.read("ZSCORE", ring, self._task.key)
        if at is None:
            return None
        mine = Turn(
            self._task.key, float(at), self.in_group(""), self._charges([self._task.key])[0]
        )
        until = mine.at + mine.tasks * mine.charge
        count, flat = self._reader.together(
            [
                ("ZCOUNT", ring, "-inf", until),
                ("ZRANGEBYSCORE", ring, "-inf", until, "WITHSCORES", "LIMIT", 0, TENANTS_AT_MOST),
            ]
        )
        starts = dict(zip(flat[::2], map(float, flat[1::2]), strict=True))
        turns: list[Turn] = []
        for keys in batches(starts, BATCH):
            counts = self._reader.together(
                [("HGET", self._account(key), f"q:{self._queue}") for key in keys]
            )
            turns += [
                Turn(key, starts[key], int(tasks or 0), charge)
                for key, tasks, charge in zip(keys, counts, self._charges(keys), strict=True)
            ]
        return before_it(turns, mine, int(count))

    def before(self, limit: Limit, group: str) -> int:
        """Return how many go before it at one of its limits, where its lane stands in a group."""
        if limit.of == WHOLE:
            return self.in_ring() or 0
        if limit.key == self._task.key:
            return self.in_group(group)
        return self.at_limit(limit.key, group)

    def at_limit(self, limit_key: str, group: str) -> int:
        """Return how many of all go before it at a limit at which its lane waits in a group."""
        reader, keys, lane = self._reader, self._reader.keys, self.in_lane(group)
        at = reader.read("ZSCORE", keys.of("group", f"{group} {self._queue}"), self._task.key)
        if at is None:
            return lane
        mine = Turn(self._task.key, float(at), lane, self._charges([self._task.key])[0])
        until = mine.at + mine.tasks * mine.charge
        turns: list[Turn] = []
        count = 0
        for name, where in self._groups(limit_key):
            members = keys.of("group", f"{name} {where}")
            some = TENANTS_AT_MOST - len(turns)
            number, flat = reader.together(
                [
                    ("ZCOUNT", members, "-inf", until),
                    ("ZRANGEBYSCORE", members, "-inf", until, "WITHSCORES", "LIMIT", 0, some),
                ]
            )
            count += int(number)
            tags = dict(zip(flat[::2], map(float, flat[1::2]), strict=True))
            for some_keys in batches(tags, BATCH):
                sizes = self._shelved(some_keys, name, where)
                turns += [
                    Turn(key, tags[key], tasks, charge)
                    for key, tasks, charge in zip(
                        some_keys, sizes, self._charges(some_keys), strict=True
                    )
                ]
        return before_it(turns, mine, count)

    # -- what a tenant has ------------------------------------------------------------------------

    def _parts(self, group: str) -> list[str]:
        order = order_key(self._reader.keys, self._task.key, group, self._queue)
        return list(self._reader.read("ZRANGE", order, 0, LANES_AT_MOST))

    def _length(self, key: str, part: str, queue: str | None = None) -> Command:
        return part_length(self._reader.keys, key, part, self._queue if queue is None else queue)

    def _older(self, part: str) -> int:
        """Return how many tasks of a part are older than the task: they are in their order."""
        key = part_key(self._reader.keys, self._task.key, part, self._queue)
        if read_part(part)[1] is not None:
            return int(self._reader.read("ZCOUNT", key, "-inf", f"({self._task.seq}"))
        first, end = 0, int(self._reader.read("LLEN", key))
        while first < end:
            middle = (first + end) // 2
            record = self._reader.read("LINDEX", key, middle)
            if record is not None and int(record.partition(" ")[0]) < self._task.seq:
                first = middle + 1
            else:
                end = middle
        return first

    def _groups(self, limit_key: str) -> Iterator[tuple[str, str]]:
        """Yield the groups that wait at a key, and their queues."""
        keys = self._reader.keys
        for both in self._reader.read("LRANGE", keys.of("waited", limit_key), 0, LANES_AT_MOST):
            queue = both.partition(" ")[2]
            for group in self._reader.read("ZRANGE", keys.of("wait", both), 0, LANES_AT_MOST):
                yield group, queue

    def _shelved(self, tenants: Sequence[str], group: str, queue: str) -> list[int]:
        keys = self._reader.keys
        shelves = self._reader.together(
            [("ZRANGE", order_key(keys, key, group, queue), 0, LANES_AT_MOST) for key in tenants]
        )
        parts = [(key, part) for key, shelf in zip(tenants, shelves, strict=True) for part in shelf]
        lengths = self._reader.together([self._length(*each, queue) for each in parts])
        sizes = dict.fromkeys(tenants, 0)
        for (key, _), length in zip(parts, lengths, strict=True):
            sizes[key] += int(length)
        return list(sizes.values())

    # -- what its tasks charge --------------------------------------------------------------------

    def _account(self, key: str) -> str:
        return self._reader.keys.of("account", key)

    def _charges(self, tenants: Sequence[str]) -> list[float]:
        """Return what a task of each charges it; of those that are charged by cost, 1 each."""
        rows = self._reader.together(
            [("HMGET", self._account(key), "tier", "tenant", "mean") for key in tenants]
        )
        told = self._reader.together(
            [
                ("HGET", self._reader.keys.of("tenant", tenant or ""), "tier")
                for _, tenant, _ in rows
            ]
        )
        return [
            (float(mean) if mean and self._by_runtime else 1.0)
            / self._weights.get(published or tier or "", 1.0)
            for (tier, _, mean), published in zip(rows, told, strict=True)
        ]
