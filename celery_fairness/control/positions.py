"""The tasks before a task: in its lane, among its queue's active tenants, and at a shared limit.

The first tasks of a tenant are a sample for the cost and the run time of all its tasks.

Weakness: a tenant's limit is its tier's or its own here, without holds and overrides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from celery_fairness.config.limit_spec import WHOLE, Limit
from celery_fairness.control.find_task import heads_of
from celery_fairness.control.forecast import Before, HeldSlots, Turn, before_it
from celery_fairness.control.keys import TaskHead, class_of, key_of_limit, lane_key, order_key
from celery_fairness.control.scan import LANES_AT_MOST, Command, Reader, batches
from celery_fairness.control.stats import Stats
from celery_fairness.scheduler.cost import FIRST_SECONDS, cost_of
from celery_fairness.scheduler.types import SYSTEM

#: Size of the sample of tenants whose tasks before a task are counted.
TENANTS_AT_MOST = 1000
#: Tenants in one call.
BATCH = 100
#: Size of the sample of a tenant's tasks.
FIRST_TASKS = 4


class Ask(NamedTuple):
    """A request for the position of a tenant.

    Attributes:
        key: Key of the tenant.
        at: Its virtual time there.
        group: Wait group of its lanes, or "" for lanes that are ready.
        queue: Name of the queue.
    """

    key: str
    at: float
    group: str
    queue: str


class Account(NamedTuple):
    """The state of a tenant.

    Attributes:
        limit: Number of its tasks that may run at once. None is unlimited.
        weight: Its share among waiting tenants.
        mean: Mean run time of its tasks in seconds, if that is their cost.
    """

    limit: int | None
    weight: float
    mean: float | None


def means_of(reader: Reader, tenants: Iterable[str]) -> dict[str, float]:
    """Return the mean run times of tenants in seconds, if those are their tasks' costs."""
    found: dict[str, float] = {}
    for some in batches(tenants, BATCH):
        means = reader.together([("HGET", reader.keys.of("account", key), "mean") for key in some])
        found |= {key: float(mean) for key, mean in zip(some, means, strict=True) if mean}
    return found


class Turns:
    """Reads the tasks before a task.

    Args:
        reader: The reader of the installation.
        queue: Queue of the task.
        task: The task.
        looker: The statistics of the installation.
        slots: The slots that tasks of the queue hold.
    """

    def __init__(
        self, reader: Reader, queue: str, task: TaskHead, looker: Stats, slots: HeldSlots
    ) -> None:
        self._reader = reader
        self._queue = queue
        self._task = task
        self._looker = looker
        self._slots = slots
        self._tiers = looker.tiers()

    def in_lane(self, group: str) -> int:
        """Return the number of tasks before it with its priority and limits, in a wait group."""
        lanes = self._lanes(group)
        return sum(self._older(lane) for lane in lanes if class_of(lane) == self._task.class_)

    def in_group(self, group: str) -> int:
        """Return the number of its tenant's tasks before it in all lanes of a wait group."""
        lanes = self._lanes(group)
        higher = [lane for lane in lanes if lane[0] > self._task.rank]
        lengths = self._reader.together([self._length(self._task.key, lane) for lane in higher])
        same = [lane for lane in lanes if lane[0] == self._task.rank]
        return sum(map(int, lengths)) + sum(map(self._older, same))

    def before(self, limit: Limit, group: str) -> Before:
        """Return the tasks before it at one of its limits.

        Args:
            limit: The limit, with the numbers that apply.
            group: Wait group of its lane.
        """
        if limit.of == WHOLE:
            return self.in_ring(group) or Before(0)
        if limit.key == self._task.key:
            mine = self._mine(0.0, group, self.in_group(group))
            return Before(mine.tasks, mine.takes)
        return self._at_limit(limit, group)

    def in_ring(self, group: str) -> Before | None:
        """Return the tasks before it in its queue; None if its tenant has no position there.

        A tenant at its limit gets its position back when one of its tasks ends. A tenant that is
        paused, or waits for other limits, does not count.

        Args:
            group: Wait group of its lane.
        """
        keys, queue, own = self._reader.keys, self._queue, self._task.key
        ring, full = keys.of("ring", queue), keys.of("full", queue)
        virtual, ready, waits = self._reader.together(
            [("HGET", keys.virtual, queue), ("ZSCORE", ring, own), ("ZSCORE", full, own)]
        )
        if ready is None and waits is None:
            return None
        now = float(virtual or 0.0)
        at = float(ready) if ready is not None else max(float(waits), now)
        mine = self._mine(at, group, self.in_group(group))
        until = mine.at + mine.tasks * mine.charge
        of_ring, in_ring = self._until(ring, until)
        of_full, in_full = self._until(full, until)
        back = self._at_their_limit(in_full)
        asks = [Ask(key, start, "", queue) for key, start in in_ring.items()]
        asks += [Ask(key, max(in_full[key], now), "", queue) for key in back]
        of_all = of_ring + (of_full * len(back) // len(in_full) if in_full else 0)
        return before_it(self._turns(asks), mine, of_all, self._slots.held)

    def ahead_in_ring(self) -> int | None:
        """Return the number of active tenants before its own; None if its own is not active.

        If priorities order the whole queue, each tenant's first ready task counts.
        """
        keys, key = self._reader.keys, self._task.key
        ranked = keys.of("ranked", self._queue)
        found = self._reader.read("ZSCORE", ranked, key) if self._looker.by_rank else None
        if found is None:
            place = self._reader.read("ZRANK", keys.of("ring", self._queue), key)
            return None if place is None else int(place)
        rank = int(float(found))
        higher, place = self._reader.together(
            [
                ("ZCOUNT", ranked, f"({rank}", "+inf"),
                ("ZRANK", keys.of("rank", f"{rank} {self._queue}"), key),
            ]
        )
        return None if place is None else int(higher) + int(place)

    def _at_limit(self, limit: Limit, group: str) -> Before:
        """Return the tasks before it among all that wait at a limit, by the tenants' turns."""
        keys = self._reader.keys
        lane, at = self.in_lane(group), self._tag(limit.key, group)
        mine = self._mine(at or 0.0, group, lane)
        if at is None:
            return Before(lane, mine.takes)
        until = mine.at + mine.tasks * mine.charge
        asks: list[Ask] = []
        of_all = 0
        for name, where in self._groups(limit.key):
            members = keys.of("group", f"{name} {where}")
            number, tags = self._until(members, until, TENANTS_AT_MOST - len(asks))
            of_all += number
            asks += [Ask(key, tag, name, where) for key, tag in tags.items()]
        return before_it(self._turns(asks), mine, of_all, limit.concurrency or 0)

    def _tag(self, limit_key: str, group: str) -> float | None:
        """Return its finish tag at a limit, or the tag it would get; None without waiters."""
        keys, own = self._reader.keys, self._task.key
        name, tag, due, virtual = self._reader.together(
            [
                ("HGET", keys.of("groups", self._queue), group),
                ("ZSCORE", keys.of("group", f"{group} {self._queue}"), own),
                ("ZSCORE", keys.of("tags", limit_key), own),
                ("HGET", keys.shared, limit_key),
            ]
        )
        if tag is not None and name is not None and key_of_limit(name) == limit_key:
            return float(tag)
        return None if virtual is None else max(float(due or 0.0), float(virtual))

    def _until(
        self, name: str, until: float, most: int = TENANTS_AT_MOST
    ) -> tuple[int, dict[str, float]]:
        """Return the number of tenants up to a virtual time, and the first of them with theirs."""
        count, flat = self._reader.together(
            [
                ("ZCOUNT", name, "-inf", until),
                ("ZRANGEBYSCORE", name, "-inf", until, "WITHSCORES", "LIMIT", 0, most),
            ]
        )
        return int(count), dict(zip(flat[::2], map(float, flat[1::2]), strict=True))

    def _at_their_limit(self, tenants: Iterable[str]) -> list[str]:
        """Return the tenants that are blocked by their own limit, and are not paused."""
        found: list[str] = []
        for some in batches(tenants, BATCH):
            closed = self._reader.together([("ZSCORE", self._reader.keys.closed, x) for x in some])
            found += [
                key
                for key, judged in zip(some, closed, strict=True)
                if judged is not None and float(judged) >= 0
            ]
        return found

    # -- what a tenant has ------------------------------------------------------------------------

    def _lanes(self, group: str) -> list[str]:
        order = order_key(self._reader.keys, self._task.key, group, self._queue)
        return list(self._reader.read("ZRANGE", order, 0, LANES_AT_MOST))

    def _length(self, key: str, lane: str, queue: str | None = None) -> Command:
        queue = self._queue if queue is None else queue
        return ("ZCARD", lane_key(self._reader.keys, key, lane, queue))

    def _older(self, lane: str) -> int:
        """Return the number of older tasks in a lane."""
        key = lane_key(self._reader.keys, self._task.key, lane, self._queue)
        return int(self._reader.read("ZCOUNT", key, "-inf", f"({self._task.seq}"))

    def _groups(self, limit_key: str) -> Iterator[tuple[str, str]]:
        """Yield the wait groups of a key, and their queues."""
        keys = self._reader.keys
        for both in self._reader.read("LRANGE", keys.of("waited", limit_key), 0, LANES_AT_MOST):
            queue = both.partition(" ")[2]
            for group in self._reader.read("ZRANGE", keys.of("wait", both), 0, LANES_AT_MOST):
                yield group, queue

    # -- what its tasks are like ------------------------------------------------------------------

    def _mine(self, at: float, group: str, tasks: int) -> Turn:
        (mine,) = self._turns([Ask(self._task.key, at, group, self._queue)])
        return mine._replace(tasks=tasks)

    def _turns(self, asks: Iterable[Ask]) -> list[Turn]:
        return [turn for some in batches(asks, BATCH) for turn in self._some_turns(some)]

    def _some_turns(self, asks: Sequence[Ask]) -> Iterator[Turn]:
        keys = self._reader.keys
        shelves = self._reader.together(
            [
                ("ZRANGE", order_key(keys, each.key, each.group, each.queue), 0, LANES_AT_MOST)
                for each in asks
            ]
        )
        lengths = iter(
            self._reader.together(
                [
                    self._length(each.key, lane, each.queue)
                    for each, shelf in zip(asks, shelves, strict=True)
                    for lane in shelf
                ]
            )
        )
        sizes = [sum(int(next(lengths)) for _ in shelf) for shelf in shelves]
        accounts = self._accounts([each.key for each in asks])
        firsts = self._firsts(asks, shelves)
        for each, tasks, account, first in zip(asks, sizes, accounts, firsts, strict=True):
            yield Turn(
                *(
                    each.key,
                    each.at,
                    tasks,
                    cost_of(self._expected(account, first), account.weight),
                ),
                *(self._takes(account, first), account.limit),
            )

    def _firsts(self, asks: Sequence[Ask], shelves: Sequence[list[str]]) -> list[list[TaskHead]]:
        """Return the first tasks of each tenant, from its first lane."""
        keys, last = self._reader.keys, FIRST_TASKS - 1
        lanes = [shelf[0] if shelf else self._task.lane for shelf in shelves]
        tags = self._reader.together(
            [
                ("ZRANGE", lane_key(keys, each.key, lane, each.queue), 0, last)
                for each, lane in zip(asks, lanes, strict=True)
            ]
        )
        heads = heads_of(self._reader, [tag for some in tags for tag in some])
        by_tag = {each.tag: each for each in heads}
        return [[by_tag[tag] for tag in some if tag in by_tag] for some in tags]

    def _expected(self, account: Account, first: Sequence[TaskHead]) -> float:
        """Return the expected cost of one of its tasks, before the weight."""
        by = self._looker.fairness_by
        if by == "runtime":
            return FIRST_SECONDS if account.mean is None else account.mean
        return sum(each.cost for each in first) / len(first) if first and by == "cost" else 1.0

    def _takes(self, account: Account, first: Sequence[TaskHead]) -> float | None:
        if account.mean is not None and self._looker.fairness_by == "runtime":
            return account.mean
        takes = (self._slots.takes(each.name) for each in first)
        known = [each for each in takes if each is not None]
        return sum(known) / len(known) if known else None

    def _accounts(self, tenants: Sequence[str]) -> list[Account]:
        keys = self._reader.keys
        rows = self._reader.together(
            [("HMGET", keys.of("account", key), "tier", "tenant", "mean") for key in tenants]
        )
        published = self._reader.together(
            [("HMGET", keys.of("tenant", row[1] or ""), "tier", "concurrency") for row in rows]
        )
        return [self._account(*each) for each in zip(tenants, rows, published, strict=True)]

    def _account(self, key: str, row: Sequence[str], published: Sequence[str]) -> Account:
        mean = float(row[2]) if row[2] else None
        if key == SYSTEM:
            return Account(None, 1.0, mean)
        tier = self._tiers.get(published[0] or row[0] or "", self._tiers[""])
        limit = tier.concurrency
        if published[0] and published[1]:
            limit = None if published[1] == "unlimited" else int(published[1])
        return Account(limit if self._looker.enforced else None, tier.weight, mean)
