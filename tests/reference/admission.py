"""Whether a task may start now, and if not, why and until when.

This is what a claim and a gate share: the clock, the leases and starts that limits count, and what
operators set. It has no order of a queue and no place of a task.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.reference.limits import (
    AGAIN_MS,
    DROP,
    RESCHEDULE,
    WAIT,
    Limit,
    StartLog,
    one_per_key,
    read_limits,
)
from tests.reference.objection import require

#: The key of tasks without a tenant. It has no tier.
SYSTEM = "_system"
NEVER = math.inf
#: Reports whose ends are not further apart are of one window, in ms.
SAME_MS = 2_000
#: The clock does not store a shorter step, in ms.
CLOCK_STEP_MS = 50


@dataclass
class QueueLimit:
    """The limit of a queue as a whole, and that of each partition. Numbers that people set win.

    Tasks have a partition if one is declared, also without numbers.
    """

    key: str
    declared: Any = None
    declared_part: Any = None
    chosen: Any = None
    chosen_part: Any = None

    @property
    def parts(self) -> bool:
        """Whether the tasks of the queue have partitions."""
        return self.declared_part is not None

    @property
    def limit(self) -> Limit:
        """Its numbers under the key of the queue as a whole."""
        return _of_queue(self.key, self.chosen or self.declared, "g")

    def part(self, key: str) -> Limit:
        """Return the limit of one partition."""
        numbers = (self.chosen_part or self.declared_part) if self.parts else None
        return _of_queue(key, numbers, "q")


def _of_queue(key: str, numbers: Any, of: str) -> Limit:
    if numbers is None:
        return Limit(key, of=of)
    action = numbers.on_limit[0]
    throttle = numbers["throttle"] and numbers["throttle"][0]
    known = (numbers["concurrency"], numbers["rate"] or (), throttle, action)
    return Limit(key, *known, of=of, local=numbers["local_limit"])


class Rejected(NamedTuple):
    """Why no task with some limits may start.

    Attributes:
        action: What happens to the task.
        by: The limit that demands this. None: the task waits.
        again_ms: When the task may be tried again.
        wait_ms: For how long some limit is closed; `NEVER` if time alone does not open it.
    """

    action: str
    by: Limit | None
    again_ms: float
    wait_ms: float


class Entitlement(NamedTuple):
    """What a tenant may do.

    Attributes:
        limit: Its numbers.
        weight: Its share.
        counts: The limit that counts its starts: its rate and its throttle, also those that an
            override takes away. None if it has none.
    """

    limit: Limit
    weight: float
    counts: Limit | None


class Saved(NamedTuple):
    """What a key saves for the first task that waits at a place.

    Attributes:
        slots: Of its concurrency.
        units: Of its rate.
        ends: Logical time after which it saves nothing, if the task has not started. `NEVER` while
            slots gather.
        keys: All that save for the task, with commas between them.
        name: Of the limit at which the task waits.
        tenant: The key of the task's tenant.
        queue: Of the task.
    """

    slots: int
    units: int
    ends: float
    keys: str
    name: str
    tenant: str
    queue: str


class Waiter(NamedTuple):
    """Who a waiting task is for the keys that save: its tenant's key, its queue, all its keys."""

    key: str = ""
    queue: str = ""
    keys: tuple[str, ...] = ()


def read_saved(text: str) -> Saved:
    """Read what a key saves, as the server stores it."""
    slots, units, ends, keys, name, tenant, queue = text.split(" ", 6)
    return Saved(int(slots), int(units), int(ends) or NEVER, keys, name, tenant, queue)


class Beside(NamedTuple):
    """What keys may save for other tasks than one: most slots, most units, and for how long."""

    slots: int = 0
    units: int = 0
    lasts_ms: float = 0


@dataclass
class Report:
    """What an API has reported at a time: so many more starts are free until an end."""

    left: int
    ends: int
    at: int


@dataclass
class Other:
    """A lease whose task is not in Redis: its keys, and the logical times of its end and begin.

    ``units`` and ``slots`` have by key what its task takes, if that is known and not 1.
    """

    keys: frozenset[str]
    ends: int
    since: int
    units: dict[str, int] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)


@functools.cache
def keys_of(key: str, limits: str) -> tuple[str, ...]:
    """Return the keys of which a task holds a slot while it runs."""
    return tuple(dict.fromkeys((key, *(limit.key for limit in read_limits(limits)))))


def word_of(limit: Limit) -> str:
    """Return the text of a queue's limit."""
    rates = "+".join(f"{starts}/{period_ms}" for starts, period_ms in limit.rates)
    throttle = "/".join(map(str, limit.throttle)) if limit.throttle else ""
    concurrency = "" if limit.concurrency is None else str(limit.concurrency)
    parts = (("C", concurrency), ("R", rates), ("T", throttle))
    numbers = ";".join(letter + value for letter, value in parts if value)
    return f"{limit.key}|{numbers}|{limit.action}g"


class Admission:
    """The counts of limits, and the settings of operators.

    Attributes:
        now: Server time, in ms.
        time: Logical time of the last call.
        epoch: When this memory began.
        claimed: The keys of each lease of a claim, with the slots that it takes of each.
        others: Leases whose task is not in Redis: of gates, and those that were registered again.
        reservations: By key, the promotions that reserve a start, with their ends and units.
        saved: What keys saved before the last call, and after it.
        logs: By key, the starts that rates and throttles count.
    """

    def __init__(self) -> None:
        self.now = 0
        self.time = 0
        self.epoch = 0
        #: The stored clock.
        self._logical: int | None = None
        self._seen = 0
        self.claimed: dict[str, dict[str, int]] = {}
        self.others: dict[str, Other] = {}
        self.reservations: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        self.saved: tuple[Mapping[str, Saved], Mapping[str, Saved]] = ({}, {})
        self.logs: dict[str, StartLog] = {}
        self.reports: dict[str, Report] = {}
        #: Tiers or numbers have changed since the last claim. The next claim of any queue looks.
        self.is_changed = False
        # Operators set these.
        self.tiers: dict[str, Any] = {}
        self.tiers_published = False
        self.tenants: dict[str, tuple[str, dict[str, Any]]] = {}
        self.declared: dict[str, tuple[int | None, Any, Any]] = {}
        self.paused: dict[str, float] = {}
        self.cooled: dict[str, int] = {}
        #: Keys of cool-downs that some call has found over and deleted.
        self.ended_cool_downs: set[str] = set()
        self.overrides: dict[str, tuple[dict[str, Any], float]] = {}
        self.queue_limits: dict[str, QueueLimit] = {}

    def is_empty(self) -> bool:
        """Whether no call has moved the clock yet."""
        return self._logical is None

    def tick(self, lease_ms: int) -> None:
        """The logical clock follows the server's time, by at most a third of a lease per call."""
        if self._logical is None:
            self.time = self._logical = self._seen = self.epoch = self.now
            return
        step = min(max(0, self.now - self._seen), lease_ms // 3)
        self.time = self._logical + step
        if abs(self.now - self._seen) >= CLOCK_STEP_MS:
            self._logical, self._seen = self.time, self.now

    def numbers(self, limit: Limit) -> Limit:
        """A limit is judged by the newest numbers of its key, or by an override."""
        overridden = self._overridden(limit)
        if limit.of == "q":
            limit = self._numbers_of_queue(limit)
        elif not limit.of:
            concurrency, rates, throttle = self.declared.get(limit.key, (None, (), None))
            if limit.concurrency and concurrency is not None:
                limit = limit._replace(concurrency=concurrency)
            if limit.rates and rates:
                limit = limit._replace(rates=rates)
            if limit.throttle and throttle:
                limit = limit._replace(throttle=throttle)
        return limit.with_numbers(overridden)

    def _overridden(self, limit: Limit) -> Mapping[str, Any]:
        """The override of the key itself goes first, then that of the longest pattern."""
        found = (self._override(name) for name in (limit.key, *patterns_of(limit)))
        return next(filter(None, found), {})

    def _numbers_of_queue(self, limit: Limit) -> Limit:
        """A task takes the numbers of its whole queue, and those of its partition, from the row."""
        whole = whole_key(limit.key)
        for row in self.queue_limits.values():
            if row.key == whole:
                return row.limit if limit.key == whole else row.part(limit.key)
        return limit._replace(action=WAIT)

    def _override(self, key: str) -> Mapping[str, Any]:
        numbers, ends = self.overrides.get(key, ({}, 0))
        return numbers if ends > self.now else {}

    def paused_ms(self, key: str) -> float:
        return max(0, self.paused.get(key, 0) - self.now)

    def cooled_ms(self, key: str) -> int:
        """Return how long a key still cools down.

        What is over stays over, even if the clock loses its last short step.
        """
        is_over = key in self.ended_cool_downs
        return 0 if is_over else max(0, self.cooled.get(key, 0) - self.time)

    def cool_down(self, key: str, wait_ms: int) -> None:
        """A key cools down. A later report may extend that, and never shortens it."""
        self.cooled[key] = self.time + max(self.cooled_ms(key), wait_ms)
        self.ended_cool_downs.discard(key)

    def report(self, key: str, left: int, wait_ms: int) -> None:
        """An API has reported that so many more starts are free for a time.

        A report of the same window can only lower the number. One of an earlier window changes
        nothing.
        """
        ends, known = self.time + wait_ms, self.reports.get(key)
        if known and known.ends > self.time:
            if ends < known.ends - SAME_MS:
                return
            if ends <= known.ends + SAME_MS:
                left, ends = min(left, known.left), known.ends
        self.reports[key] = Report(left, ends, self.time)
        if left == 0:
            self.cool_down(key, ends - self.time)

    def _take_report(self, key: str) -> None:
        """A start takes one of the reported ones. Without one left, the key cools down."""
        known = self.reports.get(key)
        if known is None or known.left == 0:
            return
        if known.ends <= self.time:
            del self.reports[key]
            return
        known.left -= 1
        if known.left == 0:
            self.cool_down(key, known.ends - self.time)

    def _give_report_back(self, key: str, at: int) -> None:
        """The API has not counted a start that no body followed."""
        known = self.reports.get(key)
        if known is None or at <= known.at:
            return
        if known.left == 0 and self.cooled.get(key) == known.ends:
            self.cooled.pop(key)
            self.ended_cool_downs.discard(key)
        known.left += 1

    def end_cool_downs(self, stored: frozenset[str]) -> None:
        """A call has deleted cool-downs, all but the stored ones."""
        for key in set(self.cooled) - stored - self.ended_cool_downs:
            ends = self.cooled[key]
            rule = "a cool-down lasts until its time"
            require(ends <= self.time, rule, key=key, ends=ends, time=self.time)
            self.ended_cool_downs.add(key)

    @contextmanager
    def as_of(self, time: int, now: int) -> Iterator[None]:
        """Judge at an earlier time: the cool-downs that were not over then still counted."""
        kept = self.time, self.now, self.ended_cool_downs
        self.time, self.now, self.ended_cool_downs = time, now, set()
        yield
        self.time, self.now, self.ended_cool_downs = kept

    def hold_ms(self, limit: Limit) -> float:
        """Return how long a pause, a cool-down or a limit of 0 stops a limit."""
        if limit.concurrency == 0:
            return NEVER
        return max(self.paused_ms(limit.key), self.cooled_ms(limit.key))

    def held(self, key: str) -> int:
        """Return how many slots of a key leases take. Each counts until a call has ended it."""
        claimed = sum(slots.get(key, 0) for slots in self.claimed.values())
        others = (other for other in self.others.values() if key in other.keys)
        return claimed + sum(other.slots.get(key, 1) for other in others)

    def slots_of(self, words: str) -> dict[str, int]:
        """Return by key how many slots a task with these limits takes now, if that is not 1."""
        limits = one_per_key(tuple(map(self.numbers, read_limits(words))))
        return {limit.key: limit.takes for limit in limits if limit.takes > 1}

    def is_full(self, limit: Limit, saved: int = 0) -> bool:
        """Return whether a limit has too few slots for a task, beside those that it saves."""
        most = limit.concurrency
        if most is None:
            return False
        return self.held(limit.key) + limit.takes + min(saved, most) > most

    def reserved(self, key: str) -> tuple[int, int]:
        """Return how many starts and units of a key are reserved for tasks on the way to a gate."""
        units = [units for end, units in self.reservations[key].values() if end > self.time]
        return len(units), sum(units)

    def saved_for_others(self, limit: Limit, task: Waiter) -> Beside:
        """Return what a key may save for other tasks than this.

        A call may have begun or ended a saving, so those before and after it count.

        Args:
            limit: Of the task.
            task: The task.
        """
        records = [saved[limit.key] for saved in self.saved if limit.key in saved]
        alive = [x for x in records if x.ends > self.time]
        others = [x for x in alive if not _is_for(x, limit, task)]
        return Beside(
            max((x.slots for x in others), default=0),
            max((x.units for x in others), default=0),
            max((x.ends - self.time for x in others), default=0),
        )

    def saving_keys(self) -> set[str]:
        """Return the keys that saved before the last call, or save after it."""
        return {key for saved in self.saved for key, x in saved.items() if x.ends > self.time}

    def is_passed(self, limit: Limit, queue: str | None) -> bool:
        """Return whether a start with this limit takes what its key saves for another place.

        The key saved them before the call and goes on after it.

        Args:
            limit: With the numbers that judge it.
            queue: Of the task, in which it may be before the one for which the key saves. None if
                it waited in none.
        """
        before, after = (saved.get(limit.key) for saved in self.saved)
        if before is None or after is None or before.ends <= self.time:
            return False
        if before[4:] != after[4:] or before.queue == queue:
            return False
        if self.is_full(limit, min(before.slots, after.slots)):
            return True
        log, ahead = self.logs.get(limit.key) or StartLog(), self.reserved(limit.key)[1]
        return any(
            log.rate_wait_ms(
                (most - ahead, period_ms),
                self.time,
                min(limit.units, most) + min(before.units, after.units, most),
            )
            for most, period_ms in limit.rates
        )

    def closed_ms(
        self,
        limit: Limit,
        rules: Any,
        early: bool = False,
        beside: Waiter | None = None,
    ) -> tuple[float, float]:
        """Return how long a limit allows no start, and when a task may be tried again.

        - A hold stops every start, even if limits are not enforced.
        - Concurrency: no start takes a key above its limit.
        - Rate: never more than ``starts`` in any window of ``period``.
        - Throttle: starts are spaced evenly.

        Args:
            limit: With the numbers that judge it.
            rules: Of the worker.
            early: The task has a way before it, so a throttle may be a little early.
            beside: A task that leaves what keys save for others.
        """
        hold = self.hold_ms(limit)
        if hold == NEVER or rules.enforcement != "on":
            return hold, AGAIN_MS if hold == NEVER else hold
        wait, again = 0.0, 0.0
        saved = self.saved_for_others(limit, beside) if beside else Beside()
        if self.is_full(limit, saved.slots):
            wait, again = NEVER, AGAIN_MS
        pace = self.pace_ms(limit, early, beside)
        wait, again = max(wait, pace), max(again, pace)
        return max(wait, hold), hold or again

    def pace_ms(self, limit: Limit, early: bool = False, beside: Waiter | None = None) -> float:
        """Return how long the rates and the throttle of a limit allow no start."""
        ahead, ahead_units = self.reserved(limit.key)
        others = self.saved_for_others(limit, beside) if beside else Beside()
        saved, saved_ms = others.units, others.lasts_ms
        log = self.logs.get(limit.key)
        if not log and not ahead and not saved:
            return 0
        log = log or StartLog()
        waits: list[float] = [log.throttle_wait_ms(limit, self.time, ahead, early)]
        for starts, period_ms in limit.rates:
            # A task that takes more than the rate takes all of it.
            free, units = (starts - ahead_units, period_ms), min(limit.units, starts)
            window = log.rate_wait_ms(free, self.time, units)
            # If all starts of a window are reserved, the first of them may be now.
            window = min(AGAIN_MS, period_ms) if window == NEVER else window
            if saved:
                both = log.rate_wait_ms(free, self.time, units + min(saved, starts))
                window = max(window, min(both, saved_ms))
            waits.append(window)
        return max(waits)

    def rejection(
        self,
        words: str,
        rules: Any,
        early: bool = False,
        beside: Waiter | None = None,
    ) -> Rejected | None:
        """Return why no task with these limits may start now, or None if all limits allow it.

        `drop` wins, then `reschedule`, then `wait`. A hold never drops.
        """
        limits = [self.numbers(limit) for limit in read_limits(words)]
        closed = [(limit, *self.closed_ms(limit, rules, early, beside)) for limit in limits]
        closed = [each for each in closed if each[1] > 0]
        if not closed:
            return None
        acting = [limit for limit, _, _ in closed if self.hold_ms(limit) <= 0]
        actions = {limit.action: limit for limit in reversed(acting)}
        by = actions.get(DROP) or actions.get(RESCHEDULE)
        again, wait = (max(each[at] for each in closed) for at in (2, 1))
        return Rejected(by.action if by else WAIT, by, again, wait)

    def whole(self, queue: str) -> Limit | None:
        """Return the limit of a queue as a whole: a task has it while it runs."""
        row = self.queue_limits.get(queue)
        return row.limit if row else None

    def whole_rejection(self, queue: str, rules: Any) -> Rejected | None:
        """Return why the limit of a whole queue allows no start."""
        whole = self.whole(queue)
        return self.rejection(word_of(whole), rules) if whole else None

    def entitlement(self, key: str, tenant: str, tier: str, rules: Any) -> Entitlement:
        """Return what a tenant may do.

        The administrator's numbers of the tenant win, then its published tier, then the tier of
        the task. An unknown tier is the default tier. A pause and an override win over all.
        """
        if key == SYSTEM:
            return Entitlement(Limit(key), 1.0, None)
        published, own = self.tenants.get(tenant, ("", {}))
        tier = published or tier
        row = self.tiers.get(tier) or self.tiers.get(rules.default_tier)
        of_default = {"concurrency": rules.default_limit, **rules.default_numbers}
        of_tier = numbers_of_tier(row) if row else of_default
        limit = Limit(key, private=True)._replace(**{**of_tier, **own})
        own_rates, own_throttle = limit.rates, limit.throttle
        if self.paused_ms(key) or self.paused_ms(f"tenant:{tenant}"):
            limit = limit._replace(concurrency=0)
        else:
            limit = limit.with_numbers(self._override(key))
        counts = limit._replace(
            rates=limit.rates or own_rates, throttle=limit.throttle or own_throttle
        )
        is_counted = bool(counts.rates or counts.throttle)
        weight = row.weight if row else 1.0
        return Entitlement(limit, weight, counts if is_counted else None)

    def tier_closed_ms(self, limit: Limit, rules: Any, early: bool = False) -> float:
        """Return how long the numbers of a tenant allow no start.

        A concurrency of 0 is a hold, which stops every start.
        """
        if limit.concurrency == 0:
            return NEVER
        if rules.enforcement != "on":
            return 0
        if limit.concurrency is not None and self.held(limit.key) >= limit.concurrency:
            return NEVER
        return self.pace_ms(limit, early)

    def lent_closed_ms(self, limit: Limit, rules: Any) -> float:
        """Return how long a tenant at its concurrency may not be lent a place.

        Up to its burst it may, while its rate and its throttle let one task start.
        """
        held, most = self.held(limit.key), limit.burst or 0
        is_between = limit.concurrency and limit.concurrency <= held < most
        return self.pace_ms(limit) if is_between and rules.enforcement == "on" else NEVER

    def tier_name(self, key: str, tenant: str, tier: str, rules: Any) -> str:
        """Return the tier of a tenant by its name. An unknown tier is the default tier."""
        if key == SYSTEM:
            return ""
        tier = self.tenants.get(tenant, ("", {}))[0] or tier
        return tier if tier in self.tiers else rules.default_tier

    def declare(self, words: str, is_new: bool) -> None:
        """A new task brings the newest numbers of its keys. A concurrency of 0 is its own."""
        for limit in read_limits(words):
            known = self.declared.get(limit.key, (None, (), None))
            own = (limit.concurrency or None, limit.rates, limit.throttle)
            if not limit.of and any(own):
                pairs = zip(own, known, strict=True)
                chosen = [mine if mine and (is_new or not old) else old for mine, old in pairs]
                self.is_changed |= chosen != list(known)
                self.declared[limit.key] = (chosen[0], chosen[1], chosen[2])

    def in_partition(self, queue: str, words: str, part: str) -> str:
        """A task that waits in a partitioned queue has the limit of one partition."""
        row = self.queue_limits.get(queue)
        if row is None or not row.parts:
            return words
        whole = f"{row.key}:"
        if any(x.of == "q" and x.key.startswith(whole) for x in read_limits(words)):
            return words
        key = part if part.startswith(whole) else whole
        return ",".join(filter(None, (words, f"{key}|q|w")))

    def _counting(self, words: str, tenant: Entitlement) -> list[Limit]:
        """Return the limits that count a start: those of the task, and the pace of its tenant."""
        own = (tenant.counts,) if tenant.counts else ()
        return one_per_key((*own, *map(self.numbers, read_limits(words))))

    def count_starts(self, words: str, tenant: Entitlement) -> None:
        """A task with these limits starts."""
        for limit in self._counting(words, tenant):
            self._take_report(limit.key)
            if limit.rates or limit.throttle or limit.key in self.logs:
                self.logs.setdefault(limit.key, StartLog()).start(limit, self.time)

    def reserve(self, words: str, tenant: Entitlement, name: str, ends: int) -> None:
        """A promoted task reserves a start of each rate and throttle."""
        for limit in self._counting(words, tenant):
            if limit.rates or limit.throttle:
                self.reservations[limit.key][name] = ends, limit.units

    def end_reservations(self, name: str) -> None:
        """A promotion ends."""
        for reserved in self.reservations.values():
            reserved.pop(name, None)

    def give_starts_back(self, words: str, tenant: Entitlement, at: int) -> None:
        """A start of a time does not count for rates and throttles."""
        for limit in self._counting(words, tenant):
            self._give_report_back(limit.key, at)
            log = self.logs.get(limit.key)
            if log and not log.give_back(limit, at):
                del self.logs[limit.key]

    def correct(self, key: str, at: int, more: int) -> None:
        """A start of a time counts so many units more, or fewer."""
        if log := self.logs.get(key):
            log.correct(at, more, self.time)

    def forget_starts(self) -> None:
        """A log in which no start is young enough to matter is forgotten."""
        self.logs = {k: log for k, log in self.logs.items() if log.forgotten_at > self.time}

    def end_holds(self, most: int) -> set[str]:
        """Overrides and pauses end, at most so many of each, the first ones first.

        Returns:
            Their keys, of a partition that of its queue.
        """
        over = sorted((ends, key) for key, (_, ends) in self.overrides.items() if ends <= self.now)
        for _, key in over[:most]:
            del self.overrides[key]
        until = sorted((ends, key) for key, ends in self.paused.items() if ends <= self.now)
        for _, key in until[:most]:
            del self.paused[key]
        return {whole_key(key) for _, key in (*over, *until) if not is_pattern(key)}


def _is_for(saved: Saved, limit: Limit, task: Waiter) -> bool:
    """Return whether a key may save for a task, which takes of it what this limit says."""
    takes = saved.slots in (0, limit.slots) and saved.units in (0, limit.units)
    is_there = (saved.tenant, saved.queue) == (task.key, task.queue)
    return takes and is_there and set(saved.keys.split(",")) <= set(task.keys)


def keys_with(text: str) -> tuple[frozenset[str], dict[str, int], dict[str, int]]:
    """Read the keys of a lease, and by key the slots and the units that its task takes."""
    amounts: dict[str, dict[str, int]] = {"S": {}, "U": {}}
    words = [word.partition("*") for word in text.split(",")]
    for key, _, numbers in words:
        for part in numbers.split(";") if numbers else ():
            amounts[part[0]][key] = int(part[1:])
    return frozenset(key for key, _, _ in words), amounts["S"], amounts["U"]


def is_pattern(key: str) -> bool:
    """Return whether the numbers of an override hold for many keys."""
    return key.endswith("*")


def patterns_of(limit: Limit) -> list[str]:
    """Return the patterns that a limit matches, the longest first.

    Each ends behind one of the first seven separators of the key. The last one, ``*``, holds for
    limits without a number, and not for queues and tenants.
    """
    key = limit.key
    ends = [place for place, each in enumerate(key, 1) if each in ".:-"][:7]
    found = [f"{key[:end]}*" for end in reversed(ends)]
    has_numbers = limit.concurrency is not None or limit.rates or limit.throttle or limit.of
    is_other = has_numbers or key.startswith(("queue:", "tenant:"))
    return found if is_other else [*found, "*"]


def numbers_of_tier(row: Any) -> dict[str, Any]:
    """Return the numbers of a published tier that judge a start."""
    rates = (row.rate.window,) if row.rate else ()
    throttle = row.throttle.window if row.throttle else None
    return {
        "concurrency": row.concurrency,
        "rates": rates,
        "throttle": throttle,
        "burst": row.burst,
    }


def whole_key(key: str) -> str:
    """Return the key of the whole queue for the key of a partition, and any other key as it is."""
    return ":".join(key.split(":")[:2]) if key.startswith("queue:") else key
