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

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from celery_fairness.config.queue_limits import write_queue
from celery_fairness.scheduler.types import Existing
from tests.reference.admission import (
    NEVER,
    SYSTEM,
    Admission,
    Entitlement,
    Other,
    QueueLimit,
    is_pattern,
    keys_with,
    read_saved,
    whole_key,
    word_of,
)
from tests.reference.claims import Claim
from tests.reference.copies import NOBODY, Copies
from tests.reference.events import OF_OUTCOME, Book, Event
from tests.reference.limits import read_limits, several_of
from tests.reference.objection import require
from tests.reference.observed import Observed
from tests.reference.order import Turns
from tests.reference.statistics import check_ends, check_minute
from tests.reference.tasks import (
    Account,
    Lease,
    Task,
    Unique,
    charge_of,
    id_of,
    read_unique,
)

#: A worker that must register its leases again waits this long, in ms.
REGISTER_MS = 10
#: A worker of a gate ends at most this many holds at once.
FORGOTTEN_AT_MOST = 64
#: A renewal, and a start at a gate, end at most this many leases.
ENDED_AT_MOST = 64
#: A parked task that could not be published pauses for this part of a lease at first.
FIRST_PAUSE = 1 / 16
#: Outcomes of promotions alone.
OF_PROMOTIONS = ("sent", "unsent", "rejected")
#: The field of a minute that counts an end of a body, without the queue.
RAN = {"done": "done  ", "failed": "failed  ", "retried": "retried  "}
#: The last run is one part of this many in the mean run time of a tenant.
MEAN_PARTS = 8


class Reference:
    """The state of one installation.

    Args:
        budget: The bounds of one call.
    """

    def __init__(self, budget: Any) -> None:
        self.budget = budget
        self.admission = Admission()
        self.sequence = 0
        self.tasks: dict[str, Task] = {}
        self.leases: dict[str, Lease] = {}
        self.turns: dict[str, Turns] = {}
        self.accounts: dict[str, Account] = {}
        #: Lanes that some claim has met while a limit rejected them.
        self.blocked: set[tuple[str, str, int, str]] = set()
        #: By a blocked lane and a tenant, the charges of this tenant out of turn.
        self.passed: dict[tuple[Any, str], list[float]] = defaultdict(list)
        #: By tenant and key of a shared limit, its largest charge while tasks wait for the limit.
        self.charges: dict[tuple[str, str], float] = {}
        #: By unique key, the task that has it, and since when the key is taken.
        self.unique: dict[str, tuple[Task, int]] = {}
        self.outcomes: dict[str, int] = {}
        #: By tag, the name of the outcome that was handed out last.
        self.handed_out: dict[str, str] = {}
        self.replies: dict[str, tuple[int, list[str]]] = {}
        #: By message, which of its copies may run.
        self.copies: dict[str, Copies] = defaultdict(Copies)
        #: By queue, logical and server time of its last claim.
        self.claimed_at: dict[str, tuple[int, int]] = {}
        #: The time after which a task counts as one of the highest priority, if claims request it.
        self.aging_ms: int | None = None
        #: By queue, tenant and priority, when a task left its lane last, or came back to it.
        self.left_ms: dict[tuple[str, str, int], int] = {}
        #: The latest time from which the server's clock was set back.
        self.set_back_ms = 0
        #: Outcomes that this call must have left: tag, state and queue.
        self._ended: list[tuple[str, str, str]] = []
        #: Attempts that this call has ended, as its minute counts them.
        self._attempts_ended: Counter[str] = Counter()
        #: Other leases that this call has ended.
        self._others_ended = 0
        #: Events that this call must have emitted.
        self.book = Book()

    # -- time -------------------------------------------------------------------------------------

    def at(self, now: int) -> None:
        """Set the server's time. If it goes back, what limits put back may be remembered or not."""
        if now < self.now:
            self.set_back_ms = max(self.set_back_ms, self.now)
            for task in self.tasks.values():
                task.waited_ms = self.waited_ms(task)
            for task in self.delayed():
                self._may_forget(task)
        self.admission.now = now

    def waited_ms(self, task: Task) -> int:
        """Return how long a task has waited at most, by any clock that the server had."""
        since_ms = self.now if task.since_ms is None else task.since_ms
        return max(task.waited_ms, self.now - since_ms)

    def _may_forget(self, task: Task) -> None:
        """A limit may remember what it has put back, or not."""
        task.put_back_by |= {""} if task.put_back_by else frozenset()

    @property
    def now(self) -> int:
        """Server time, in ms."""
        return self.admission.now

    @property
    def time(self) -> int:
        """Logical time of the last call, in ms."""
        return self.admission.time

    # -- tenants ----------------------------------------------------------------------------------

    def entitlement(self, task: Task, rules: Any) -> Entitlement:
        """The tier of a waiting task is that of the last put of its tenant that carried one."""
        account = self.accounts.get(task.key)
        tier = account.tier if account else ""
        return self.admission.entitlement(task.key, task.tenant, tier, rules)

    def tier_of(self, task: Task, rules: Any) -> str:
        """Return the name of the tier that judges a waiting task."""
        account = self.accounts.get(task.key)
        return self.admission.tier_name(
            task.key, task.tenant, account.tier if account else "", rules
        )

    def tenant_closed_ms(self, task: Task, rules: Any, early: bool = False) -> float:
        """A tenant never runs, and never starts, more tasks than its tier allows."""
        return self.admission.tier_closed_ms(self.entitlement(task, rules).limit, rules, early)

    def is_tenant_open(self, task: Task, rules: Any, early: bool = False) -> bool:
        """Whether the tier of a task's tenant allows a start."""
        return self.tenant_closed_ms(task, rules, early) <= 0

    def is_tenant_lent(self, task: Task, rules: Any) -> bool:
        """Whether a task's tenant may be lent a place by a claim that finds nothing else."""
        limit = self.entitlement(task, rules).limit
        return not task.is_parked and self.admission.lent_closed_ms(limit, rules) <= 0

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

    def next_seq(self) -> int:
        self.sequence += 1
        return self.sequence

    def wait(self, task: Task, is_put: bool = False) -> None:
        """A task begins to wait. The stored tier is that of the last put that carried one."""
        account = self.accounts.get(task.key)
        if account is None:
            self.accounts[task.key] = Account(task.tier)
        elif is_put and task.tier not in ("", account.tier):
            account.tier, self.admission.is_changed = task.tier, True
        turns = self.turns.setdefault(task.queue, Turns(lags=not self.is_wide))
        is_behind = any(self.waiting(task.queue, task.key))
        if not is_behind:
            turns.enter(task.key)
        if task.since_ms is None:
            task.since_ms, task.is_noisy = task.eta_ms or self.now, is_behind
        else:
            # A newer task may have begun to wait while this one was away. Its time counts then.
            self.left_ms[task.queue, task.key, task.rank] = self.now
        task.place = "waiting"

    def leave(self, task: Task, place: str = "") -> None:
        """A task leaves its lane for another place, or for good."""
        if task.place == "waiting":
            self.left_ms[task.queue, task.key, task.rank] = self.now
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
            self.forget_passed(task.lane)
            waited = {limit.key for lane in self.blocked for limit in read_limits(lane[3])}
            self.charges = {pair: x for pair, x in self.charges.items() if pair[1] in waited}

    def forget_passed(self, lane: tuple[str, str, int, str]) -> None:
        for pair in [each for each in self.passed if each[0] == lane]:
            del self.passed[pair]

    def end(self, task: Task, state: str, queue: str, **fields: str) -> None:
        """A task ends without a worker, which leaves an outcome and an event with ``fields``.

        No copy of a parked task may run after that.
        """
        self._ended.append((task.tag, state, queue))
        self.book.expect(OF_OUTCOME[state], task.tag, task.route, **fields)
        if task.is_parked:
            self.copies[task.tag].name(NOBODY, NOBODY)

    @property
    def is_wide(self) -> bool:
        """Whether the bounds of a call are those of production, so that few tasks are no crowd."""
        return bool(self.budget.moves >= 64 and self.budget.unit_bytes >= 16_384)

    def note_saving(self, saving: Mapping[str, str]) -> None:
        """A call has been made. What keys save from now on counts for it too."""
        records = {key: read_saved(text) for key, text in saving.items()}
        before = self.admission.saved[1]
        self.admission.saved = before, records
        # If a key saves nothing any more, the next claim of any queue looks at what waits there.
        self.admission.is_changed |= bool(before.keys() - records.keys())

    def _check_saving(self) -> None:
        """A key begins to save only for a task that waits and takes several slots or units."""
        before, after = self.admission.saved
        for key, saved in after.items():
            takes = {
                (limit.slots if saved.slots else 0, limit.units if saved.units else 0)
                for task in self.waiting(saved.queue, saved.tenant)
                for limit in read_limits(task.limits)
                if limit.key == key and several_of(task.limits)
            }
            is_right = (saved.slots, saved.units) in takes and any(saved[:2])
            rule = "a key saves for a task that waits"
            # A saving that goes on may get an end. Its task may have gone to another queue.
            goes_on = before.get(key) in (saved, saved._replace(ends=NEVER))
            require(goes_on or is_right, rule, key=key, saved=saved, takes=takes)

    def finish(self, seen: Observed, is_rejected: Callable[[Event], bool] | None = None) -> None:
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
        alive, got = {*self.leases, *self.admission.others}, seen.leases | seen.others
        require(
            alive == got,
            "a lease lives until it is settled or its time is over",
            missing=alive - got,
            unknown=got - alive,
        )
        delayed = {tag: at for rows in seen.delayed.values() for tag, at in rows.items()}
        known = {x.tag: x.eta_ms for x in self.tasks.values() if x.place == "delayed"}
        require(known == delayed, "a delayed task waits for its time", expected=known, got=delayed)
        outcomes = [
            (each.tag, each.state, each.queue)
            for tag, each in seen.outcomes.items()
            if tag not in self.outcomes
        ]
        require(
            sorted(outcomes) == sorted(self._ended),
            "a task that ends without a worker leaves one outcome",
            expected=self._ended,
            got=outcomes,
        )
        for tag, each in seen.outcomes.items():
            # A put reads no logical time. A worker may write the results of its duplicates at once.
            is_at_once = each.state in ("duplicate", "replaced")
            self.outcomes.setdefault(tag, 0 if is_at_once else self.time)
        gone = set(self.outcomes) - set(seen.outcomes)
        require(not gone, "an outcome stays until its result is written", gone=gone)
        self._ended = []
        # A unique key ends with its task. A dead letter has ended.
        self.unique = {
            key: (task, since)
            for key, (task, since) in self.unique.items()
            if self.tasks.get(task.tag) is task and task.place != "dead"
        }
        self._check_saving()
        self.admission.end_cool_downs(seen.cooled)
        self.book.check(seen.events, is_rejected or (lambda event: False))
        # Gates end leases between the calls of claims.
        others = self._others_ended if is_rejected is None else math.inf
        check_ends(seen.minute, self._attempts_ended, others)
        self._attempts_ended.clear()
        self._others_ended = 0
        if is_rejected is None:
            # Gates ask their server between the calls of claims, and count for themselves.
            check_minute(seen.minute, Counter())

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
        unique = None if self._is_known(task) else read_unique(waiting.unique)
        held = self.unique.get(unique.key) if unique else None
        if held and waiting.is_new and unique and unique.action in ("d", "e"):
            return self._put_duplicate(task, unique, held[0], answer, seen)
        replaces = bool(held and waiting.is_new)
        if held and unique and replaces and unique.latest_ms and held[0].place != "leased":
            waiting = waiting._replace(eta_ms=min(waiting.eta_ms, held[1] + unique.latest_ms))
        is_later = waiting.eta_ms > self.now
        full = None
        if waiting.bounds is not None and not is_later and not self._is_known(task):
            full = self._full(task, waiting.bounds)
        if full or isinstance(answer, tuple):
            require(answer == full, "above max_waiting a put fails", expected=full, got=answer)
            return self.finish(seen)
        expected = 0 if self._is_known(task) else 2 if is_later else 1
        require(answer == expected, "a put is dropped only while its task exists", want=expected)
        if not expected:
            return self.finish(seen)
        if unique and (replaces or not held):
            since = self.now
            if held and held[0].place != "leased":
                since = held[1]
                self.remove(held[0])
                self.end(held[0], "replaced", held[0].queue, by=id_of(task))
            self.unique[unique.key] = task, since
        self.admission.declare(task.limits, waiting.is_new)
        task.limits = self.admission.in_partition(task.queue, task.limits, "")
        task.seq = self.next_seq()
        self.tasks[task.tag] = task
        if is_later:
            task.place = "delayed"
            task.eta_ms = min(waiting.eta_ms, task.expires_ms or waiting.eta_ms)
        else:
            self.wait(task, is_put=True)
        return self.finish(seen)

    def _put_duplicate(
        self, task: Task, unique: Unique, held: Task, answer: Any, seen: Observed
    ) -> None:
        """Another task has the unique key, so the new one ends, or its producer gets the other."""
        expected: Any = 6
        if unique.action == "e":
            expected = Existing(id_of(held))
        else:
            self.next_seq()
            self.end(task, "duplicate", task.queue, of=id_of(held))
        require(answer == expected, "a duplicate is not put", expected=expected, got=answer)
        self.finish(seen)

    def _is_known(self, task: Task) -> bool:
        return task.tag in self.tasks or task.tag in self.outcomes

    def _full(self, task: Task, bounds: Any) -> tuple[str, int, int] | None:
        """Return key, limit and count of the tenant or queue that has no room for one more."""
        bounded = any(tier.max_waiting is not None for tier in self.admission.tiers.values())
        if task.key != SYSTEM and (bounded or not self.admission.tiers_published):
            count = sum(1 for _ in self.waiting(None, task.key))
            most = bounds.of_tier
            if bounded:
                account = self.accounts.get(task.key)
                tier = task.tier or (account.tier if account else "")
                tier = self.admission.tenants.get(task.tenant, ("", {}))[0] or tier
                row = self.admission.tiers.get(tier) or self.admission.tiers.get(
                    bounds.default_tier
                )
                most = row.max_waiting if row else None
            if most is not None and count >= most:
                return task.key, most, count
        count = sum(1 for _ in self.waiting(task.queue))
        if bounds.of_queue is not None and count >= bounds.of_queue:
            return f"queue:{task.queue}", bounds.of_queue, count
        return None

    # -- settle -----------------------------------------------------------------------------------

    def settle(self, ends: Sequence[Any], rules: Any, answer: list[int], seen: Observed) -> None:
        """Attempts end. Settling twice is harmless."""
        self.admission.tick(rules.lease_ms)
        expected = [self._settle(end, rules, seen) for end in ends]
        got = [int(each) for each in answer]
        require(got == expected, "a settle tells what it found", expected=expected, got=got)
        self.finish(seen)

    def _settle(self, end: Any, rules: Any, seen: Observed) -> int:
        """Apply one end.

        Returns:
            1 if the lease lived, 2 if the waiting task was removed, otherwise 0.
        """
        lease, verdict = self.leases.get(end.lease), end.verdict.value
        if lease is None:
            return self._settle_late(end.lease, verdict, seen)
        if lease.is_promotion:
            return self._settle_promotion(lease, verdict, rules)
        if not end.begun and lease.state == "claimed":
            self._give_starts_back(lease, rules)
        if verdict in ("begun", "acked", "taken"):
            self._note_begin(lease, verdict)
            return 1
        task = lease.task
        self.end_lease(lease)
        if verdict in RAN:
            del self.tasks[task.tag]
            if end.begun:
                self._attempts_ended[RAN[verdict] + task.queue * (verdict != "done")] += 1
        elif verdict == "tail":
            task.seq = self.next_seq()
            if end.begun:
                self._attempts_ended[RAN["retried"] + task.queue] += 1
            self.wait(task)
        elif lease.state == "acked":
            self._abandon(lease)
        elif verdict == "died":
            self._after_death(task, rules)
        elif verdict == "unreadable":
            task.place = "dead"
            self._end_dead(task, "unreadable")
        else:
            self.wait(task)
        return 1

    def begin(
        self, name: str, verdict: str, epoch: int | None, answer: int, seen: Observed
    ) -> None:
        """A body begins, or its process checks whether it may.

        A memory does not end the leases of another one.
        """
        lease = self.leases.get(name)
        expected = 1
        if lease is not None and not lease.is_promotion:
            self._note_begin(lease, verdict)
        elif name not in self.admission.others and epoch == self.admission.epoch:
            expected = self._settle_late(name, verdict, seen)
        require(answer == expected, "a body begins while its lease lives", expected=expected)
        self.finish(seen)

    def used(
        self, name: str, key: str, units: int, rules: Any, answer: int, seen: Observed
    ) -> None:
        """A body reports its units of a key: its start counts them in place of the estimate."""
        self.admission.tick(rules.lease_ms)
        lease = self.leases.get(name) or self.admission.others.get(name)
        if isinstance(lease, Lease) and lease.is_promotion:
            lease = None
        keys = () if lease is None else self.admission.claimed.get(name, lease.keys)
        expected = 0 if lease is None else 1 if key in keys else -1
        require(answer == expected, "a report counts while its lease lives", expected=expected)
        if answer == 1 and lease is not None:
            self.admission.correct(key, lease.since, units - lease.units.get(key, 1))
            lease.units[key] = units
        self.finish(seen)

    def _note_begin(self, lease: Lease, verdict: str) -> None:
        """The body begins. An acknowledged message is never delivered again."""
        if lease.state != "acked":
            lease.state = "begun" if verdict == "begun" else "acked"

    def _abandon(self, lease: Lease) -> None:
        """The process of a body is gone whose message was acknowledged. It is not run again."""
        del self.tasks[lease.task.tag]
        self._attempts_ended[RAN["failed"] + lease.task.queue] += 1
        self.end(lease.task, "acked", lease.task.queue, owner=lease.owner)

    def _give_starts_back(self, lease: Lease, rules: Any) -> None:
        """A body did not begin: its start does not count, by the numbers that its queue has now."""
        whole = self.admission.whole(lease.task.queue)
        word = word_of(whole) if whole and whole.key in lease.keys else ""
        words = ",".join(filter(None, (lease.task.limits, word)))
        task, account = lease.task, self.accounts.get(lease.task.key)
        tier = account.tier if account else task.tier
        tenant = self.admission.entitlement(task.key, task.tenant, tier, rules)
        self.admission.give_starts_back(words, tenant, lease.since)

    def _settle_promotion(self, lease: Lease, verdict: str, rules: Any) -> int:
        """A promoter has published a task, or not. The copy that was sent keeps the slots."""
        task, was_sent = lease.task, lease.state == "sent"
        if verdict == "sent":
            lease.state = verdict
            if not was_sent:
                del self.tasks[task.tag]
            return 1
        self.end_lease(lease)
        if was_sent:
            return 1
        tries = task.deaths + 1
        if verdict in RAN:
            del self.tasks[task.tag]
        elif verdict == "rejected" and tries >= self.budget.tries:
            del self.tasks[task.tag]
            self.end(task, "unpublished", task.queue)
        elif verdict in ("unsent", "rejected"):
            pause_ms = min(rules.lease_ms, rules.lease_ms * FIRST_PAUSE * 2**task.deaths)
            task.place, task.deaths, task.eta_ms = "delayed", tries, round(self.now + pause_ms)
            task.put_back_by = frozenset()
        else:
            self.wait(task)
        return 1

    def _settle_late(self, name: str, verdict: str, seen: Observed) -> int:
        """The lease had ended. If its task waits again unclaimed, it must not run twice."""
        if verdict in ("begun", "taken") or verdict in OF_PROMOTIONS:
            return 0
        released = verdict != "acked" and self.admission.others.pop(name, None) is not None
        self._others_ended += released
        if verdict not in (*RAN, "acked"):
            return int(released)
        task = self.tasks.get(name.rsplit(".", 2)[0])
        if task is None or task.place not in ("waiting", "delayed"):
            return int(released)
        self.remove(task)
        return 2

    def end_lease(self, lease: Lease) -> None:
        """A lease ends: its slots are free, and a charge by run time is corrected."""
        del self.leases[lease.name]
        del self.admission.claimed[lease.name]
        self.admission.end_reservations(lease.name)
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

    def _after_death(self, task: Task, rules: Any) -> None:
        """A begun body's process died: after `max_deliveries` deaths it is a dead letter."""
        task.deaths += 1
        self._attempts_ended[RAN["failed"] + task.queue] += 1
        if rules.max_deliveries and task.deaths >= rules.max_deliveries:
            task.place = "dead"
            self._end_dead(task, "dead")
        else:
            self.wait(task)

    def _end_dead(self, task: Task, reason: str) -> None:
        self.end(task, reason, task.queue, reason=reason, deaths=str(task.deaths))

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
        """A claim does a part of the due work, and leases the next tasks in their fair order."""
        self.admission.tick(rules.lease_ms)
        for end in ends:
            self._settle(end, rules, seen)
        require(
            answer.epoch == self.admission.epoch,
            "an answer carries the epoch",
            epoch=self.admission.epoch,
        )
        if epoch not in (None, self.admission.epoch):
            rule = "a worker registers its leases again before it claims"
            require(not answer.tasks and answer.sleep_ms == REGISTER_MS, rule)
            return self.finish(seen)
        last_number, last_leases = self.replies.get(owner, (None, []))
        if last_number == number:
            self._check_replay(last_leases, answer)
            return self.finish(seen)
        expired = self._do_what_is_due(queues, rules, seen)
        self.claimed_at |= dict.fromkeys(queues, (self.time, self.now))
        self.aging_ms = rules.priority_aging_ms or self.aging_ms
        claim = Claim(self, rules, passing, queues, expired)
        claim.judge(owner, want, answer, seen)
        if answer.tasks:
            self.replies[owner] = (number, [each.lease for each in answer.tasks])
        if answer.sleep_ms:
            self.admission.is_changed = False
        self.finish(seen, claim.is_rejected)
        return claim.check_statistics(seen)

    def _check_replay(self, leases: Sequence[str], answer: Any) -> None:
        """The same request number has the same answer, less what has ended since."""
        leases = [name for name in leases if name in self.leases]
        alive = [name for name in leases if self.leases[name].state != "sent"]
        got = [each.lease for each in answer.tasks]
        require(got == alive, "a claim sent again has the same answer", expected=alive, got=got)
        require(answer.sleep_ms == 0, "a claim sent again asks again")

    def _do_what_is_due(
        self, queues: Sequence[str], rules: Any, seen: Observed
    ) -> Mapping[str, int]:
        """Do a bounded part of the due work. Return how many tasks of each queue expired."""
        ended_holds = self.admission.end_holds(self.budget.due)
        self._bring_forward(ended_holds, seen)
        self.end_leases(rules, seen, self.budget.due)
        self.admission.forget_starts()
        for queue in dict.fromkeys(queues):
            self._bring_in(queue, ended_holds, seen)
        return {queue: self._expire(queue, seen) for queue in dict.fromkeys(queues)}

    def end_leases(self, rules: Any, seen: Observed, most: int) -> None:
        """A lease that nobody renewed ends, and its task waits again in its place.

        An acknowledged task does not run again. A begun one has lost its process. If the task is
        not in Redis, only its slots are free. A promotion that was not sent gives its task back.
        """
        others = self.admission.others
        gone = [lease for lease in self.leases.values() if lease.name not in seen.leases]
        gone.sort(key=lambda lease: (lease.ends, lease.name))
        # A claim may take over a lease that its worker has registered again.
        taken = {name for name in others if name in seen.leases and others[name].ends > self.time}
        gone_others = [name for name in others if name not in seen.others | taken]
        ends = {lease.name: lease.ends for lease in self.leases.values()}
        ends |= {name: other.ends for name, other in others.items()}
        kept = [at for name, at in ends.items() if name in seen.leases | seen.others]
        for name in (*(lease.name for lease in gone), *gone_others):
            rule = "a lease ends only after its time, the first to end first"
            at = ends[name]
            require(at <= min([self.time, *kept]), rule, lease=name, ends=at, time=self.time)
        for name in gone_others:
            del others[name]
        self._others_ended += len(gone_others)
        for lease in gone:
            self.end_lease(lease)
            task = lease.task
            if lease.is_promotion:
                if lease.state == "promoted":
                    self.wait(task)
                continue
            fields = {"owner": lease.owner, "state": lease.state}
            self.book.expect("fairness.lease_expired", task.tag, task.queue, **fields)
            if lease.state == "acked":
                self._abandon(lease)
            elif lease.state == "begun":
                self._after_death(task, rules)
            else:
                self.wait(task)
        count = len(gone) + len(gone_others)
        require(count <= most, "a call ends a bounded number of leases")
        is_done = count == most or all(at > self.time for at in kept)
        require(is_done or most == self.budget.due, "a renewal and a gate end what is over")

    def _bring_in(self, queue: str, ended_holds: set[str], seen: Observed) -> None:
        """Tasks whose time has come wait now, in the order of their times, last in their lanes.

        A parked task keeps its place for good.

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
            if not task.is_parked:
                task.seq = self.next_seq()
            self.wait(task)

    def _expire(self, queue: str, seen: Observed) -> int:
        """A waiting task that has never started ends when its expiry has come. Count them."""
        count = 0
        for text, outcome in seen.outcomes.items():
            if text in self.outcomes or (outcome.state, outcome.queue) != ("expired", queue):
                continue
            task = self.tasks[outcome.tag]
            is_over = 0 < task.expires_ms <= self.now and task.place == "waiting"
            require(is_over, "only what has expired while it waited ends", tag=task.tag)
            self.leave(task)
            self.end(task, "expired", queue)
            count += 1
        return count

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
            if queue in seen.bells or queue in heard or self.admission.is_changed:
                continue
            everything = Claim.of_everything(self, rules, queue)
            last = self.claimed_at.get(queue, (self.time, self.now))
            heads = everything.all_heads(queue)
            if not heads:
                continue
            with self.admission.as_of(*last):
                then = [x.tag for x in everything.all_heads(queue)]
            # If time alone has opened it since the last claim, the claimant wakes by itself.
            tags = [head.tag for head in heads if head.tag in then]
            require(not tags, "anything that may start has a wake-up", queue=queue, heads=tags)

    # -- other calls ------------------------------------------------------------------------------

    def renew(
        self,
        held: Iterable[tuple[str, str]],
        rules: Any,
        epoch: int | None,
        answer: tuple[int, list[int]],
        seen: Observed,
    ) -> None:
        """A renewal names each lease, and its answer lists those that are gone.

        In a new epoch a lease that is gone is registered again: it counts, and ends by itself.
        Then the call ends other leases and holds that are over. A task that a limit put back comes
        at once if the hold of its key has ended.
        """
        self.admission.tick(rules.lease_ms)
        others, ends = self.admission.others, self.time + rules.lease_ms
        lost, missing = epoch not in (None, self.admission.epoch), []
        for place, (name, keys_text) in enumerate(held, 1):
            if lease := self.leases.get(name) or others.get(name):
                lease.ends = ends
                continue
            missing.append(place)
            if lost:
                keys, slots, units = keys_with(keys_text)
                others[name] = Other(keys, ends, self.time, units, slots)
        expected = (self.admission.epoch, missing)
        require(answer == expected, "a renewal lists what is gone", expected=expected, got=answer)
        self.end_leases(rules, seen, ENDED_AT_MOST)
        ended = self.admission.end_holds(FORGOTTEN_AT_MOST)
        self.admission.is_changed |= any(key.startswith("tenant:") for key in ended)
        self.admission.forget_starts()
        self._bring_forward(ended, seen)
        self.finish(seen)

    def _bring_forward(self, ended_holds: set[str], seen: Observed) -> None:
        """Tasks of any queue that a key put back are due when the hold of the key ends."""
        for task in self.delayed():
            eta = seen.delayed[task.queue].get(task.tag)
            if task.put_back_by & ended_holds and eta == self.now:
                task.eta_ms = self.now

    def next_outcome(self, written: str, rules: Any, answer: Any, seen: Observed) -> None:
        """A worker gets the outcome that waits longest, and again after a lease if it is lost."""
        self.admission.tick(rules.lease_ms)
        self.end_leases(rules, seen, self.budget.due)
        tag = written.partition(" ")[2]
        if self.handed_out.get(tag) == written:
            self.outcomes.pop(tag, None)
        known = [*self.outcomes.items()]
        known += [(tag, self.time) for tag in seen.outcomes if tag not in self.outcomes]
        due = [(at, tag.encode(), tag) for tag, at in known if at <= self.time]
        expected = min(due)[2] if due else None
        got = answer.tag if answer else None
        require(got == expected, "the next outcome is handed out", expected=expected, got=got)
        self.finish(seen)
        if answer:
            self.outcomes[answer.tag] = self.time + rules.lease_ms
            self.handed_out[answer.tag] = answer.name

    def cancel(
        self, tasks: Sequence[Task | None], answer: list[bool], seen: Observed, lease_ms: int
    ) -> None:
        """Waiting and delayed tasks end as revoked. Running ones continue.

        Args:
            tasks: None for a task that has changed since the caller saw it.
        """
        self.admission.tick(lease_ms)
        expected: list[bool] = []
        cancelled: set[str] = set()
        for task in tasks:
            is_gone = task is not None and task.tag in cancelled
            is_there = task is not None and task.place in ("waiting", "delayed") and not is_gone
            expected.append(is_there or is_gone)
            if task is not None and is_there:
                cancelled.add(task.tag)
                self.remove(task)
                self.end(task, "cancelled", task.queue)
        require(answer == expected, "what waits is cancelled", expected=expected, got=answer)
        self.finish(seen)

    def remove(self, task: Task) -> None:
        if task.place == "waiting":
            self.leave(task)
        else:
            del self.tasks[task.tag]

    def purge(self, queue: str, answer: int, seen: Observed) -> None:
        """A bounded part of the waiting and delayed tasks of a queue is forgotten."""
        gone = [task for task in self.tasks.values() if task.tag not in seen.tasks]
        is_right = all(x.queue == queue and x.place in ("waiting", "delayed") for x in gone)
        require(is_right, "a purge forgets what waits in its queue", gone=gone)
        require(answer == len(gone), "a purge counts", expected=len(gone), got=answer)
        for task in gone:
            self.remove(task)
        is_done = not self.delayed(queue) and not any(self.waiting(queue))
        require(is_done or answer == self.budget.purged, "a purge goes on while something is left")
        self.finish(seen)

    def requeue(self, task: Task, answer: int, seen: Observed) -> None:
        """A dead letter waits again, last in its lane, with no deaths."""
        require(answer == (task.place == "dead"), "only a dead letter is requeued", tag=task.tag)
        if answer:
            self.outcomes.pop(task.tag, None)
            # The task may end again before the result of its first end is written.
            self.handed_out.pop(task.tag, None)
            task.seq, task.deaths = self.next_seq(), 0
            task.rejected_by, task.is_released = None, False
            self.wait(task)
            self.book.expect("fairness.requeued", task.tag, task.queue)
        self.finish(seen)

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
                self.leave(task, "moving")
            left = [x for x in task.limits.split(",") if x and x.split("|")[1] != "q"]
            task.limits = self.admission.in_partition(target, ",".join(left), part)
            task.queue = target
            self._may_forget(task)
            if is_waiting:
                self.wait(task)
        require(answer == expected, "what waits is moved", expected=expected, got=answer)
        self.finish(seen)

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
        self.admission.tick(rules.lease_ms)
        if how == "cool":
            self.admission.cool_down(key, wait_ms)
        elif how == "clear":
            self.admission.cooled.pop(key, None)
            self.admission.reports.pop(key, None)
        else:
            self.admission.paused.pop(key, None)
        if how == "pause":
            self.admission.paused[key] = self.now + wait_ms if wait_ms else NEVER
        if how != "cool":
            self._change(key, seen)
        pause_ms = self.admission.paused_ms(key)
        expected = (self.admission.cooled_ms(key), pause_ms)
        got = (answer.cool_ms, NEVER if answer.pause_ms is None else answer.pause_ms)
        require(got == expected, "a hold lasts as long as it was set", expected=expected, got=got)
        self.finish(seen)

    def report(
        self,
        key: str,
        left: int | None,
        wait_ms: int,
        cool_ms: int | None,
        rules: Any,
        answer: Mapping[str, Any],
        seen: Observed,
    ) -> None:
        """An API has reported its limit, which only delays starts."""
        admission = self.admission
        admission.tick(rules.lease_ms)
        if left is not None:
            admission.report(key, left, wait_ms)
        if cool_ms is not None:
            admission.cool_down(key, cool_ms)
        known = admission.reports.get(key)
        is_free = known is not None and known.ends > self.time
        reported = [known.left, known.ends - self.time + self.now] if known and is_free else None
        expected = (admission.cooled_ms(key), reported)
        got = (answer["cool_ms"], answer.get("reported"))
        require(got == expected, "a report holds until its end", expected=expected, got=got)
        self.finish(seen)

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
        self.admission.tick(rules.lease_ms)
        ends = NEVER if ends_ms is None else ends_ms
        require(answer == (ends > self.now), "an override that is past is rejected", got=answer)
        if answer:
            self.admission.overrides.pop(key, None)
            if numbers is not None:
                self.admission.overrides[key] = (dict(numbers), ends)
            self._change(key, seen)
        self.finish(seen)

    def _change(self, key: str, seen: Observed) -> None:
        """People changed a key: tasks that it has put back are due now.

        The next claim judges a tenant anew.
        """
        self.admission.is_changed |= key.startswith("tenant:")
        # No table lists the keys of a pattern, so a task that one has put back comes later.
        for task in () if is_pattern(key) else self.delayed():
            if task.eta_ms <= self.now or whole_key(key) not in task.put_back_by:
                continue
            if seen.delayed[task.queue].get(task.tag) == self.now:
                task.eta_ms = self.now
            # If its expiry came first, it waits until then.
            is_late = task.eta_ms not in (self.now, task.expires_ms) and len(task.put_back_by) == 1
            require(not is_late, "what a key put back comes when the key changes", tag=task.tag)
            is_now = task.eta_ms == self.now
            task.put_back_by = frozenset() if is_now else task.put_back_by - {whole_key(key)}

    def limit_queue(
        self,
        how: str,
        queue: str,
        key: str,
        numbers: Any,
        part: Any,
        rules: Any,
        answer: str,
        seen: Observed,
    ) -> None:
        """The limit of a queue is declared, set, cleared, or made known for a hold.

        It has numbers of the whole queue and numbers of each partition. People set either of them
        or both, and what they do not set is what is declared.

        A queue without numbers is forgotten if nothing needs it. The specification leaves open what
        else needs it, so the answer decides.
        """
        self.admission.tick(rules.lease_ms)
        before = self.admission.queue_limits.get(queue)
        row = before or QueueLimit(key)
        if how == "declare":
            row.declared, row.declared_part = numbers, part
        elif how in ("set", "clear"):
            row.chosen, row.chosen_part = numbers, part
        limits = (row.declared, row.declared_part, row.chosen, row.chosen_part)
        needed = any(limits) or how == "know" or key in self.admission.overrides
        needed = needed or key in self.admission.paused or self.admission.cooled_ms(key) > 0
        require(answer or not needed, "a queue that is needed keeps its limit", queue=queue)
        if answer:
            self.admission.queue_limits[queue] = row
            texts = [write_queue(each) if each else "" for each in limits]
            got = answer.split(" ")
            is_right = [got[0], *got[2:]] == [key, *texts]
            require(is_right, "a queue has the numbers that were set", got=answer, expected=texts)
        else:
            self.admission.queue_limits.pop(queue, None)
        if not (before and how == "know"):
            self._change(key, seen)
        self.finish(seen)

    def publish_tiers(self, tiers: Iterable[Any]) -> None:
        """The published table replaces the one before."""
        self.admission.tiers = {tier.name: tier for tier in tiers}
        self.admission.tiers_published = True
        self.admission.is_changed = True

    def publish_tenant(self, tenant: str, tier: str, own: dict[str, Any]) -> None:
        """A tenant has this tier and numbers; an empty tier clears both."""
        if tier:
            self.admission.tenants[tenant] = (tier, own)
        else:
            self.admission.tenants.pop(tenant, None)
        self.admission.is_changed = True
