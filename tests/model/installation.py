"""What one installation remembers, and the moves between its tables.

Invariant: each method leaves every table of what waits in agreement with the others: lanes, rings,
accounts, closed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from celery_fairness.config.limit_spec import (
    Limit,
    of_one_key,
    read_limits,
    shape_of,
    write_limits,
)
from celery_fairness.control.keys import CLOSED, PAUSED
from celery_fairness.scheduler.cost import FIRST_SECONDS
from celery_fairness.scheduler.types import SYSTEM, Rules
from tests.model.budget import Budget
from tests.model.charging import Charged, mean_of
from tests.model.clock import LogicalClock
from tests.model.counting import LOOK_AGAIN_MS, Counting
from tests.model.entitlements import Entitlement, Entitlements
from tests.model.happenings import Happenings
from tests.model.lanes import Lane, Lanes, Part, Task
from tests.model.minutes import Minutes
from tests.model.parking import VERSIONS, Parking
from tests.model.ring import Ring
from tests.model.rows import Account, Running
from tests.model.took import Took
from tests.model.watching import Watch
from tests.model.window import NEVER


class Installation(Counting):
    """The tables, and what every verb does to them.

    Args:
        now_ms: The server's time, in ms.
        budget: How much one call does of what is due.
    """

    def __init__(self, now_ms: Callable[[], int], budget: Budget | None = None) -> None:
        super().__init__(now_ms)
        self.budget = budget or Budget()
        self.clock = LogicalClock()
        self.news = Entitlements()
        self.sequence = 0
        self.known: set[str] = set()
        self.rings: defaultdict[str, Ring] = defaultdict(Ring)
        #: By queue and key.
        self.lanes: dict[tuple[str, str], Lanes] = {}
        #: By queue: server time, put's sequence number, task.
        self.later: defaultdict[str, list[tuple[int, int, Task]]] = defaultdict(list)
        #: By queue and tag: server time from which a task that has not started does not any more.
        self.expires: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self.accounts: dict[str, Account] = {}
        #: By which version + 1 of the news a tenant was found closed; negative where it is paused.
        self.closed: dict[str, int] = {}
        #: A claim has asked for the highest rank of a queue.
        self.ranked = False
        self.running: dict[str, Running] = {}
        #: By lease: how its task was charged, where that was an estimate.
        self.charged: dict[str, Charged] = {}
        #: Logical ends of leases; with a space before it of a key's wait for the gate, with two of
        #: its leases that were entered again.
        self.ends: dict[str, float] = {}
        self.replies: dict[str, tuple[int, list[str]]] = {}
        self.dead: defaultdict[str, list[Task]] = defaultdict(list)
        #: Ends that nobody was there to tell, and the logical time from which each is handed out.
        self.outcomes: dict[Running, int] = {}
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.parking = Parking(self.budget.tags)
        #: Waiting limits that this call may still look at.
        self.looks = self.budget.looks
        self.happenings = Happenings()
        self.minutes = Minutes()
        self.watch = Watch()
        #: Refusals by "STRATEGY KEY".
        self.exceeded: defaultdict[str, int] = defaultdict(int)
        self._freed: list[Sequence[str]] = []  # the keys of each lease that ended in this call
        #: What the last call heard of ends.
        self.took = Took()
        #: Of the last kinds whose ends were told by themselves: how long they took, in ms.
        self.kept_took: dict[str, int] = {}

    def begin(self, lease_ms: int) -> int:
        """A call begins; return its logical time."""
        self.looks, self.took = self.budget.looks, Took(self.kept_took)
        return self.clock.tick(self.now_ms(), lease_ms)

    # -- waiting ----------------------------------------------------------------------------------

    def next_seq(self) -> int:
        """Return the next place among all tasks."""
        self.sequence += 1
        return self.sequence

    def note_tier(self, queue: str, task: Task) -> None:
        """A put may know better than the one before; what comes back later does not."""
        account = self.accounts.get(task.key)
        if account and task.tier not in ("", account.tier):
            account.tier = task.tier
            if account.closed:
                self.closed[task.key] = 0
                self.rings[queue].bell = True

    def enqueue(self, queue: str, task: Task, back: bool = False) -> None:
        """Begin to wait in a lane: last in it, or ``back`` in the place of before."""
        key = task.key
        lanes = self.lanes.setdefault((queue, key), Lanes())
        if back:
            lanes.put_back(task)
        else:
            lanes.append(task)
        account = self.accounts.setdefault(key, Account(task.tier, task.tenant))
        ring = self.rings[queue]
        if len(lanes) == 1:
            ring.enter(key)
        elif Lane(task.rank, task.limits) in lanes.parked:
            self._joins_parked(queue, lanes.parked[Lane(task.rank, task.limits)])
        elif not account.closed:
            # Where it is in the ring, its token may have gone to a worker that died.
            ring.enter_again(key)
            ring.bell = True

    def wait_until(self, queue: str, task: Task, eta_ms: int) -> None:
        """Begin to wait for a time, or for its expiry where that is before."""
        later = self.later[queue]
        eta_ms = min(eta_ms, self.expires[queue].get(task.tag, eta_ms))
        later.append((eta_ms, task.seq, task))
        later.sort(key=lambda each: each[:2])
        if later[0][2] is task:
            self.rings[queue].bell = True

    def _joins_parked(self, queue: str, group: str) -> None:
        """What waits there may be open, and have been left by who looked."""
        at = self.parking.groups[queue, group].at
        if self.parking.candidates[queue][at.name] >= 0:
            self.rings[queue].bell = True

    def pop(self, queue: str, key: str, part: Part) -> Task:
        """Take the first task of a part out of its lane."""
        lanes = self.lanes[queue, key]
        group = lanes.parked.get(part.lane)
        task = lanes.pop(part)
        self._left_group(queue, key, group)
        return task

    def _left_group(self, queue: str, key: str, group: str | None) -> None:
        if group is not None and not self.lanes[queue, key].in_order(group):
            self.parking.leave(queue, group, key)

    def take_out(self, queue: str, key: str, take: Callable[[Lanes], bool]) -> bool:
        """Let ``take`` remove a task from a tenant's lanes; say whether it was there."""
        lanes = self.lanes.get((queue, key))
        groups = sorted(set(lanes.parked.values())) if lanes else []
        if lanes is None or not take(lanes):
            return False
        for group in groups:
            self._left_group(queue, key, group)
        self.task_left(queue, key)
        return True

    def task_left(self, queue: str, key: str) -> None:
        """A task has left the lanes: forget what nothing waits for."""
        lanes, ring = self.lanes[queue, key], self.rings[queue]
        if not lanes:
            del self.lanes[queue, key]
            ring.leave(key)
            if not any(other == key for _, other in self.lanes):
                del self.accounts[key]
                self.closed.pop(key, None)
        elif key in ring.members and not lanes.in_order():
            ring.fill(key)
        if not any(other == queue for other, _ in self.lanes):
            del self.rings[queue]

    # -- parked and ready -------------------------------------------------------------------------

    def park(self, queue: str, key: str, lane: Lane, at: Limit, logical: int, rules: Rules) -> int:
        """A limit refused a lane: it waits there, alone where the limit is the tenant's own.

        Returns:
            Of how many kinds it moved what came back.
        """
        lanes = self.lanes[queue, key]
        before, shut_as = lanes.parked.get(lane), self.shut_as(at, logical)
        if at.private:
            group = f"{key} {shape_of(Part(lane, None).text)}"
        else:
            shared = tuple(x for x in read_limits(lane.limits) if not x.private)
            group = shape_of(write_limits(shared))
        kinds = 0
        if before == group:
            self.parking.move(queue, group, at, shut_as)
            self._arm(at, logical, rules)
        else:
            kinds = lanes.kinds_of(lane)
            lanes.parked[lane] = group
            self._left_group(queue, key, before)
            seq = lanes.noted[lanes.in_order(group)[0]]
            if self.parking.enter(queue, group, key, at, shut_as, seq):
                self._arm(at, logical, rules)
        if key in self.rings[queue].members and not lanes.in_order():
            self.rings[queue].fill(key)
        return kinds

    def unpark(self, queue: str, key: str, lane: Lane) -> int:
        """A lane is ready again, whatever its limits say: whoever meets it asks them.

        Returns:
            Of how many kinds it moved what came back.
        """
        lanes = self.lanes[queue, key]
        group = lanes.parked.pop(lane)
        for part in lanes.lists:
            if part.lane == lane:
                lanes.note(part)
        self._left_group(queue, key, group)
        if not self.accounts[key].closed:
            self.rings[queue].enter_again(key)
        return lanes.kinds_of(lane)

    def units_of(self, task: Task) -> int:
        """Return by how many units the message of a task is more than one move."""
        return len(task.message.encode()) // self.budget.unit_bytes

    # -- limits -----------------------------------------------------------------------------------

    def take(self, task: Task, lease: str, logical: int, amount: float) -> None:
        """A task starts: its limits count it."""
        for limit in of_one_key(tuple(map(self.judged, read_limits(task.limits)))):
            self.count_start(limit, lease, logical)
            if not limit.private:
                self.parking.charge(limit.key, task.key, amount)

    def _arm(self, limit: Limit, logical: int, rules: Rules) -> None:
        """Where only time opens a limit, it is looked at then."""
        wait_ms = self.wait_ms(limit, logical, rules)
        if 0 < wait_ms < NEVER:
            due = self.parking.due.get(limit.key, NEVER)
            self.parking.due[limit.key] = min(due, logical + wait_ms)

    def pump(self, key: str, logical: int, rules: Rules, anew: bool = True) -> None:
        """A key may have room: what waits at its limits and is open becomes a candidate.

        Where more wait than this call may look at, the others are due at once; ``anew`` False goes
        on with them, where a look has not come to them since.
        """
        self.wake_queue(self.queues.queue_of(key) if key.count(":") == 1 else None)
        parking, left = self.parking, self.parking.goes_on(key)
        waited = parking.waited.get(key)
        if not waited:
            return
        left = len(waited) if anew else min(left, len(waited))
        looked = waited[: min(left, self.looks)]
        self.looks -= len(looked)
        waited[:] = waited[len(looked) :] + looked
        if left > len(looked):
            parking.left[key], parking.due[" " + key] = left - len(looked), logical
            self.rings[waited[0][1]].bell = True
        for name, queue in looked:
            limit = self.declared.at(name)
            if self.parking.candidates[queue][name] >= 0:
                continue
            if self.wait_ms(limit, logical, rules):
                self.parking.shut(queue, name, self.shut_as(limit, logical))
                self._arm(limit, logical, rules)
            else:
                self.parking.open(queue, name, logical)
                self.rings[queue].bell = True

    def look_again(self, keys: Sequence[str]) -> None:
        """These keys have other numbers: the next claim looks at what waits there."""
        for key in keys:
            if waited := self.parking.waited.get(key):
                self.parking.due[key] = 0
                self.rings[waited[0][1]].bell = True

    def shut_as(self, limit: Limit, logical: int) -> float:
        """Return as what a limit is closed, and by which numbers of its queue."""
        shut = PAUSED if self.stopped_ms(limit, logical) > 0 else CLOSED
        return shut - self.queues.version_of(limit) / VERSIONS

    def wake_queue(self, queue: str | None) -> None:
        """What waits in a queue may start."""
        if any(other == queue for other, _ in self.lanes):
            self.rings[str(queue)].bell = True

    # -- open and closed --------------------------------------------------------------------------

    def entitlement(self, key: str, rules: Rules) -> Entitlement:
        """Return what the tenant of a key with something waiting may hold."""
        if key == SYSTEM:
            return Entitlement("", None, 1.0)
        account = self.accounts[key]
        found = self.news.of(account.tenant, account.tier, rules)
        return replace(found, limit=self.tenant_limit(key, account.tenant, found.limit))

    def is_open(self, key: str, logical: int, rules: Rules) -> bool:
        """Say whether one more task of ``key`` may start."""
        enforced = rules.enforcement == "on" or self.entitlement(key, rules).limit == 0
        return not enforced or not self.is_full(key, logical, rules)

    def is_full(self, key: str, logical: int, rules: Rules) -> bool:
        """Say whether no more of ``key`` would start where limits are enforced."""
        limit = self.entitlement(key, rules).limit
        return limit is not None and self.held(key, logical) >= limit

    def count_refusal(self, queue: str, key: str, rules: Rules) -> None:
        """A claim found that one more task of ``key`` is, or would be, too many."""
        tier = self.entitlement(key, rules).tier
        self.counts[f"refused:{tier}"] += 1
        self.minutes.note(self.now_ms(), "refused", tier, queue)

    def close(self, key: str, logical: int, rules: Rules) -> None:
        """A tenant was found at its limit: no claim looks at it until something opens it."""
        self.accounts[key].closed = True
        judged_by = self.news.version + 1
        if self.entitlement(key, rules).limit == 0:
            self.closed[key] = -judged_by
            return
        self.closed[key] = judged_by
        of_gate = [end for end in self.leases.get(key, {}).values() if logical < end < NEVER]
        if of_gate:
            self.ends[" " + key] = min(*of_gate, logical + LOOK_AGAIN_MS)

    def reopen(self, key: str, logical: int, rules: Rules) -> None:
        """What kept a tenant out may be over: return it to all its rings if so."""
        account = self.accounts.get(key)
        if account is None or not account.closed:
            return
        if not self.is_open(key, logical, rules):
            self.close(key, logical, rules)
            return
        account.closed = False
        del self.closed[key]
        for queue, other in list(self.lanes):
            if other == key and self.lanes[queue, key].in_order():
                self.rings[queue].enter_again(key)

    # -- leases -----------------------------------------------------------------------------------

    def end_lease(self, lease: str, logical: int) -> Running:
        """Take a lease out of everything that knows it; its task stays known."""
        row = self.running.pop(lease)
        if lease in self.charged:
            self._correct(row.task, self.charged.pop(lease), logical)
        self.ends.pop(lease, None)
        for key in row.task.keys:
            self.paces.ends(key, lease, logical)
            self.drop_lease(key, lease)
        return row

    def expected(self, task: Task, rules: Rules) -> float:
        """Return what a task that is claimed charges, before the weight."""
        if rules.fairness_by == "runtime":
            mean = self.accounts[task.key].mean
            return FIRST_SECONDS if mean is None else mean
        return task.cost if rules.fairness_by == "cost" else 1.0

    def _correct(self, task: Task, charged: Charged, logical: int) -> None:
        """A task that was charged an estimate has ended: put right what was too much or little."""
        if account := self.accounts.get(task.key):
            account.mean = mean_of(account.mean, charged.held_seconds(logical))
        missing = charged.missing(logical)
        if any(queue == charged.queue for queue, _ in self.lanes):
            self.rings[charged.queue].correct(task.key, missing, charged.finish)
        for key in task.keys:
            self.parking.correct(key, task.key, missing)

    def freed(self, keys: Sequence[str]) -> None:
        """A lease of these keys, the tenant's first, has ended: see `open_freed`."""
        self._freed.append(keys)

    def open_freed(self, logical: int, rules: Rules) -> None:
        """Look at what waits for all that ended; a limit's key may be that of another tenant."""
        freed, self._freed = self._freed, []
        limits = [key for keys in freed for key in keys[1:]]
        self.stay_known(limits, logical)
        all_keys = dict.fromkeys(limits + [keys[0] for keys in freed])
        for key in all_keys:
            self.reopen(key, logical, rules)
        for key in all_keys:
            self.pump(key, logical, rules)

    def after_death(self, row: Running, logical: int, rules: Rules) -> None:
        """The process of a body that had begun is gone."""
        task = replace(row.task, deaths=row.task.deaths + 1)
        if rules.max_deliveries and task.deaths >= rules.max_deliveries:
            self.bury(replace(row, state="dead", task=task), logical)
        else:
            self.enqueue(row.queue, task, back=True)

    def bury(self, row: Running, logical: int) -> None:
        """A task becomes a dead letter; ``row.state`` says why."""
        self.dead[row.queue].append(row.task)
        self.counts["dead_lettered"] += 1
        fields = {"reason": row.state, "deaths": row.task.deaths}
        self.happenings.tell_of("fairness.dead_lettered", row.queue, row.task, **fields)
        self.outcomes[row] = logical
