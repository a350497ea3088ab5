"""One claim, judged by the rules: which tasks may start, whose turn it is, and what is left."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tests.reference.admission import NEVER, keys_of, whole_key, word_of
from tests.reference.events import EXCEEDED, RELEASED, Event
from tests.reference.limits import DROP, RESCHEDULE, WAIT, Limit, read_limits, several_of, units_of
from tests.reference.objection import Objection, require
from tests.reference.observed import Observed
from tests.reference.order import Rounds
from tests.reference.statistics import check_minute, check_rejections, start_of
from tests.reference.tasks import Charge, Lease, Task, charge_of, is_parked

if TYPE_CHECKING:
    from tests.reference.reference import Reference

#: The longest sleep of a worker, in ms. It is also at most a third of a lease.
SLEEP_MS = 1000
#: The priority of a task that has waited long.
HIGHEST = 9
#: A tenant without a mean run time is charged this many seconds.
FIRST_RUN_SECONDS = 1
#: A task that its limit puts back waits up to a quarter longer than the expected start.
JITTER_PARTS = 4


class Everything:
    """The wishes of a process that takes every task."""

    never = once = ()
    places: Mapping[str, int] = {}
    held: Mapping[str, int] = {}
    spare = 0


class Claim:
    """One claim of one process.

    Args:
        state: Of the installation.
        rules: The settings of the worker.
        passing: The tasks that its process does not take.
        queues: In the order in which it takes from them.
        expired: By queue, how many tasks expired in this call.

    Attributes:
        skips: It may leave tasks in their places for reasons of its own process.
        promotes: It is the claim of a promoter: what it takes is published, and starts later.
        lets_all: It does so for a worker that enforces nothing, and takes what is stopped too.
        exact: The bounds of a call cannot have cut this claim short.
        takes_several: How many tasks that take several of any key have each key. If a key ends to
            save for one, the next claim looks at the others. The key may also begin and end to save
            in this claim.
        given: The tasks that it was given so far.
        held: By key, the slots that its process holds.
    """

    def __init__(
        self,
        state: Reference,
        rules: Any,
        passing: Any,
        queues: Sequence[str],
        expired: Mapping[str, int],
    ) -> None:
        self.state, self.admission = state, state.admission
        self.rules, self.passing = rules, passing
        self.promotes = is_parked(queues[0])
        self.lets_all = self.promotes and rules.enforcement != "on"
        self.queues = [queue for queue in dict.fromkeys(queues) if any(state.waiting(queue))]
        rows = filter(None, map(state.admission.queue_limits.get, queues))
        limits = (limit for row in rows for limit in (row.limit, row.part("")))
        has_local = any(limit.local is not None for limit in limits)
        self.is_local = has_local and rules.enforcement == "on"
        self.skips = bool(self.is_local or passing.never or passing.once)
        self.exact = True
        self.expired = expired
        self.takes_several = Counter(
            key
            for queue in self.queues
            for x in state.waiting(queue)
            if several_of(x.limits)
            for key in {limit.key for limit in read_limits(x.limits)}
        )
        self.given: list[Task] = []
        #: The turns of the queues for lent tasks, from the first one on.
        self._lent: Rounds | None = None
        self.starts: Counter[tuple[str, str, str]] = Counter()
        self._dropped: list[Task] = []
        self.held = Counter(passing.held)
        #: By task that this claim drops or puts back: its closed limits before the first start.
        self._again: dict[str, dict[str, float]] = {}

    @classmethod
    def of_everything(cls, state: Reference, rules: Any, queue: str) -> Claim:
        """Return the claim of a process that takes every task of a queue."""
        claim = cls(state, rules, Everything(), [queue], {})
        claim.is_local = False
        return claim

    @property
    def by_rank(self) -> bool:
        """Whether the highest priority of a queue goes first, whichever tenant has it."""
        return bool(self.rules.priority_scope == "queue")

    def judge(self, owner: str, want: int, answer: Any, seen: Observed) -> None:
        """Check the tasks of an answer in their order and start them. Check what is left."""
        acted = self.take_out(seen)
        self.note_skips()
        self.exact = self._is_exact(acted)
        passing = self.passing
        rounds = Rounds(self.queues, passing.rooms, passing.lends, passing.strict, self.expired)
        for claimed in answer.tasks:
            self.check_start(claimed, owner, rounds, want)
        for task, eta_ms in acted:
            self.check_action(task, eta_ms, seen)
        require(len(answer.tasks) <= want, "a claim gives at most the tasks it wants", want=want)
        self.check_rest(want, answer)
        self.note_blocked()

    def _is_exact(self, acted: Sequence[Any]) -> bool:
        """Whether this claim had more moves than it can have needed."""
        parts = {(*x.lane, x.kind) for queue in self.queues for x in self.state.waiting(queue)}
        tenants = {part[:2] for part in parts}
        needed = 2 * len(parts) + 2 * len(tenants) + len(acted)
        return self.state.is_wide and needed < self.state.budget.moves and not self.passing.places

    def take_out(self, seen: Observed) -> list[tuple[Task, int | None]]:
        """Take out what this claim dropped or put back. Return each with its new time."""
        acted: list[tuple[Task, int | None]] = []
        for text, outcome in seen.outcomes.items():
            if text not in self.state.outcomes and outcome.state == "dropped":
                acted.append((self.state.tasks[outcome.tag], None))
        for queue, rows in seen.delayed.items():
            for tag, eta_ms in rows.items():
                task = self.state.tasks.get(tag)
                if task and task.place == "waiting" and task.queue == queue:
                    acted.append((task, eta_ms))
        for task, eta_ms in acted:
            rejected = self._rejection(task, self.promotes)
            is_right = eta_ms is None or rejected is None or rejected.action != DROP
            require(is_right, "drop wins over reschedule", tag=task.tag, rejected=rejected)
            self._again[task.tag] = {
                limit.key: again for limit, again in self._closed(task, beside=False)
            }
        for task, eta_ms in acted:
            self.state.leave(task, "" if eta_ms is None else "delayed")
        return acted

    def _rejection(self, task: Task, early: bool = False, beside: bool = False) -> Any:
        """Return why the limits of a task let it not start now. A promotion may be early.

        With ``beside`` it leaves what keys may save for others.
        """
        if self.lets_all:
            return None
        place = task.waiter if beside else None
        return self.admission.rejection(task.limits, self.rules, early, place)

    def _is_tenant_open(self, task: Task) -> bool:
        return self.lets_all or self.state.is_tenant_open(task, self.rules, self.promotes)

    def _closed(self, task: Task, beside: bool = True) -> list[tuple[Limit, float]]:
        """Return the limits that reject a task, each with the time of the next try.

        With ``beside``, those that save for another task are among them.
        """
        whole = self.admission.whole(task.queue)
        words = ",".join(filter(None, (whole and word_of(whole), task.limits)))
        limits = [self.admission.numbers(limit) for limit in read_limits(words)]
        place = task.waiter if beside else None
        closed = [
            (limit, *self.admission.closed_ms(limit, self.rules, self.promotes, place))
            for limit in limits
        ]
        return [] if self.lets_all else [(x, again) for x, wait, again in closed if wait > 0]

    def check_action(self, task: Task, eta_ms: int | None, seen: Observed) -> None:
        """A claim drops or puts back a task only if a limit that rejects it demands so.

        A task that is put back waits for its expected start, which is not before the limit opens
        and at most `snooze_seconds` ahead, or until the limit opens. It waits up to a quarter
        longer.
        """
        older = [
            each.tag
            for each in self.state.waiting(task.queue, task.key)
            if each.lane == task.lane and each.seq < task.seq and self.takes(each)
        ]
        rule = "a claim drops or puts back only heads of lanes"
        require(not older, rule, tag=task.tag, older=older)
        rules, action = self.rules, DROP if eta_ms is None else RESCHEDULE
        closed = self._closed(task)
        acting = {
            x.key: again
            for x, again in closed
            if x.action == action and self.admission.hold_ms(x) <= 0
        }
        if not acting:
            # A key may have saved for another task until now.
            limits = map(self.admission.numbers, read_limits(task.limits))
            saving = (x for x in limits if x.action == action and (x.rates or x.concurrency))
            own = bool(several_of(task.limits))
            acting = {x.key: 0.0 for x in saving if self.takes_several[x.key] > own}
        rule = "a task is dropped or put back only by a limit that rejects it and says so"
        require(acting, rule, tag=task.tag, action=action, closed=closed)
        if eta_ms is None:
            owner = next(
                each.owner
                for text, each in seen.outcomes.items()
                if text not in self.state.outcomes and each.tag == task.tag
            )
            self.state.end(task, "dropped", task.queue, key=owner)
            self._dropped.append(task)
            require(owner in acting, "an outcome names the limit that dropped", owner=owner)
            return
        # A limit that this claim has closed may have rejected the task before its last start.
        before = self._again[task.tag]
        least = self.state.now + min(before.get(key, 0) for key in acting)
        # A limit below what the task takes opens by a change alone, which has no time.
        longest = max([rules.snooze_ms, *(again for _, again in closed if again < NEVER)])
        most = self.state.now + math.ceil(longest) * (1 + 1 / JITTER_PARTS)
        if task.expires_ms:
            least, most = min(least, task.expires_ms), min(most, task.expires_ms)
        rule = "a task is put back until its expected start"
        require(least <= eta_ms <= most, rule, tag=task.tag, eta=eta_ms, least=least, most=most)
        task.eta_ms, task.put_back_by = eta_ms, frozenset(map(whole_key, acting))

    # -- the next task ----------------------------------------------------------------------------

    def takes(self, task: Task) -> bool:
        """Whether this process takes a task: its name, and its own share of a queue's limit."""
        kinds = {given.kind for given in self.given}
        if task.kind in self.passing.never:
            return False
        if task.kind in self.passing.once and task.kind in kinds:
            return False
        if not self.is_local:
            return True
        limits = [self.admission.numbers(x) for x in read_limits(task.limits) if x.of == "q"]
        row = self.admission.queue_limits.get(task.queue)
        if row:
            limits.append(row.limit)
        return all(x.local is None or self.held[x.key] < x.local for x in limits)

    def all_heads(self, queue: str) -> list[Task]:
        """Return the heads of a queue, and those to which a place may be lent."""
        return [*self.heads(queue), *self.heads(queue, is_lent=True)]

    def _may_lend(self, task: Task) -> bool:
        return not self.promotes and self.state.is_tenant_lent(task, self.rules)

    def heads(self, queue: str, is_lent: bool = False) -> list[Task]:
        """Return the first task of each lane that may start now and that this process takes.

        A task may start if its tenant is open and every limit has room. With ``is_lent``, its
        tenant may be lent a place.
        """
        of_tenant = self._may_lend if is_lent else self._is_tenant_open
        if self.admission.whole_rejection(queue, self.rules):
            return []
        heads: dict[Any, Task] = {}
        for task in self.state.waiting(queue):
            first = heads.get(task.lane)
            if (first is None or task.seq < first.seq) and self.takes(task):
                heads[task.lane] = task
        closed: dict[tuple[str, str], bool] = {}
        for task in heads.values():
            kind = (task.key, task.limits)
            if kind not in closed:
                is_open = of_tenant(task) and not self._rejection(task, beside=True)
                closed[kind] = not is_open
        opened = [task for task in heads.values() if not closed[task.key, task.limits]]
        return [task for task in opened if not self._is_behind(task, heads.values())]

    def _is_behind(self, task: Task, firsts: Iterable[Task]) -> bool:
        """Whether it may have to wait for a task that takes several.

        Its tenant has one before it at the same keys. Or one of any tenant waits at a key that
        saves for a third task, so both may wait at one place. That lasts until the saving ends.
        """
        keys = [limit.key for limit in read_limits(task.limits)]
        saves = self.admission.saving_keys().intersection(keys)
        if saves and any(saves & several_of(x.limits) for x in firsts if x is not task):
            return True
        return any(
            (other.rank, -other.seq) > (task.rank, -task.seq)
            and several_of(other.limits)
            and [limit.key for limit in read_limits(other.limits)] == keys
            for other in firsts
            if other.key == task.key and other is not task
        )

    def check_start(self, claimed: Any, owner: str, rounds: Rounds, want: int) -> None:
        """Check one task of an answer, and start it."""
        tag = claimed.lease.rsplit(".", 2)[0]
        task = self.state.tasks.get(tag)
        require(task and task.place == "waiting", "only a waiting task is given", tag=tag)
        assert task
        nonce = re.findall(r"[0-9A-Za-z]+$", owner)[0]
        lease = f"{tag}.{task.attempt + 1}.{nonce}"
        whole = self.admission.whole(task.queue)
        limits = ",".join(filter(None, (task.limits, whole and word_of(whole))))
        expected = (lease, task.queue, task.attempt + 1, task.deaths, task.rank, task.message)
        got = (
            *(claimed.lease, claimed.queue, claimed.attempt, claimed.deaths),
            *(claimed.rank, claimed.message),
        )
        require(got == expected, "a task is given as it was put", expected=expected, got=got)
        keys = self._keys_with(task, limits)
        require(claimed.key == keys, "a lease holds slots of each of its keys", expected=keys)

        rules = self.rules
        require(self.takes(task), "a process gets only what it takes", tag=tag)
        entitled = self.state.entitlement(task, rules).limit
        is_lent = not self._is_tenant_open(task)
        require(
            not is_lent or self._may_lend(task),
            "a tenant never runs or starts more tasks than its tier allows",
            key=task.key,
            limit=entitled,
            held=self.admission.held(task.key),
        )
        rejected = self._rejection(task, self.promotes)
        rejected = rejected or self.admission.whole_rejection(task.queue, rules)
        rule = "no task starts that a limit rejects"
        require(not rejected, rule, tag=tag, limits=limits, rejected=rejected)
        is_expired = 0 < task.expires_ms <= self.state.now
        require(not is_expired, "no task starts after its expiry", tag=tag)
        self._check_saving(task)
        self._check_head(task)
        if is_lent:
            self._check_lent(task, rounds, want)
            self._start(task, claimed.lease, owner, limits)
            return
        heads = self.heads(task.queue)
        if self.exact:
            self._check_turn(task, heads)
            self._check_shared_turn(task, heads)
        has_turn = rounds.accept(task.queue, self._check_over, self._may_leave_turn)
        require(has_turn, "a process takes no more of a queue than its share", queue=task.queue)
        self._start(task, claimed.lease, owner, limits)

    def _keys_with(self, task: Task, limits: str) -> str:
        """Return the keys of a start, each with what the task takes of it."""
        slots, units = self.admission.slots_of(limits), units_of(limits)
        words = []
        for key in keys_of(task.key, limits):
            amounts = [f"S{slots[key]}"] if key in slots else []
            amounts += [f"U{units[key]}"] if key in units else []
            words.append(f"{key}*{';'.join(amounts)}" if amounts else key)
        return ",".join(words)

    def _check_lent(self, task: Task, rounds: Rounds, want: int) -> None:
        """A place is lent only if the claim finds nothing else in any of its queues.

        More places than the process keeps back must be free. Tenants that are lent places take
        turns by their starts, and queues by the rounds of their own, with what is left of the
        process's shares.
        """
        free, spare = want - len(self.given), self.passing.spare
        rule = "a process lends only what it does not keep back"
        require(free > spare, rule, tag=task.tag, free=free, spare=spare)
        if self._lent is None:
            rounds.end(lambda queue: None, lambda queue: False)
            rooms = {} if self.passing.lends else rounds.rooms
            self._lent = Rounds(self.queues, rooms, False, self.passing.strict, {})
        rooms = self._lent.rooms
        for queue in self.queues:
            is_asked = rooms.get(queue, 1) > 0 and queue not in self.passing.places
            heads = self.heads(queue) if is_asked and not self.takes_several else []
            rule = "a place is lent only if nothing else may start"
            require(not heads, rule, lent=task.tag, queue=queue, heads=heads)
        if self.exact:
            self._check_turn(task, self.heads(task.queue, is_lent=True), is_lent=True)
        self.state.forget_passed(task.lane)
        has_turn = self._lent.accept(task.queue, self._check_lent_over, lambda queue: False)
        rule = "a process is lent no more of a queue than its share"
        require(has_turn, rule, queue=task.queue)

    def _check_lent_over(self, queue: str) -> None:
        """Queues take turns for lent places too."""
        if self.exact and not self.takes_several:
            heads = self.heads(queue, is_lent=True)
            heads = [x for x in heads if x.lane not in self.state.blocked]
            require(not heads, "lent places rotate over queues", queue=queue, heads=heads)

    def _check_saving(self, task: Task) -> None:
        """A task leaves what a key saves for the first task of another place."""
        if self.rules.enforcement != "on":
            return
        limits = read_limits(task.limits)
        for limit in map(self.admission.numbers, limits):
            is_passed = self.admission.is_passed(limit, task.queue)
            rule = "a task leaves what a key saves for another one"
            require(not is_passed, rule, tag=task.tag, limit=limit, saved=self.admission.saved)

    def _check_head(self, task: Task) -> None:
        """A lane is first in, first out, and its names keep a common order."""
        is_raised = self._largest_rank(task) > task.rank
        for other in self.state.waiting(task.queue, task.key):
            if is_raised and other.kind != task.kind:
                # A task that came back after the other one was raised does not go before it.
                continue
            if other.lane == task.lane and other.seq < task.seq and self.takes(other):
                raise Objection(f"a lane is first in, first out: {task.tag} before {other.tag}")

    def _check_turn(self, task: Task, heads: Sequence[Task], is_lent: bool = False) -> None:
        """The active tenant with the least start is served, with its highest priority first.

        Equal starts go in the order of their keys. With `priority_scope="queue"` the highest
        priority of all tenants goes first. A task that has waited long may count as one of the
        highest. If it is the oldest of its priority, it must do so after twice that time. A lane
        that a limit has blocked competes when the turn of its limit comes, so it is not compared
        here. Lent places go by the starts alone.
        """
        turns = self.state.turns[task.queue]
        mine = turns.start(task.key)
        for other in heads:
            if other.lane in self.state.blocked or other is task:
                continue
            if any(x.key in self.takes_several for x in read_limits(other.limits)):
                # A key may have saved for another task until now.
                continue
            facts = {"given": task.tag, "before": other.tag}
            if other.key == task.key:
                is_high = self._least_rank(other) <= self._largest_rank(task)
                require(is_high, "the highest priority goes first", **facts)
                continue
            if self.rules.enforcement != "on" and self.rules.default_numbers:
                # A worker that observes meets tenants at their limit before those with a burst.
                continue
            if self.by_rank and not is_lent and not self._same_rank(task, other):
                rule = "the highest priority of a queue goes first"
                require(self._least_rank(other) <= self._largest_rank(task), rule, **facts)
                continue
            theirs = turns.start(other.key)
            facts |= {"start": mine, "other": theirs}
            require(mine.low <= theirs.high, "the tenant with the least start goes first", **facts)
            # Those that are lent places keep the order in which they were blocked.
            if mine == theirs and mine.is_fixed and not self.skips and not is_lent:
                is_first = task.key.encode() < other.key.encode() or self._may_be_blocked(task)
                require(is_first, "equal starts go in the order of their keys", **facts)

    def _may_be_blocked(self, task: Task) -> bool:
        """Return whether a limit may have blocked a lane. A key may have saved within one claim."""
        limits = read_limits(task.limits)
        return task.lane in self.state.blocked or any(x.key in self.takes_several for x in limits)

    def _largest_rank(self, task: Task) -> int:
        """Return the highest priority as which a task may count."""
        aging_ms = self.state.aging_ms
        has_waited = aging_ms and self.state.waited_ms(task) >= aging_ms
        return HIGHEST if has_waited else task.rank

    def _least_rank(self, task: Task) -> int:
        """Return the lowest priority as which a task may count."""
        aging_ms = self.rules.priority_aging_ms
        if aging_ms is None or not self.state.is_wide:
            return task.rank
        place = (task.queue, task.key, task.rank)
        left_ms = max(self.state.left_ms.get(place, 0), self.state.set_back_ms)
        since_ms = max(task.since_ms or 0, left_ms)
        waiting = self.state.waiting(task.queue, task.key)
        is_oldest = all(task.seq <= each.seq for each in waiting if each.rank == task.rank)
        has_waited = self.state.now - since_ms >= 2 * aging_ms
        return HIGHEST if is_oldest and has_waited else task.rank

    def _same_rank(self, task: Task, other: Task) -> bool:
        """Whether two tasks certainly count as one priority."""
        ranks = {self._least_rank(task), self._largest_rank(task)}
        return ranks == {self._least_rank(other)} == {self._largest_rank(other)}

    def _check_shared_turn(self, task: Task, heads: Sequence[Task]) -> None:
        """Waiters of one shared limit take turns by weight, within one turn.

        A waiter may go before another one with an earlier start in the queue, because the limit
        has a virtual time of its own. It may do so for one turn more than its share. In this time
        counts what the other tenant took of the limit in any queue.
        """
        turns, amount = self.state.turns[task.queue], self._charge(task)
        shared, own = _shared(task.limits), turns.start(task.key).low
        if not shared or task.lane not in self.state.blocked:
            return self.state.forget_passed(task.lane)
        waiters = {other.lane: other for other in heads if other.key != task.key}
        for lane in [lane for lane in self.state.blocked if lane[0] == task.queue]:
            if _shared(lane[3]) != shared:
                continue
            other = waiters.get(lane)
            if other is None:
                # For other reasons it cannot start, and it gets no credit for that.
                self.state.forget_passed(lane)
            elif own > turns.start(other.key).high:
                passed = self.state.passed[lane, task.key]
                passed.append(amount)
                owed = [self.state.charges.get((other.key, key), 0) for key in shared]
                most = max(self._charge(other), *owed)
                rule, facts = "waiters of one limit take turns", {"given": task.tag}
                facts |= {"before": other.tag}
                # Its last turn, and one more, do not count.
                is_fair = sum(passed[:-2]) <= most * (1 + 1e-9)
                require(is_fair, rule, passed=passed, most=most, **facts)
        return self.state.forget_passed(task.lane)

    def _check_over(self, queue: str) -> None:
        """Claims rotate over their queues: a queue is skipped only if nothing of it may start."""
        if self.exact:
            heads = [x for x in self.heads(queue) if x.lane not in self.state.blocked]
            require(not heads, "claims rotate over their queues", queue=queue, heads=heads)

    def _may_leave_turn(self, queue: str) -> bool:
        """Whether a lane of a queue may wait at a limit whose next turn is another queue's."""
        return any(task.lane in self.state.blocked for task in self.state.waiting(queue))

    def _charge(self, task: Task) -> float:
        """A start adds cost / weight of the tier."""
        return charge_of(self._amount(task), self.state.entitlement(task, self.rules).weight)

    def _amount(self, task: Task) -> float:
        """`tasks` charges 1, `cost` the cost of the header, `runtime` the tenant's mean seconds."""
        if self.rules.fairness_by == "runtime":
            mean = self.state.accounts[task.key].mean
            return FIRST_RUN_SECONDS if mean is None else mean
        return float(task.cost) if self.rules.fairness_by == "cost" else 1.0

    def _start(self, task: Task, name: str, owner: str, limits: str) -> None:
        """A task starts: its tenant is charged, its lease holds slots, its starts are counted."""
        rules = self.rules
        amount = self._amount(task)
        tenant = self.state.entitlement(task, rules)
        weight = tenant.weight
        by_runtime = rules.fairness_by == "runtime"
        charged = charge_of(amount, weight)
        for key in _shared(limits):
            owed = self.state.charges.get((task.key, key), 0)
            self.state.charges[task.key, key] = max(owed, charged)
        finish = self.state.turns[task.queue].serve(task.key, charged, by_runtime)
        task.attempt += 1
        tier = self.state.tier_of(task, rules)
        ends = self.state.time + rules.lease_ms
        keys = keys_of(task.key, limits)
        units = units_of(limits)
        lease = Lease(name, task, owner, ends, self.state.time, keys, units=units)
        self.state.leave(task, "leased")
        self.state.leases[name] = lease
        # If its worker has registered it again, it counts at the keys of both.
        slots = dict.fromkeys(keys, 1) | self.admission.slots_of(limits)
        if other := self.admission.others.pop(name, None):
            slots = {key: other.slots.get(key, 1) for key in other.keys} | slots
            lease.units = {k: n for k, n in other.units.items() if k not in keys} | units
        self.admission.claimed[name] = slots
        self.given.append(task)
        self.held.update(lease.keys)
        if self.promotes:
            # The gate counts its start, and reports it. Until then it may expire.
            lease.state = "promoted"
            self.admission.reserve(limits, tenant, name, ends)
            copies = self.state.copies[task.tag]
            copies.name(name, name)
            copies.attempts = task.attempt
            return
        self.admission.count_starts(limits, tenant)
        lease.charge = Charge(amount, weight, finish) if by_runtime else None
        waited_ms = self.state.now - (task.since_ms or 0) if task.attempt == 1 else None
        how = start_of(waited_ms, task.is_noisy)
        self.starts[how, tier, task.queue] += 1
        if task.rejected_by and not task.is_released:
            key, strategy = task.rejected_by
            if waited_ms is not None:
                of = "_other" if key.startswith("tenant:") else key
                self.starts[f"limited:{how.partition(':')[2]}", "", of] += 1
            self.state.book.expect(RELEASED, task.tag, task.queue, key=key, strategy=strategy)
            task.is_released = True
        # A task that was claimed once does not expire any more.
        task.expires_ms = 0

    def is_rejected(self, event: Event) -> bool:
        """Whether a limit rejects a task that was never reported, and the event names this limit.

        The gate reported the rejection of a parked task.

        No limit opens while a claim runs, so a limit that rejected the task still does so.
        """
        task, fields = self.state.tasks.get(event.tag), dict(event.fields)
        is_new = task and task.rejected_by is None and not task.is_released
        if self.promotes or not task or not is_new or task.place not in ("waiting", "delayed"):
            return False
        key, strategy = fields["key"], fields["strategy"]
        task.rejected_by = (key, strategy)
        if key == task.key and self._is_tenant_closed(task):
            limit = self.state.entitlement(task, self.rules).limit
            if strategy in self._strategies(limit, fields["limit"], of_tier=True):
                return True
        # A limit of a task may have the key of a tenant's tier.
        closed = [limit for limit, _ in self._closed(task) if limit.key == key]
        if key in self.takes_several:
            limits = map(self.admission.numbers, read_limits(task.limits))
            closed += [limit for limit in limits if limit.key == key]
        return any(strategy in self._strategies(limit, fields["limit"]) for limit in closed)

    def check_statistics(self, seen: Observed) -> None:
        """A claim counts its starts, and the rejections that it meets.

        For parked tasks the gate does. A claim that drops or puts back counts that.
        """
        is_quiet = self.promotes and not self._again
        require(not (is_quiet and seen.rejections), "a gate counts rejections of parked tasks")
        check_minute(seen.minute, self.starts)
        exceeded = [dict(event.fields) for event in seen.events if event.type == EXCEEDED]
        reported = Counter((fields["strategy"], fields["key"]) for fields in exceeded)
        check_rejections(seen.rejections, reported, self._is_rejecting)

    def _is_tenant_closed(self, task: Task) -> bool:
        """Whether the tenant of a task may neither start one nor be lent a place."""
        is_open = self.state.is_tenant_open(task, self.rules)
        return not is_open and not self._may_lend(task)

    def _is_rejecting(self, key: str) -> bool:
        """Whether a limit of a key rejects a task that is there, or that this claim dropped."""
        places = ("waiting", "delayed")
        left = [x for x in self.state.tasks.values() if x.place in places]
        if any(x.key == key and self._is_tenant_closed(x) for x in left):
            return True
        return key in self.takes_several or any(
            limit.key == key for task in (*left, *self._dropped) for limit, _ in self._closed(task)
        )

    def _strategies(self, limit: Limit, number: str, *, of_tier: bool = False) -> set[str]:
        """Return by which of its numbers a closed limit may reject, if the event has ``number``."""
        if of_tier and limit.concurrency == 0:
            return {"paused"} if number == "0" else set()
        if not of_tier and self.admission.hold_ms(limit) > 0:
            is_paused = limit.concurrency == 0 or self.admission.paused_ms(limit.key) > 0
            return {"paused" if is_paused else "cool-down"} if number == "0" else set()
        most = limit.concurrency
        if of_tier and most and limit.burst:
            most = max(most, limit.burst)
        numbers = {
            "concurrency": [most],
            "rate": [starts for starts, _ in limit.rates],
            "throttle": [limit.throttle[0]] if limit.throttle else [],
        }
        return {name for name, known in numbers.items() if number in map(str, known)}

    # -- what a claim leaves ----------------------------------------------------------------------

    def check_rest(self, want: int, answer: Any) -> None:
        """A claim that gives less than it wants leaves nothing that may start.

        "Sleep": nothing of its queues may start, and nothing opens sooner by itself. "Ask again"
        without a task promises nothing.
        """
        given, sleep_ms = len(answer.tasks), answer.sleep_ms
        rules = self.rules
        require(not given or sleep_ms == 0, "a claim that gives a task asks again")
        longest = min(SLEEP_MS, rules.lease_ms // 3)
        if self.promotes and not self.queues:
            longest = rules.lease_ms // 3
        require(0 <= sleep_ms <= longest, "a sleep is short", sleep_ms=sleep_ms, longest=longest)
        weight = sum(self._weight(each) for each in self.given)
        is_short = given < want and weight < self.state.budget.taken
        is_done = given > 0 and self.exact and is_short and not self.takes_several
        looked = sleep_ms > 0 or is_done
        closed = [queue for queue in self.queues if self._is_closed(queue)]
        # A queue whose room is used up is not looked at, nor are the places that are passed over.
        rooms = self.passing.rooms if not self.passing.lends else {}
        given_of = Counter(task.queue for task in self.given)
        open_queues = [x for x in self.queues if given_of[x] < rooms.get(x, NEVER)]
        open_queues = [x for x in open_queues if x not in self.passing.places]
        if looked:
            for queue in open_queues:
                heads = [x.tag for x in self.heads(queue)]
                rule = "a claim that gives too little leaves nothing that may start"
                require(not heads, rule, queue=queue, heads=heads)
        lends = want - given > self.passing.spare
        if sleep_ms and lends:
            for queue in open_queues:
                heads = [x.tag for x in self.heads(queue, is_lent=True)]
                rule = "a claim with a free place leaves nothing to which it may be lent"
                require(not heads, rule, queue=queue, heads=heads)
        if sleep_ms:
            self._check_sleep(open_queues, sleep_ms, lends)
        if given < want:
            for queue in self.queues:
                if queue in self.state.turns and queue not in closed:
                    self._forget_debts(queue, is_short and lends and queue in open_queues)

    def _is_closed(self, queue: str) -> bool:
        """Whether the limit of a whole queue lets all its tasks wait."""
        rejected = self.admission.whole_rejection(queue, self.rules)
        return rejected is not None and rejected.action == WAIT

    def _forget_debts(self, queue: str, was_looked_at: bool) -> None:
        """Debts are forgotten by a claim that gives too little and leaves nobody startable."""
        if Claim.of_everything(self.state, self.rules, queue).all_heads(queue):
            return
        certain = was_looked_at and self.exact and not self.skips
        waiting = {task.key for task in self.state.waiting(queue)}
        self.state.turns[queue].forget_debts(waiting, certain)

    def _check_sleep(self, queues: Sequence[str], sleep_ms: int, lends: bool) -> None:
        """Nothing opens sooner by itself than the worker wakes, which may lend a place then."""
        soonest = [
            (ends - self.state.now, key) for key, (_, ends) in self.admission.overrides.items()
        ]
        soonest += [(ends - self.state.now, key) for key, ends in self.admission.paused.items()]
        for queue in queues:
            delayed = [task for task in self.state.delayed(queue) if task.eta_ms != task.expires_ms]
            soonest += [(task.eta_ms - self.state.now, task.tag) for task in delayed]
            whole = self.admission.whole_rejection(queue, self.rules)
            for task in self.state.waiting(queue):
                if not self.takes(task):
                    continue
                rejected = self._rejection(task, beside=True)
                waits = [each.wait_ms for each in (whole, rejected) if each]
                if not self._is_tenant_open(task):
                    limit = self.state.entitlement(task, self.rules).limit
                    lent = self.admission.lent_closed_ms(limit, self.rules)
                    closed = self.state.tenant_closed_ms(task, self.rules)
                    waits.append(lent if lends and not self.promotes else closed)
                if waits:
                    soonest.append((max(waits), task.tag))
        for wait_ms, what in soonest:
            rule = "a worker sleeps no longer than until something opens"
            opens_ms = math.ceil(wait_ms) if wait_ms < NEVER else NEVER
            require(sleep_ms <= opens_ms, rule, sleep_ms=sleep_ms, opens_ms=opens_ms, what=what)

    def _weight(self, task: Task) -> int:
        """How much a task counts in an answer: messages may be large."""
        limits = self.admission.whole(task.queue) is not None
        units = len(task.message.encode()) // self.state.budget.unit_bytes
        return 1 + limits + len(read_limits(task.limits)) + units

    def note_skips(self) -> None:
        """A process that skips tasks leaves tenants behind."""
        for queue in self.queues:
            if queue in self.state.turns and (self.skips or self.by_rank or not self.state.is_wide):
                self.state.turns[queue].lags = True

    def note_blocked(self) -> None:
        """A claim may have met each lane that a limit rejects now."""
        rejects: dict[tuple[str, Any], bool] = {}
        for queue in self.queues:
            for task in self.state.waiting(queue):
                kind = (task.limits, task.waiter)
                if kind not in rejects:
                    rejected = self.admission.rejection(task.limits, self.rules, beside=task.waiter)
                    rejects[kind] = rejected is not None
                if rejects[kind]:
                    self.state.blocked.add(task.lane)


def _shared(limits: str) -> frozenset[str]:
    """Return the keys of the limits that more than one tenant may have."""
    return frozenset(limit.key for limit in read_limits(limits) if not limit.private)
