"""The dispatch path as an executable specification. It accepts answers, it does not give them.

The state is what a person would write down: tasks, leases, starts, virtual times, and what
operators set. There are no rings, groups, candidates, budgets or wake-up lists. Each method is one
call. It gets the arguments of the call, its answer, and what the server shows afterwards
(`Observed`). It checks the answer against the rules, raises `Objection` if a rule is broken, and
applies the answer.

Weakness: where the specification leaves an order open, the reference does too. It accepts any order
among the lanes of one priority of a tenant and among the limits at which lanes wait. It takes from
the server how much of the due work a call did, and checks only that this work was due.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from tests.reference.observed import Observed
from tests.reference.order import Rounds, Span, Turns

#: The key of tasks without a tenant. It has no tier.
SYSTEM = "_system"
NEVER = math.inf
#: The longest sleep of a worker, in ms. It is also at most a third of a lease.
SLEEP_MS = 1000
#: The clock does not store a shorter step, in ms.
CLOCK_STEP_MS = 50
#: A worker that must register its leases again waits this long, in ms.
REGISTER_MS = 10
#: A charge is at least and at most this, whatever cost and weight are.
LEAST_CHARGE, LARGEST_CHARGE = 1e-6, 1e6
#: A tenant without a mean run time is charged this many seconds.
FIRST_RUN_SECONDS = 1
#: The last run is one part of this many in the mean run time of a tenant.
MEAN_PARTS = 8
#: A task that its limit puts back waits up to a quarter longer than the expected start.
JITTER_PARTS = 4


class Objection(AssertionError):
    """An answer breaks a rule. The text names the rule and the facts."""


def require(holds: object, rule: str, **facts: object) -> None:
    """Raise an objection unless a rule holds."""
    if not holds:
        told = ", ".join(f"{name}={value!r}" for name, value in facts.items())
        raise Objection(f"{rule}: {told}" if told else rule)


@dataclass
class Task:
    """One task that exists.

    Attributes:
        place: ``waiting``, ``delayed``, ``leased`` or ``dead``. A task is in exactly one place.
        seq: Its place among all tasks: a task that began to wait earlier has the smaller one.
        came_back: It waits in its former place, so a late settle finds it. None: perhaps.
        put_back_by: Keys of the limits one of which rescheduled it.
    """

    tag: str
    queue: str
    tenant: str
    service: str
    tier: str
    rank: int
    cost: float
    kind: str
    limits: str
    message: str
    expires_ms: int
    seq: int
    place: str = ""
    eta_ms: int = 0
    attempt: int = 0
    deaths: int = 0
    came_back: bool | None = False
    put_back_by: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """Key of its tenant's tier."""
        if not self.tenant:
            return SYSTEM
        return ":".join(filter(None, ("tenant", self.tenant, self.service)))

    @property
    def lane(self) -> tuple[str, str, int, str]:
        """Tasks of one lane are first in, first out."""
        return self.queue, self.key, self.rank, self.limits


class Charge(NamedTuple):
    """What a start charged by an expected run time, to be corrected at its end."""

    seconds: float
    weight: float
    finish: Span


@dataclass
class Lease:
    """One attempt of one task: it holds a slot of each of its keys.

    Attributes:
        state: ``claimed``, ``begun`` or ``acked``.
        limits: Those of its task, and that of the queue as a whole.
        keys: Every key once, the tenant's first.
    """

    name: str
    task: Task
    owner: str
    ends: int
    since: int
    limits: str
    keys: tuple[str, ...]
    state: str = "claimed"
    charge: Charge | None = None


@dataclass
class Account:
    """What is stored of a tenant while some task of it waits."""

    tier: str
    mean: float | None = None


@dataclass
class QueueLimit:
    """The limit of a queue, as a whole or of each partition. Numbers that people set win."""

    key: str
    parts: bool = False
    declared: Any = None
    chosen: Any = None

    @property
    def limit(self) -> Limit:
        """Its numbers under the key of the queue as a whole."""
        numbers = self.chosen or self.declared
        if numbers is None:
            return Limit(self.key, of="g")
        action = numbers.on_limit[0]
        known = (numbers.concurrency, numbers.rates, numbers.throttle, action)
        return Limit(self.key, *known, of="g", local=numbers.local)


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


@dataclass
class Asked:
    """What one claim takes.

    Attributes:
        exact: The bounds of a call cannot have cut this claim short.
        given: The tasks that it was given so far.
    """

    rules: Any
    passing: Any
    queues: list[str]
    skips: bool = False
    is_local: bool = False
    exact: bool = True
    given: list[Task] = field(default_factory=list)
    held: Counter[str] = field(default_factory=Counter)

    @property
    def by_rank(self) -> bool:
        """Whether the highest priority of a queue goes first, whoever's it is."""
        return bool(self.rules.priority_scope == "queue")


@functools.cache
def keys_of(key: str, limits: str) -> tuple[str, ...]:
    """Return the keys of which a task holds a slot while it runs."""
    return tuple(dict.fromkeys((key, *(limit.key for limit in read_limits(limits)))))


def charge_of(amount: float, weight: float) -> float:
    """Return what a start adds to the virtual time of a tenant."""
    charge = amount / weight
    return min(charge, LARGEST_CHARGE) if charge > LEAST_CHARGE else LEAST_CHARGE


class Reference:
    """The state of one installation.

    Args:
        budget: The bounds of one call.
    """

    def __init__(self, budget: Any) -> None:
        self.budget = budget
        #: Server time, in ms (`at`).
        self.now = 0
        #: Logical time of the last call, and what the clock stores.
        self.time = 0
        self.logical: int | None = None
        self.seen = 0
        self.epoch = 0
        self.sequence = 0
        self.tasks: dict[str, Task] = {}
        self.leases: dict[str, Lease] = {}
        #: By key, leases of gates and leases that were registered again, with their ends.
        self.other_leases: dict[str, dict[str, int]] = defaultdict(dict)
        #: By key, when a lease of it ended last that no call reports.
        self.silent: dict[str, int] = {}
        self.logs: dict[str, StartLog] = {}
        self.turns: dict[str, Turns] = {}
        self.accounts: dict[str, Account] = {}
        #: Lanes that some claim has met while a limit rejected them.
        self.blocked: set[tuple[str, str, int, str]] = set()
        #: By a blocked lane and a tenant, what this tenant was given out of turn.
        self.passed: dict[tuple[Any, str], float] = defaultdict(float)
        self.outcomes: dict[str, int] = {}
        self.replies: dict[str, tuple[int, list[str]]] = {}
        #: By queue, logical and server time of its last claim.
        self.claimed_at: dict[str, tuple[int, int]] = {}
        #: Tiers or numbers have changed since the last claim. The next claim of any queue looks.
        self.is_changed = False
        # What operators set.
        self.tiers: dict[str, Any] = {}
        self.tiers_published = False
        self.tenants: dict[str, tuple[str, str]] = {}
        self.declared: dict[str, tuple[int | None, Any, Any]] = {}
        self.paused: dict[str, float] = {}
        self.cooled: dict[str, int] = {}
        self.overrides: dict[str, tuple[dict[str, Any], float]] = {}
        self.queue_limits: dict[str, QueueLimit] = {}
        #: Outcomes that this call must have left: tag, state and queue.
        self._ended: list[tuple[str, str, str]] = []

    # -- time -------------------------------------------------------------------------------------

    def at(self, now: int) -> None:
        """Set the server's time. If it goes back, what limits put back may be remembered or not."""
        if now < self.now:
            for task in self.delayed():
                task.put_back_by |= {""} if task.put_back_by else frozenset()
        self.now = now

    def _tick(self, lease_ms: int) -> None:
        """The logical clock follows the server's time, by at most a third of a lease per call."""
        if self.logical is None:
            self.time = self.logical = self.seen = self.epoch = self.now
            return
        step = min(max(0, self.now - self.seen), lease_ms // 3)
        self.time = self.logical + step
        if abs(self.now - self.seen) >= CLOCK_STEP_MS:
            self.logical, self.seen = self.time, self.now

    # -- limits -----------------------------------------------------------------------------------

    def numbers(self, limit: Limit) -> Limit:
        """A limit is judged by the newest numbers of its key, or by an override."""
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
        return limit.with_numbers(self._override(limit.key))

    def _numbers_of_queue(self, limit: Limit) -> Limit:
        """A partition has the numbers of its queue."""
        whole = ":".join(limit.key.split(":")[:2])
        for row in self.queue_limits.values():
            if row.key == whole:
                local = row.limit.local if row.parts else None
                return row.limit._replace(key=limit.key, of="q", local=local)
        return limit._replace(action=WAIT)

    def _override(self, key: str) -> Mapping[str, Any]:
        numbers, ends = self.overrides.get(key, ({}, 0))
        return numbers if ends > self.now else {}

    def _paused_ms(self, key: str) -> float:
        return max(0, self.paused.get(key, 0) - self.now)

    def _hold_ms(self, limit: Limit) -> float:
        """Return how long a pause, a cool-down or a limit of 0 stops a limit."""
        if limit.concurrency == 0:
            return NEVER
        return max(self._paused_ms(limit.key), self.cooled.get(limit.key, 0) - self.time)

    def held(self, key: str) -> int:
        """Return how many leases of a key live.

        A lease of a claim counts until it is settled or a call has ended it. Other leases count
        until their end.
        """
        claimed = sum(key in lease.keys for lease in self.leases.values())
        return claimed + sum(end > self.time for end in self.other_leases[key].values())

    def closed_ms(self, limit: Limit, rules: Any) -> tuple[float, float]:
        """Return how long a limit allows no start, and when a task may be tried again.

        - A hold stops every start, even if limits are not enforced.
        - Concurrency: no start takes a key above its limit.
        - Rate: never more than ``starts`` in any window of ``period``.
        - Throttle: starts are spaced evenly.
        """
        hold = self._hold_ms(limit)
        if hold == NEVER or rules.enforcement != "on":
            return hold, AGAIN_MS if hold == NEVER else hold
        wait = again = 0.0
        if limit.concurrency is not None and self.held(limit.key) >= limit.concurrency:
            ends = [end for end in self.other_leases[limit.key].values() if end > self.time]
            wait, again = min([end - self.time for end in ends], default=NEVER), AGAIN_MS
            wait = wait if wait == NEVER else min(wait, AGAIN_MS)
        if log := self.logs.get(limit.key):
            waits = [log.rate_wait_ms(window, self.time) for window in limit.rates]
            waits = [log.throttle_wait_ms(limit, self.time), *waits]
            wait, again = max(wait, *waits), max(again, *waits)
        return max(wait, hold), hold or again

    def rejection(self, words: str, rules: Any) -> Rejected | None:
        """Return why no task with these limits may start now, or None if all limits allow it.

        `drop` wins, then `reschedule`, then `wait`. A hold never drops.
        """
        limits = [self.numbers(limit) for limit in read_limits(words)]
        closed = [(limit, *self.closed_ms(limit, rules)) for limit in limits]
        closed = [each for each in closed if each[1] > 0]
        if not closed:
            return None
        acting = [limit for limit, _, _ in closed if self._hold_ms(limit) <= 0]
        actions = {limit.action: limit for limit in reversed(acting)}
        by = actions.get(DROP) or actions.get(RESCHEDULE)
        again, wait = (max(each[at] for each in closed) for at in (2, 1))
        return Rejected(by.action if by else WAIT, by, again, wait)

    def _whole(self, queue: str) -> Limit | None:
        """Return the limit of a queue as a whole: a task has it while it runs."""
        row = self.queue_limits.get(queue)
        if row is None:
            return None
        return Limit(row.key, of="g") if row.parts else row.limit

    def whole_rejection(self, queue: str, rules: Any) -> Rejected | None:
        """Return why the limit of a whole queue allows no start."""
        whole = self._whole(queue)
        return self.rejection(_word(whole), rules) if whole else None

    # -- tenants ----------------------------------------------------------------------------------

    def entitlement(self, key: str, tenant: str, rules: Any) -> tuple[int | None, float]:
        """Return the concurrency of a tenant (None is unlimited) and its weight.

        The administrator's numbers of the tenant win, then its published tier, then the tier of
        the last put that carried one. An unknown tier is the default tier.
        """
        if key == SYSTEM:
            return None, 1.0
        tier, own = self.tenants.get(tenant, ("", ""))
        account = self.accounts.get(key)
        tier = tier or (account.tier if account else "")
        row = self.tiers.get(tier) or self.tiers.get(rules.default_tier)
        limit = row.concurrency if row else rules.default_limit
        if own:
            limit = None if own == "unlimited" else int(own)
        if self._paused_ms(key) or self._paused_ms(f"tenant:{tenant}"):
            limit = 0
        else:
            limit = self._override(key).get("concurrency", limit)
        return limit, row.weight if row else 1.0

    def is_tenant_open(self, task: Task, rules: Any) -> bool:
        """A tenant never runs more tasks at once than its tier allows. A limit of 0 is a hold."""
        limit, _ = self.entitlement(task.key, task.tenant, rules)
        if limit is None:
            return True
        return limit > 0 and (rules.enforcement != "on" or self.held(task.key) < limit)

    # -- places -----------------------------------------------------------------------------------

    def waiting(self, queue: str | None = None, key: str | None = None) -> Iterator[Task]:
        """Yield waiting tasks, of a queue or of a tenant if one is given."""
        for task in self.tasks.values():
            if task.place == "waiting" and queue in (None, task.queue) and key in (None, task.key):
                yield task

    def delayed(self, queue: str | None = None) -> list[Task]:
        """Return the tasks that wait for a time, in the order in which they come."""
        found = [x for x in self.tasks.values() if x.place == "delayed"]
        found = [task for task in found if queue in (None, task.queue)]
        return sorted(found, key=lambda task: (task.eta_ms, task.seq))

    def _next_seq(self) -> int:
        self.sequence += 1
        return self.sequence

    def _wait(self, task: Task, is_put: bool = False) -> None:
        """A task begins to wait. The stored tier is that of the last put that carried one."""
        account = self.accounts.get(task.key)
        if account is None:
            self.accounts[task.key] = Account(task.tier)
        elif is_put and task.tier not in ("", account.tier):
            account.tier, self.is_changed = task.tier, True
        turns = self.turns.setdefault(task.queue, Turns(lags=not self._is_wide))
        if not any(self.waiting(task.queue, task.key)):
            turns.enter(task.key)
        task.place = "waiting"

    def _wait_again(self, task: Task) -> None:
        """A task waits again in its former place."""
        task.came_back = True
        self._wait(task)

    def _leave(self, task: Task, place: str = "") -> None:
        """A task leaves its lane for another place, or for good."""
        task.place = place
        if not place:
            del self.tasks[task.tag]
        if not any(self.waiting(None, task.key)):
            self.accounts.pop(task.key, None)
        if not any(self.waiting(task.queue)):
            # Invariant 5: a queue in which nothing waits uses no memory.
            self.turns.pop(task.queue, None)
        if not any(each.lane == task.lane for each in self.waiting(task.queue, task.key)):
            self.blocked.discard(task.lane)
            self._forget_passed(task.lane)

    def _forget_passed(self, lane: tuple[str, str, int, str]) -> None:
        for pair in [each for each in self.passed if each[0] == lane]:
            del self.passed[pair]

    def _end(self, task: Task, state: str, queue: str) -> None:
        """A task ends without a worker, which leaves an outcome."""
        self._ended.append((task.tag, state, queue))

    @property
    def _is_wide(self) -> bool:
        """Whether the bounds of a call are those of production, so that few tasks are no crowd."""
        return bool(self.budget.moves >= 64 and self.budget.unit_bytes >= 16_384)

    def _finish(self, seen: Observed) -> None:
        """Invariant 2: a task is at every instant in exactly one place."""
        by_place = defaultdict(set)
        for task in self.tasks.values():
            by_place[task.place].add(task.tag)
        require(
            set(self.tasks) == seen.tasks,
            "a task that was accepted exists until it ends",
            lost=set(self.tasks) - seen.tasks,
            unknown=seen.tasks - set(self.tasks),
        )
        require(
            set(self.leases) == seen.leases,
            "a lease lives until it is settled or its time is over",
            missing=set(self.leases) - seen.leases,
            unknown=seen.leases - set(self.leases),
        )
        delayed = {tag: at for rows in seen.delayed.values() for tag, at in rows.items()}
        known = {x.tag: x.eta_ms for x in self.tasks.values() if x.place == "delayed"}
        require(known == delayed, "a delayed task waits for its time", expected=known, got=delayed)
        outcomes = [
            (each.tag, each.state, each.queue)
            for text, each in seen.outcomes.items()
            if text not in self.outcomes
        ]
        require(
            sorted(outcomes) == sorted(self._ended),
            "a task that ends without a worker leaves one outcome",
            expected=self._ended,
            got=outcomes,
        )
        for text in seen.outcomes:
            self.outcomes.setdefault(text, self.time)
        gone = set(self.outcomes) - set(seen.outcomes)
        require(not gone, "an outcome stays until its result is written", gone=gone)
        self._ended = []

    # -- put --------------------------------------------------------------------------------------

    def put(self, waiting: Any, answer: Any, seen: Observed) -> None:
        """A task begins to wait, or waits for its time.

        Above `max_waiting` the put fails. A put of a task that exists changes nothing.
        """
        task = Task(
            waiting.tag,
            waiting.queue,
            waiting.tenant,
            waiting.service,
            waiting.tier,
            waiting.rank,
            waiting.cost,
            waiting.kind,
            waiting.limits,
            waiting.message,
            waiting.expires_ms,
            0,
        )
        is_later = waiting.eta_ms > self.now
        full = None
        if waiting.bounds is not None and not is_later and task.tag not in self.tasks:
            full = self._full(task, waiting.bounds)
        if full or isinstance(answer, tuple):
            require(answer == full, "above max_waiting a put fails", expected=full, got=answer)
            return self._finish(seen)
        expected = 0 if task.tag in self.tasks else 2 if is_later else 1
        require(answer == expected, "a put is dropped only while its task exists", want=expected)
        if not expected:
            return self._finish(seen)
        self._declare(task.limits, waiting.is_new)
        task.limits = self._in_partition(task.queue, task.limits, "")
        task.seq = self._next_seq()
        self.tasks[task.tag] = task
        if is_later:
            task.place = "delayed"
            task.eta_ms = min(waiting.eta_ms, task.expires_ms or waiting.eta_ms)
        else:
            task.came_back = task.expires_ms > 0
            self._wait(task, is_put=True)
        return self._finish(seen)

    def _full(self, task: Task, bounds: Any) -> tuple[str, int, int] | None:
        """Return key, limit and count of the tenant or queue that has no room for one more."""
        bounded = any(tier.max_waiting is not None for tier in self.tiers.values())
        if task.key != SYSTEM and (bounded or not self.tiers_published):
            count = sum(1 for _ in self.waiting(None, task.key))
            most = bounds.of_tier
            if bounded:
                account = self.accounts.get(task.key)
                tier = task.tier or (account.tier if account else "")
                tier = self.tenants.get(task.tenant, ("", ""))[0] or tier
                row = self.tiers.get(tier) or self.tiers.get(bounds.default_tier)
                most = row.max_waiting if row else None
            if most is not None and count >= most:
                return task.key, most, count
        count = sum(1 for _ in self.waiting(task.queue))
        if bounds.of_queue is not None and count >= bounds.of_queue:
            return f"queue:{task.queue}", bounds.of_queue, count
        return None

    def _declare(self, words: str, is_new: bool) -> None:
        """A new task brings the newest numbers of its keys. A concurrency of 0 is its own."""
        for limit in read_limits(words):
            known = self.declared.get(limit.key, (None, (), None))
            own = (limit.concurrency or None, limit.rates, limit.throttle)
            if not limit.of and any(own):
                pairs = zip(own, known, strict=True)
                chosen = [mine if mine and (is_new or not old) else old for mine, old in pairs]
                self.is_changed |= chosen != list(known)
                self.declared[limit.key] = (chosen[0], chosen[1], chosen[2])

    def _in_partition(self, queue: str, words: str, part: str) -> str:
        """A task that waits in a partitioned queue has the limit of one partition."""
        row = self.queue_limits.get(queue)
        if row is None or not row.parts:
            return words
        whole = f"{row.key}:"
        if any(x.of == "q" and x.key.startswith(whole) for x in read_limits(words)):
            return words
        key = part if part.startswith(whole) else whole
        return ",".join(filter(None, (words, f"{key}|q|||w")))

    # -- settle -----------------------------------------------------------------------------------

    def settle(self, ends: Sequence[Any], rules: Any, answer: list[int], seen: Observed) -> None:
        """Attempts end. Settling twice is harmless."""
        self._tick(rules.lease_ms)
        expected = [self._settle(end, rules, seen) for end in ends]
        got = [int(each) for each in answer]
        require(got == expected, "a settle tells what it found", expected=expected, got=got)
        self._finish(seen)

    def _settle(self, end: Any, rules: Any, seen: Observed) -> int:
        """Apply one end. Return 1 if the lease lived, 2 if the waiting task was removed, else 0."""
        lease, verdict = self.leases.get(end.lease), end.verdict.value
        if lease is None:
            return self._settle_late(end, verdict, seen)
        if not end.begun and lease.state == "claimed":
            self._give_starts_back(lease)
        if verdict in ("begun", "acked"):
            # An acknowledged message is never delivered again.
            lease.state = verdict if lease.state != "acked" else "acked"
            return 1
        task = lease.task
        self._end_lease(lease)
        if verdict == "done" or lease.state == "acked":
            del self.tasks[task.tag]
        elif verdict == "tail":
            task.seq, task.came_back = self._next_seq(), False
            self._wait(task)
        elif verdict == "died":
            self._after_death(task, rules)
        elif verdict == "unreadable":
            task.place = "dead"
            self._end(task, "unreadable", task.queue)
        else:
            self._wait_again(task)
        return 1

    def _settle_late(self, end: Any, verdict: str, seen: Observed) -> int:
        """The lease had ended. If its task waits again unclaimed, it must not run twice."""
        keys, rank, queue = end.lane.split(" ", 2)
        if verdict == "begun":
            return 0
        if verdict != "acked":
            for key in keys.split(","):
                if self.other_leases[key].pop(end.lease, None) is not None:
                    self.silent[key] = self.time
        if verdict not in ("done", "acked"):
            return 0
        task = self.tasks.get(end.lease.rsplit(".", 2)[0])
        if task is None or task.place != "waiting" or task.came_back is False:
            return 0
        is_it = task.key == keys.split(",")[0] and task.rank == int(rank)
        if not is_it or task.queue not in (queue, _sibling(queue)):
            return 0
        if task.came_back is None and task.tag in seen.tasks:
            # Whether it was set aside is not observed, and it was not removed.
            task.came_back = False
            return 0
        self._leave(task)
        return 2

    def _end_lease(self, lease: Lease) -> None:
        """A lease ends: its slots are free, and a charge by run time is corrected."""
        del self.leases[lease.name]
        if lease.charge:
            seconds = max(0, self.time - lease.since) / 1000
            key, charge = lease.task.key, lease.charge
            own = charge_of(seconds, charge.weight)
            missing = own - charge_of(charge.seconds, charge.weight)
            if account := self.accounts.get(key):
                mean = account.mean
                account.mean = seconds if mean is None else mean + (seconds - mean) / MEAN_PARTS
            if turns := self.turns.get(lease.task.queue):
                waits = any(self.waiting(lease.task.queue, key))
                turns.correct(key, waits, charge.finish, missing)

    def _give_starts_back(self, lease: Lease) -> None:
        """The body never began, so its start does not count for rates and throttles."""
        limits = tuple(map(self.numbers, read_limits(lease.limits)))
        for limit in one_per_key(limits):
            log = self.logs.get(limit.key)
            if log and not log.give_back(limit, lease.since):
                del self.logs[limit.key]

    def _after_death(self, task: Task, rules: Any) -> None:
        """A begun body's process died: after `max_deliveries` deaths it is a dead letter."""
        task.deaths += 1
        if rules.max_deliveries and task.deaths >= rules.max_deliveries:
            task.place = "dead"
            self._end(task, "dead", task.queue)
        else:
            self._wait_again(task)

    # -- claim ------------------------------------------------------------------------------------

    def claim(
        self,
        owner: str,
        number: int,
        want: int,
        queues: Sequence[str],
        rules: Any,
        passing: Any,
        epoch: int | None,
        ends: Sequence[Any],
        answer: Any,
        seen: Observed,
    ) -> None:
        """A claim does a part of what is due, and leases the next tasks in their fair order."""
        self._tick(rules.lease_ms)
        for end in ends:
            self._settle(end, rules, seen)
        require(answer.epoch == self.epoch, "an answer carries the epoch", epoch=self.epoch)
        if epoch not in (None, self.epoch):
            rule = "a worker registers its leases again before it claims"
            require(not answer.tasks and answer.sleep_ms == REGISTER_MS, rule)
            return self._finish(seen)
        last_number, last_leases = self.replies.get(owner, (None, []))
        if last_number == number:
            self._check_replay(last_leases, answer)
            return self._finish(seen)
        self._do_what_is_due(queues, rules, seen)
        self.is_changed = False
        self.claimed_at |= dict.fromkeys(queues, (self.time, self.now))
        asked = self._asked(rules, passing, queues)
        acted = self._take_out(asked, seen)
        self._note_skips(asked)
        asked.exact = self._is_exact(asked, acted)
        room = Rounds(asked.queues, passing.rooms, passing.lends, passing.strict)
        for claimed in answer.tasks:
            self._check_start(claimed, owner, asked, room)
        for task, eta_ms in acted:
            self._check_action(task, eta_ms, asked, seen)
        require(len(answer.tasks) <= want, "a claim gives at most the tasks it wants", want=want)
        if answer.tasks:
            self.replies[owner] = (number, [each.lease for each in answer.tasks])
        self._check_rest(asked, want, room, answer)
        self._note_blocked(asked)
        return self._finish(seen)

    def _check_replay(self, leases: Sequence[str], answer: Any) -> None:
        """The same request number has the same answer, less what has ended since."""
        alive = [name for name in leases if name in self.leases]
        got = [each.lease for each in answer.tasks]
        require(got == alive, "a claim sent again has the same answer", expected=alive, got=got)
        require(answer.sleep_ms == 0, "a claim sent again asks again")

    def _do_what_is_due(self, queues: Sequence[str], rules: Any, seen: Observed) -> None:
        ended_holds = self._end_holds()
        self._end_leases(rules, seen)
        # A log in which no start is young enough to matter is forgotten.
        self.logs = {k: log for k, log in self.logs.items() if log.forgotten_at > self.time}
        for queue in dict.fromkeys(queues):
            self._bring_in(queue, ended_holds, seen)
        for queue in dict.fromkeys(queues):
            self._expire(queue, seen)

    def _end_holds(self) -> set[str]:
        """Overrides and pauses end, the first ones first. Return their keys."""
        over = sorted((ends, key) for key, (_, ends) in self.overrides.items() if ends <= self.now)
        for _, key in over[: self.budget.due]:
            del self.overrides[key]
        until = sorted((ends, key) for key, ends in self.paused.items() if ends <= self.now)
        for _, key in until[: self.budget.due]:
            del self.paused[key]
        return {_whole_key(key) for _, key in (*over, *until)}

    def _end_leases(self, rules: Any, seen: Observed) -> None:
        """A lease that nobody renewed ends, and its task waits again in its place.

        An acknowledged task does not run again. A begun one has lost its process.
        """
        gone = [lease for lease in self.leases.values() if lease.name not in seen.leases]
        gone.sort(key=lambda lease: (lease.ends, lease.name))
        kept = [lease.ends for lease in self.leases.values() if lease.name in seen.leases]
        for lease in gone:
            rule = "a lease ends only after its time, the first to end first"
            ends = lease.ends
            require(
                ends <= min([self.time, *kept]), rule, lease=lease.name, ends=ends, time=self.time
            )
            self._end_lease(lease)
            task = lease.task
            if lease.state == "acked":
                del self.tasks[task.tag]
                self._end(task, "acked", task.queue)
            elif lease.state == "begun":
                self._after_death(task, rules)
            else:
                self._wait_again(task)
        require(len(gone) <= self.budget.due, "a call ends a bounded number of leases")

    def _bring_in(self, queue: str, ended_holds: set[str], seen: Observed) -> None:
        """Tasks whose time has come wait now, in the order of their times, last in their lanes.

        A task that a limit put back comes at once if the hold or override of its key has ended.
        """
        still, stayed, moved = seen.delayed[queue], [], []
        for task in self.delayed(queue):
            eta = still.get(task.tag)
            if task.eta_ms > self.now and task.put_back_by & ended_holds and eta != task.eta_ms:
                task.eta_ms = self.now
            (stayed if eta == task.eta_ms else moved).append(task)
        moved.sort(key=lambda task: (task.eta_ms, task.seq))
        first = min([self.now, *(task.eta_ms for task in stayed)])
        require(len(moved) <= self.budget.due, "a call brings in a bounded number of tasks")
        for task in moved:
            rule = "a delayed task waits until its time, the first ones come first"
            require(task.eta_ms <= first, rule, tag=task.tag, eta=task.eta_ms, now=self.now)
            task.seq, task.came_back = self._next_seq(), task.expires_ms > 0
            self._wait(task)

    def _expire(self, queue: str, seen: Observed) -> None:
        """A waiting task that has never started ends when its expiry has come."""
        for text, outcome in seen.outcomes.items():
            if text in self.outcomes or (outcome.state, outcome.queue) != ("expired", queue):
                continue
            task = self.tasks[outcome.tag]
            is_over = 0 < task.expires_ms <= self.now and task.place == "waiting"
            require(is_over, "only what has expired while it waited ends", tag=task.tag)
            self._leave(task)
            self._end(task, "expired", queue)

    def _asked(self, rules: Any, passing: Any, queues: Sequence[str]) -> Asked:
        rows = (self.queue_limits.get(queue) for queue in queues)
        locals_ = any(row and row.limit.local is not None for row in rows)
        is_local = locals_ and rules.enforcement == "on"
        asked = Asked(rules, passing, [x for x in dict.fromkeys(queues) if any(self.waiting(x))])
        asked.is_local = is_local
        asked.skips = bool(is_local or passing.never or passing.once)
        asked.held.update(passing.held)
        return asked

    def _is_exact(self, asked: Asked, acted: Sequence[Any]) -> bool:
        """Whether this claim had more moves than it can have needed."""
        parts = {(*x.lane, x.kind) for queue in asked.queues for x in self.waiting(queue)}
        tenants = {part[:2] for part in parts}
        needed = 2 * len(parts) + len(tenants) + len(acted)
        return self._is_wide and needed < self.budget.moves and not asked.passing.places

    def _take_out(self, asked: Asked, seen: Observed) -> list[tuple[Task, int | None]]:
        """Take out what this claim dropped or put back. Return each with its new time."""
        acted: list[tuple[Task, int | None]] = []
        for text, outcome in seen.outcomes.items():
            if text not in self.outcomes and outcome.state == "dropped":
                acted.append((self.tasks[outcome.tag], None))
        for queue, rows in seen.delayed.items():
            for tag, eta_ms in rows.items():
                task = self.tasks.get(tag)
                if task and task.place == "waiting" and task.queue == queue:
                    acted.append((task, eta_ms))
        for task, eta_ms in acted:
            rejected = self.rejection(task.limits, asked.rules)
            is_right = eta_ms is None or rejected is None or rejected.action != DROP
            require(is_right, "drop wins over reschedule", tag=task.tag, rejected=rejected)
        for task, eta_ms in acted:
            self._leave(task, "" if eta_ms is None else "delayed")
        return acted

    def _check_action(self, task: Task, eta_ms: int | None, asked: Asked, seen: Observed) -> None:
        """A claim drops or puts back a task only if a limit that rejects it demands so.

        A task that is put back waits for its expected start, which is not before the limit opens
        and at most `snooze_seconds` ahead, or until the limit opens. It waits up to a quarter
        longer.
        """
        older = [
            each.tag
            for each in self.waiting(task.queue, task.key)
            if each.lane == task.lane and each.seq < task.seq and self._takes(each, asked)
        ]
        rule = "a claim drops or puts back only heads of lanes"
        require(not older, rule, tag=task.tag, older=older)
        rules, action = asked.rules, DROP if eta_ms is None else RESCHEDULE
        whole = self._whole(task.queue)
        words = ",".join(filter(None, (whole and _word(whole), task.limits)))
        limits = [self.numbers(limit) for limit in read_limits(words)]
        closed = [(limit, *self.closed_ms(limit, rules)) for limit in limits]
        closed = [(limit, again) for limit, wait, again in closed if wait > 0]
        acting = {
            x.key: again for x, again in closed if x.action == action and self._hold_ms(x) <= 0
        }
        rule = "a task is dropped or put back only by a limit that rejects it and says so"
        require(acting, rule, tag=task.tag, action=action, closed=closed)
        if eta_ms is None:
            self._end(task, "dropped", task.queue)
            owner = next(
                each.owner
                for text, each in seen.outcomes.items()
                if text not in self.outcomes and each.tag == task.tag
            )
            require(owner in acting, "an outcome names the limit that dropped", owner=owner)
            return
        least = self.now + min(acting.values())
        longest = max([rules.snooze_ms, *(again for _, again in closed)])
        most = self.now + math.ceil(longest) * (1 + 1 / JITTER_PARTS)
        if task.expires_ms:
            least, most = min(least, task.expires_ms), min(most, task.expires_ms)
        rule = "a task is put back until its expected start"
        require(least <= eta_ms <= most, rule, tag=task.tag, eta=eta_ms, least=least, most=most)
        task.eta_ms, task.put_back_by = eta_ms, frozenset(map(_whole_key, acting))

    # -- the next task ----------------------------------------------------------------------------

    def _takes(self, task: Task, asked: Asked) -> bool:
        """Whether this process takes a task: its name, and its own share of a queue's limit."""
        kinds = {given.kind for given in asked.given}
        if task.kind in asked.passing.never:
            return False
        if task.kind in asked.passing.once and task.kind in kinds:
            return False
        if not asked.is_local:
            return True
        limits = [self.numbers(x) for x in read_limits(task.limits) if x.of == "q"]
        row = self.queue_limits.get(task.queue)
        if row and not row.parts:
            limits.append(row.limit)
        return all(x.local is None or asked.held[x.key] < x.local for x in limits)

    def _heads(self, queue: str, asked: Asked) -> list[Task]:
        """Return the first task of each lane that may start now and that this process takes.

        A task may start if its tenant is open and every limit has room.
        """
        if self.whole_rejection(queue, asked.rules):
            return []
        heads: dict[Any, Task] = {}
        for task in self.waiting(queue):
            first = heads.get(task.lane)
            if (first is None or task.seq < first.seq) and self._takes(task, asked):
                heads[task.lane] = task
        closed: dict[tuple[str, str], bool] = {}
        for task in heads.values():
            kind = (task.key, task.limits)
            if kind not in closed:
                is_open = self.is_tenant_open(task, asked.rules)
                closed[kind] = not is_open or bool(self.rejection(task.limits, asked.rules))
        return [task for task in heads.values() if not closed[task.key, task.limits]]

    def _check_start(self, claimed: Any, owner: str, asked: Asked, rounds: Rounds) -> None:
        """Check one task of an answer, and start it."""
        tag = claimed.lease.rsplit(".", 2)[0]
        task = self.tasks.get(tag)
        require(task and task.place == "waiting", "only a waiting task is given", tag=tag)
        assert task
        nonce = re.findall(r"\w+$", owner, re.ASCII)[0].rsplit("_", 1)[-1]
        lease = f"{tag}.{task.attempt + 1}.{nonce}"
        whole = self._whole(task.queue)
        limits = ",".join(filter(None, (task.limits, whole and _word(whole))))
        expected = (lease, task.queue, task.attempt + 1, task.rank, task.message)
        got = (claimed.lease, claimed.queue, claimed.attempt, claimed.rank, claimed.message)
        require(got == expected, "a task is given as it was put", expected=expected, got=got)
        keys = ",".join(keys_of(task.key, limits))
        require(claimed.key == keys, "a lease holds a slot of each of its keys", expected=keys)

        rules = asked.rules
        require(self._takes(task, asked), "a process gets only what it takes", tag=tag)
        entitled = self.entitlement(task.key, task.tenant, rules)[0]
        require(
            self.is_tenant_open(task, rules),
            "a tenant never runs more tasks than its tier allows",
            key=task.key,
            limit=entitled,
            held=self.held(task.key),
        )
        rejected = self.rejection(task.limits, rules) or self.whole_rejection(task.queue, rules)
        rule = "no task starts that a limit rejects"
        require(not rejected, rule, tag=tag, limits=limits, rejected=rejected)
        expired = 0 < task.expires_ms <= self.now
        require(not expired or not self._is_wide, "no task starts after its expiry", tag=tag)
        self._check_head(task, asked)
        heads = self._heads(task.queue, asked)
        if asked.exact:
            self._check_turn(task, heads, asked)
            self._check_shared_turn(task, heads, rules)
        has_turn = rounds.accept(
            task.queue, lambda queue: self._check_over(queue, asked), self._may_leave_turn
        )
        require(has_turn, "a process takes no more of a queue than its share", queue=task.queue)
        self._start(task, claimed.lease, owner, limits, asked)

    def _check_head(self, task: Task, asked: Asked) -> None:
        """A lane is first in, first out, and its names keep a common order."""
        for other in self.waiting(task.queue, task.key):
            if other.lane == task.lane and other.seq < task.seq and self._takes(other, asked):
                raise Objection(f"a lane is first in, first out: {task.tag} before {other.tag}")

    def _check_turn(self, task: Task, heads: Sequence[Task], asked: Asked) -> None:
        """The active tenant with the least start is served, with its highest priority first.

        Equal starts go in the order of their keys. With `priority_scope="queue"` the highest
        priority of all tenants goes first. A lane that a limit has blocked competes when the turn
        of its limit comes, so it is not compared here.
        """
        turns = self.turns[task.queue]
        mine = turns.start(task.key)
        for other in heads:
            if other.lane in self.blocked or other is task:
                continue
            facts = {"given": task.tag, "before": other.tag}
            if other.key == task.key:
                require(other.rank <= task.rank, "the highest priority goes first", **facts)
                continue
            if asked.by_rank and other.rank != task.rank:
                rule = "the highest priority of a queue goes first"
                require(other.rank < task.rank, rule, **facts)
                continue
            theirs = turns.start(other.key)
            facts |= {"start": mine, "other": theirs}
            require(mine.low <= theirs.high, "the tenant with the least start goes first", **facts)
            if mine == theirs and mine.is_fixed and not asked.skips:
                is_first = task.key.encode() < other.key.encode() or task.lane in self.blocked
                require(is_first, "equal starts go in the order of their keys", **facts)

    def _check_shared_turn(self, task: Task, heads: Sequence[Task], rules: Any) -> None:
        """Waiters of one shared limit take turns by weight, within one turn.

        A waiter may go before another one with an earlier start in the queue, because the limit
        has a virtual time of its own. It may do so for one turn more than its share.
        """
        turns, amount = self.turns[task.queue], self._charge(task, rules)
        shared, own = _shared(task.limits), turns.start(task.key).low
        if not shared or task.lane not in self.blocked:
            return self._forget_passed(task.lane)
        waiters = {other.lane: other for other in heads if other.key != task.key}
        for lane in [lane for lane in self.blocked if lane[0] == task.queue]:
            if _shared(lane[3]) != shared:
                continue
            other = waiters.get(lane)
            if other is None:
                # For other reasons it cannot start, and it gets no credit for that.
                self._forget_passed(lane)
            elif own > turns.start(other.key).high:
                self.passed[lane, task.key] += amount
                passed, most = self.passed[lane, task.key], self._charge(other, rules) + 2 * amount
                rule, facts = "waiters of one limit take turns", {"given": task.tag}
                facts |= {"before": other.tag}
                require(passed <= most * (1 + 1e-9), rule, passed=passed, most=most, **facts)
        return self._forget_passed(task.lane)

    def _check_over(self, queue: str, asked: Asked) -> None:
        """Claims rotate over their queues: a queue is skipped only if nothing of it may start."""
        if asked.exact:
            heads = [
                head.tag for head in self._heads(queue, asked) if head.lane not in self.blocked
            ]
            require(not heads, "claims rotate over their queues", queue=queue, heads=heads)

    def _may_leave_turn(self, queue: str) -> bool:
        """Whether a lane of a queue may wait at a limit whose next turn is another queue's."""
        return any(task.lane in self.blocked for task in self.waiting(queue))

    def _charge(self, task: Task, rules: Any) -> float:
        """A start adds cost / weight of the tier."""
        _, weight = self.entitlement(task.key, task.tenant, rules)
        return charge_of(self._amount(task, rules), weight)

    def _amount(self, task: Task, rules: Any) -> float:
        """`tasks` charges 1, `cost` the cost of the header, `runtime` the tenant's mean seconds."""
        if rules.fairness_by == "runtime":
            mean = self.accounts[task.key].mean
            return FIRST_RUN_SECONDS if mean is None else mean
        return float(task.cost) if rules.fairness_by == "cost" else 1.0

    def _start(self, task: Task, name: str, owner: str, limits: str, asked: Asked) -> None:
        """A task starts: its tenant is charged, its lease holds slots, its starts are counted."""
        rules = asked.rules
        amount = self._amount(task, rules)
        _, weight = self.entitlement(task.key, task.tenant, rules)
        by_runtime = rules.fairness_by == "runtime"
        finish = self.turns[task.queue].serve(task.key, charge_of(amount, weight), by_runtime)
        for limit in one_per_key(tuple(map(self.numbers, read_limits(limits)))):
            if limit.rates or limit.throttle or limit.key in self.logs:
                self.logs.setdefault(limit.key, StartLog()).start(limit, self.time)
        task.attempt += 1
        # What was claimed once does not expire any more.
        task.expires_ms = 0
        charge = Charge(amount, weight, finish) if by_runtime else None
        ends = self.time + rules.lease_ms
        keys = keys_of(task.key, limits)
        lease = Lease(name, task, owner, ends, self.time, limits, keys, charge=charge)
        self._leave(task, "leased")
        self.leases[name] = lease
        asked.given.append(task)
        asked.held.update(lease.keys)

    # -- what a claim leaves ----------------------------------------------------------------------

    def _check_rest(self, asked: Asked, want: int, rounds: Rounds, answer: Any) -> None:
        """A claim that gives less than it wants leaves nothing that may start.

        "Sleep": nothing of its queues may start, and nothing opens sooner by itself. "Ask again"
        without a task promises nothing.
        """
        given, sleep_ms = len(answer.tasks), answer.sleep_ms
        rules = asked.rules
        require(not given or sleep_ms == 0, "a claim that gives a task asks again")
        longest = min(SLEEP_MS, rules.lease_ms // 3)
        require(0 <= sleep_ms <= longest, "a sleep is short", sleep_ms=sleep_ms, longest=longest)
        weight = sum(self._weight(each) for each in asked.given)
        is_short = given < want and weight < self.budget.taken
        looked = sleep_ms > 0 or (given > 0 and asked.exact and is_short)
        closed = [queue for queue in asked.queues if self._is_closed(queue, rules)]
        # A queue whose room is used up is not looked at.
        rooms = asked.passing.rooms if not asked.passing.lends else {}
        given_of = Counter(task.queue for task in asked.given)
        open_queues = [x for x in asked.queues if given_of[x] < rooms.get(x, NEVER)]
        if looked and not asked.passing.places:
            for queue in open_queues:
                heads = [x.tag for x in self._heads(queue, asked) if not self._is_silent(x)]
                rule = "a claim that gives too little leaves nothing that may start"
                require(not heads, rule, queue=queue, heads=heads)
        if sleep_ms:
            self._check_sleep(asked, open_queues, sleep_ms)
        if given < want:
            for queue in asked.queues:
                if queue in self.turns and queue not in closed:
                    self._forget_debts(queue, asked, is_short and queue in open_queues)

    def _is_closed(self, queue: str, rules: Any) -> bool:
        """Whether the limit of a whole queue lets all its tasks wait."""
        rejected = self.whole_rejection(queue, rules)
        return rejected is not None and rejected.action == WAIT

    def _forget_debts(self, queue: str, asked: Asked, was_looked_at: bool) -> None:
        """Debts are forgotten by a claim that gives too little and leaves nobody startable."""
        everybody = Asked(asked.rules, _Everything(), [queue])
        if self._heads(queue, everybody):
            return
        certain = was_looked_at and asked.exact and not asked.skips
        waiting = {task.key for task in self.waiting(queue)}
        self.turns[queue].forget_debts(waiting, certain)

    def _check_sleep(self, asked: Asked, queues: Sequence[str], sleep_ms: int) -> None:
        """Nothing opens sooner by itself than the worker wakes."""
        soonest = [(ends - self.now, key) for key, (_, ends) in self.overrides.items()]
        soonest += [(ends - self.now, key) for key, ends in self.paused.items()]
        for queue in queues:
            delayed = [task for task in self.delayed(queue) if task.eta_ms != task.expires_ms]
            soonest += [(task.eta_ms - self.now, task.tag) for task in delayed]
            whole = self.whole_rejection(queue, asked.rules)
            for task in self.waiting(queue):
                if not self._takes(task, asked) or not self.is_tenant_open(task, asked.rules):
                    continue
                rejected = self.rejection(task.limits, asked.rules)
                waits = [each.wait_ms for each in (whole, rejected) if each]
                if waits and not self._is_silent(task):
                    soonest.append((max(waits), task.tag))
        for wait_ms, what in soonest:
            rule = "a worker sleeps no longer than until something opens"
            opens_ms = math.ceil(wait_ms) if wait_ms < NEVER else NEVER
            require(sleep_ms <= opens_ms, rule, sleep_ms=sleep_ms, opens_ms=opens_ms, what=what)

    def _weight(self, task: Task) -> int:
        """How much a task counts in an answer: messages may be large."""
        limits = self._whole(task.queue) is not None
        units = len(task.message.encode()) // self.budget.unit_bytes
        return 1 + limits + len(read_limits(task.limits)) + units

    def _is_silent(self, task: Task) -> bool:
        """Whether a lease ended that no call reports: a claim notices it within a second."""
        whole = self._whole(task.queue)
        keys = {*keys_of(task.key, task.limits), *([whole.key] if whole else [])}
        soon = self.time - AGAIN_MS - CLOCK_STEP_MS
        ends = [end for key in keys for end in self.other_leases[key].values()]
        ends += [self.silent[key] for key in keys if key in self.silent]
        return any(soon < end <= self.time for end in ends)

    def _note_skips(self, asked: Asked) -> None:
        """A process that skips tasks leaves tenants behind and sets heads aside."""
        for queue in asked.queues:
            if queue in self.turns and (asked.skips or asked.by_rank or not self._is_wide):
                self.turns[queue].lags = True
        kinds = {*asked.passing.never, *asked.passing.once}
        for task in self.waiting():
            if task.queue in asked.queues and task.kind in kinds and task.came_back is False:
                task.came_back = None

    def _note_blocked(self, asked: Asked) -> None:
        """A claim may have met each lane that a limit rejects now."""
        rejects: dict[str, bool] = {}
        for queue in asked.queues:
            for task in self.waiting(queue):
                if task.limits not in rejects:
                    rejects[task.limits] = bool(self.rejection(task.limits, asked.rules))
                if rejects[task.limits]:
                    self.blocked.add(task.lane)

    def check_wakes(
        self, queues: Sequence[str], seen: Observed, heard: set[str], rules: Any
    ) -> None:
        """Invariant 4: anything that may start has a wake-up, or a worker that wakes in time.

        Args:
            queues: All of them.
            seen: Now.
            heard: Queues for which a worker took the wake-up and has not claimed since.
            rules: The settings of a worker that enforces limits.
        """
        for queue in queues:
            if queue in seen.bells or queue in heard or self.is_changed:
                continue
            everything = Asked(rules, _Everything(), [queue])
            heads = [x for x in self._heads(queue, everything) if not self._is_silent(x)]
            if not heads:
                continue
            time, now = self.time, self.now
            self.time, self.now = self.claimed_at.get(queue, (time, now))
            then = [x.tag for x in self._heads(queue, everything)]
            self.time, self.now = time, now
            # If time alone has opened it since the last claim, the claimant wakes by itself.
            tags = [head.tag for head in heads if head.tag in then]
            require(not tags, "anything that may start has a wake-up", queue=queue, heads=tags)

    # -- other calls ------------------------------------------------------------------------------

    def renew(
        self,
        held: Iterable[tuple[str, str]],
        lease_ms: int,
        epoch: int | None,
        answer: tuple[int, list[int]],
        seen: Observed,
    ) -> None:
        """A renewal names each lease, and its answer lists those that are gone.

        In a new epoch a lease that is gone is registered again: it counts, and ends by itself.
        """
        self._tick(lease_ms)
        lost, missing = epoch not in (None, self.epoch), []
        for place, (name, keys_text) in enumerate(held, 1):
            if name in self.leases:
                self.leases[name].ends = self.time + lease_ms
                continue
            keys = keys_text.split(",")
            ends = [self.other_leases[key].get(name) for key in keys]
            counts = any(end is not None for end in ends)
            if counts and all(end is None or end <= self.time for end in ends):
                # A lease that is over may be cleared away already.
                counts = place not in answer[1]
            if not counts:
                missing.append(place)
            if counts or lost:
                for key in keys:
                    self.other_leases[key][name] = self.time + lease_ms
        expected = (self.epoch, missing)
        require(answer == expected, "a renewal lists what is gone", expected=expected, got=answer)
        self._finish(seen)

    def hold_gate_lease(self, key: str, lease: str, lease_ms: int) -> int:
        """A gate holds a slot of a tenant. Return when its lease ends."""
        self.other_leases[key][lease] = self.time + lease_ms
        return self.time + lease_ms

    def free_gate_lease(self, key: str, lease: str) -> None:
        """A gate gives a slot back. No call reports this to the queues."""
        if self.other_leases[key].pop(lease, None) is not None:
            self.silent[key] = self.time

    def next_outcome(self, written: str, rules: Any, answer: Any, seen: Observed) -> None:
        """A worker gets the outcome that waits longest, and again after a lease if it is lost."""
        self._tick(rules.lease_ms)
        self._end_leases(rules, seen)
        self.outcomes.pop(written, None)
        known = [*self.outcomes.items()]
        known += [(text, self.time) for text in seen.outcomes if text not in self.outcomes]
        due = [(at, text.encode(), text) for text, at in known if at <= self.time]
        expected = min(due)[2] if due else None
        got = answer.text if answer else None
        require(got == expected, "the next outcome is handed out", expected=expected, got=got)
        self._finish(seen)
        if answer:
            self.outcomes[answer.text] = self.time + rules.lease_ms

    def cancel(
        self, tasks: Sequence[Task | None], answer: list[bool], seen: Observed, lease_ms: int
    ) -> None:
        """Waiting and delayed tasks end as revoked. Running ones continue.

        Args:
            tasks: None for a task that has changed since the caller saw it.
        """
        self._tick(lease_ms)
        expected: list[bool] = []
        cancelled: set[str] = set()
        for task in tasks:
            is_gone = task is not None and task.tag in cancelled
            is_there = task is not None and task.place in ("waiting", "delayed") and not is_gone
            expected.append(is_there or is_gone)
            if task is not None and is_there:
                cancelled.add(task.tag)
                self._remove(task)
                self._end(task, "cancelled", task.queue)
        require(answer == expected, "what waits is cancelled", expected=expected, got=answer)
        self._finish(seen)

    def _remove(self, task: Task) -> None:
        if task.place == "waiting":
            self._leave(task)
        else:
            del self.tasks[task.tag]

    def purge(self, queue: str, answer: int, seen: Observed) -> None:
        """A bounded part of the waiting and delayed tasks of a queue is forgotten."""
        gone = [task for task in self.tasks.values() if task.tag not in seen.tasks]
        is_right = all(x.queue == queue and x.place in ("waiting", "delayed") for x in gone)
        require(is_right, "a purge forgets what waits in its queue", gone=gone)
        require(answer == len(gone), "a purge counts", expected=len(gone), got=answer)
        for task in gone:
            self._remove(task)
        is_done = not self.delayed(queue) and not any(self.waiting(queue))
        require(is_done or answer == self.budget.purged, "a purge goes on while something is left")
        self._finish(seen)

    def requeue(self, task: Task, outcome: str, answer: int, seen: Observed) -> None:
        """A dead letter waits again, last in its lane, with no deaths."""
        require(answer == (task.place == "dead"), "only a dead letter is requeued", tag=task.tag)
        if answer:
            self.outcomes.pop(outcome, None)
            task.seq, task.deaths, task.came_back = self._next_seq(), 0, False
            self._wait(task)
        self._finish(seen)

    def move(
        self,
        target: str,
        tasks: Sequence[tuple[Task | None, str]],
        answer: list[bool],
        seen: Observed,
    ) -> None:
        """Waiting tasks keep their places in another queue. Running ones stay.

        Args:
            tasks: Each with the partition that it gets there. None for a task that has changed.
        """
        expected, moved = [], set()
        for task, part in tasks:
            is_there = task is not None and task.place in ("waiting", "delayed")
            is_there = is_there and task is not None and task.tag not in moved
            expected.append(is_there)
            if task is None or not is_there:
                continue
            moved.add(task.tag)
            is_waiting = task.place == "waiting"
            if is_waiting:
                self._leave(task, "moving")
            left = [x for x in task.limits.split(",") if x and x.split("|")[1] != "q"]
            task.limits = self._in_partition(target, ",".join(left), part)
            task.queue, task.put_back_by = target, frozenset()
            if is_waiting:
                self._wait_again(task)
        require(answer == expected, "what waits is moved", expected=expected, got=answer)
        self._finish(seen)

    def size(self, queue: str, answer: tuple[int, int]) -> None:
        """A queue counts the tasks that wait, and those that wait for their time."""
        expected = (sum(1 for _ in self.waiting(queue)), len(self.delayed(queue)))
        require(answer == expected, "a queue counts what waits", expected=expected, got=answer)

    # -- what operators set -----------------------------------------------------------------------

    def hold(
        self, how: str, key: str, wait_ms: int, rules: Any, answer: Any, seen: Observed
    ) -> None:
        """Pause, resume, cool down, or clear a cool-down.

        A later cool-down may extend an earlier one, and never shortens it. A later pause replaces
        an earlier one.
        """
        self._tick(rules.lease_ms)
        if how == "cool":
            self.cooled[key] = max(self.cooled.get(key, 0), self.time + wait_ms)
        elif how == "clear":
            self.cooled.pop(key, None)
        else:
            self.paused.pop(key, None)
        if how == "pause":
            self.paused[key] = self.now + wait_ms if wait_ms else NEVER
        if how != "cool":
            self._change(key, seen)
        pause_ms = self._paused_ms(key)
        expected = (max(0, self.cooled.get(key, 0) - self.time), pause_ms)
        got = (answer.cool_ms, NEVER if answer.pause_ms is None else answer.pause_ms)
        require(got == expected, "a hold lasts as long as it was set", expected=expected, got=got)
        self._finish(seen)

    def override(
        self,
        key: str,
        numbers: Mapping[str, Any] | None,
        ends_ms: float | None,
        rules: Any,
        answer: int,
        seen: Observed,
    ) -> None:
        """Numbers replace those of a key until their end, or until they are cleared (None)."""
        self._tick(rules.lease_ms)
        ends = NEVER if ends_ms is None else ends_ms
        require(answer == (ends > self.now), "an override that is past is refused", got=answer)
        if answer:
            self.overrides.pop(key, None)
            if numbers is not None:
                self.overrides[key] = (dict(numbers), ends)
            self._change(key, seen)
        self._finish(seen)

    def _change(self, key: str, seen: Observed) -> None:
        """People changed a key: tasks that it has put back are due now.

        The next claim judges a tenant anew.
        """
        self.is_changed |= key.startswith("tenant:")
        for task in self.delayed():
            if task.eta_ms <= self.now or _whole_key(key) not in task.put_back_by:
                continue
            if seen.delayed[task.queue].get(task.tag) == self.now:
                task.eta_ms = self.now
            # If its expiry came first, it waits until then.
            is_late = task.eta_ms not in (self.now, task.expires_ms) and len(task.put_back_by) == 1
            require(not is_late, "what a key put back comes when the key changes", tag=task.tag)
            task.put_back_by = frozenset()

    def limit_queue(
        self,
        how: str,
        queue: str,
        key: str,
        numbers: Any,
        parts: bool,
        rules: Any,
        answer: str,
        seen: Observed,
    ) -> None:
        """The limit of a queue is declared, set, cleared, or made known for a hold.

        A queue without numbers is forgotten if nothing needs it. What needs it besides holds and
        overrides is not specified, so the answer decides.
        """
        self._tick(rules.lease_ms)
        before = self.queue_limits.get(queue)
        row = before or QueueLimit(key)
        if how == "declare":
            row.declared, row.parts = numbers, parts and numbers is not None
        elif how in ("set", "clear"):
            row.chosen = numbers
        needed = row.declared or row.chosen or how == "know" or key in self.overrides
        needed = needed or key in self.paused or self.cooled.get(key, 0) > self.time
        require(answer or not needed, "a queue that is needed keeps its limit", queue=queue)
        if answer:
            self.queue_limits[queue] = row
            texts = [each.text if each else "" for each in (row.declared, row.chosen)]
            shape = "parts" if row.parts else "whole"
            got = answer.split(" ")
            is_right = [got[0], got[1], *got[3:]] == [key, shape, *texts]
            require(is_right, "a queue has the numbers that were set", got=answer, expected=texts)
        else:
            self.queue_limits.pop(queue, None)
        if not (before and how == "know"):
            self._change(key, seen)
        self._finish(seen)

    def publish_tiers(self, tiers: Iterable[Any]) -> None:
        """The published table replaces the one before."""
        self.tiers = {tier.name: tier for tier in tiers}
        self.tiers_published = True
        self.is_changed = True

    def publish_tenant(self, tenant: str, tier: str, concurrency: str) -> None:
        """A tenant has this tier and number; an empty tier clears both."""
        if tier:
            self.tenants[tenant] = (tier, concurrency)
        else:
            self.tenants.pop(tenant, None)
        self.is_changed = True


class _Everything:
    """What a process asks that takes every task."""

    never = once = ()
    places: Mapping[str, int] = {}


def _word(limit: Limit) -> str:
    """Return the text of a queue's limit."""
    rates = "+".join(f"{starts}/{period_ms}" for starts, period_ms in limit.rates)
    throttle = "/".join(map(str, limit.throttle)) if limit.throttle else ""
    concurrency = "" if limit.concurrency is None else str(limit.concurrency)
    return f"{limit.key}|{concurrency}|{rates}|{throttle}|{limit.action}g"


def _shared(limits: str) -> frozenset[str]:
    """Return the keys of the limits that more than one tenant may have."""
    return frozenset(limit.key for limit in read_limits(limits) if not limit.private)


def _whole_key(key: str) -> str:
    """Return the key of the whole queue for the key of a partition, and any other key as it is."""
    return ":".join(key.split(":")[:2]) if key.startswith("queue:") else key


def _sibling(queue: str) -> str:
    """Return the other queue of a service to which its tasks may be moved."""
    match = re.fullmatch(r"(.+)_(priority|default)", queue, re.DOTALL)
    if not match:
        return queue
    return f"{match[1]}_{'default' if match[2] == 'priority' else 'priority'}"
