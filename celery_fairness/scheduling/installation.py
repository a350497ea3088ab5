"""What one installation remembers, and the moves between its tables.

Invariant: each method leaves every table of what waits in agreement with the others: lanes, rings,
accounts, closed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

from celery_fairness.scheduling.clock import LogicalClock
from celery_fairness.scheduling.entitlements import Entitlement, Entitlements
from celery_fairness.scheduling.lanes import Lanes, Task
from celery_fairness.scheduling.ring import Ring
from celery_fairness.scheduling.words import SYSTEM, Rules

#: A lease of the gate may be released without a word to the rings: look again so soon.
LOOK_AGAIN_MS = 1000
#: The end of a lease that does not end by itself.
NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one call does of what is due."""

    due: int = 16
    moves: int = 64
    passed: int = 16
    purged: int = 100


@dataclass(slots=True)
class Account:
    """A tenant that has something waiting.

    Attributes:
        tier: As the last put knew it that knew one.
        tenant: As it is written in keys.
        closed: It was found at its limit. Rings that have met it since keep it as full.
    """

    tier: str
    tenant: str
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """A claimed task, or one that ended for good.

    ``state`` is claimed, begun or acked; of an obituary acked, dead or unreadable.
    """

    owner: str
    state: str
    queue: str
    task: Task

    @property
    def text(self) -> str:
        """The same as the scripts write it, by which obituaries of one time are ordered."""
        task = self.task
        return (
            f"{self.owner} {self.state} {len(self.queue.encode())} {self.queue}"
            f"{task.seq} {task.tag} {task.attempt} {task.deaths} {task.cost:.17g} {task.rank} "
            f"{task.tenant} {task.service} {task.tier} {task.kind}\n{task.message}"
        )


class Installation:
    """The tables, and what every verb does to them.

    Args:
        now_ms: The server's time, in ms.
        budget: How much one call does of what is due.
    """

    def __init__(self, now_ms: Callable[[], int], budget: Budget | None = None) -> None:
        self.now_ms = now_ms
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
        self.accounts: dict[str, Account] = {}
        #: By which version + 1 of the news a tenant was found closed; negative where it is paused.
        self.closed: dict[str, int] = {}
        self.running: dict[str, Running] = {}
        #: Logical ends of leases; and, with a space before it, of the wait of a key for the gate.
        self.ends: dict[str, float] = {}
        #: By key and lease: when it ends by itself.
        self.leases: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self.replies: dict[str, tuple[int, list[str]]] = {}
        self.dead: defaultdict[str, list[Task]] = defaultdict(list)
        #: Ends that nobody was there to tell, and the logical time from which each is handed out.
        self.obituaries: dict[Running, int] = {}
        self.counts: defaultdict[str, int] = defaultdict(int)

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
        if len(lanes) == 1:
            self.rings[queue].enter(key)
        elif not account.closed:
            # Its token may have gone to a worker that died.
            self.rings[queue].bell = True

    def task_left(self, queue: str, key: str) -> None:
        """A task has left the lanes: forget what nothing waits for."""
        if not self.lanes[queue, key]:
            del self.lanes[queue, key]
            self.rings[queue].leave(key)
            if not any(other == key for _, other in self.lanes):
                del self.accounts[key]
                self.closed.pop(key, None)
        if not any(other == queue for other, _ in self.lanes):
            del self.rings[queue]

    # -- open and closed --------------------------------------------------------------------------

    def entitlement(self, key: str, rules: Rules) -> Entitlement:
        """Return what the tenant of a key with something waiting may hold."""
        if key == SYSTEM:
            return Entitlement("", None, 1.0)
        account = self.accounts[key]
        return self.news.of(account.tenant, account.tier, rules)

    def held(self, key: str, logical: int) -> int:
        """Return how many leases of ``key`` live."""
        return sum(end > logical for end in self.leases.get(key, {}).values())

    def is_open(self, key: str, logical: int, rules: Rules) -> bool:
        """Say whether one more task of ``key`` may start."""
        enforced = rules.enforcement == "on" or self.entitlement(key, rules).limit == 0
        return not enforced or not self.is_full(key, logical, rules)

    def is_full(self, key: str, logical: int, rules: Rules) -> bool:
        """Say whether no more of ``key`` would start where limits are enforced."""
        limit = self.entitlement(key, rules).limit
        return limit is not None and self.held(key, logical) >= limit

    def count_refusal(self, key: str, rules: Rules) -> None:
        """A claim found that one more task of ``key`` is, or would be, too many."""
        self.counts[f"refused:{self.entitlement(key, rules).tier}"] += 1

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
            if other == key:
                self.rings[queue].enter_again(key)

    # -- leases -----------------------------------------------------------------------------------

    def end_lease(self, lease: str) -> Running:
        """Take a lease out of everything that knows it; its task stays known."""
        row = self.running.pop(lease)
        self.ends.pop(lease, None)
        self.drop_lease(row.task.key, lease)
        return row

    def drop_lease(self, key: str, lease: str) -> bool:
        """Count a lease no longer; say whether it counted."""
        was_there = self.leases[key].pop(lease, None) is not None
        if not self.leases[key]:
            del self.leases[key]
        return was_there

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
        self.obituaries[row] = logical

    # -- the gate ---------------------------------------------------------------------------------

    def enter_gate_lease(self, key: str, lease: str, lease_ms: int) -> None:
        """The gate admitted an attempt: its lease ends by itself."""
        self.leases[key][lease] = self.clock.tick(self.now_ms(), lease_ms) + lease_ms

    def release_gate_lease(self, key: str, lease: str) -> None:
        """The gate's attempt is over: the rings are not told."""
        self.drop_lease(key, lease)
