"""One state of everything: the scheduler's tables, the broker, the processes, and a ledger.

The ledger is what an outside observer writes down. No function of the scheduler reads it.

Invariant: the values of a state are immutable, so copies share them.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from tests.interleavings.rules import Rules

#: One key has a concurrency of 1, the other has a rate of 1 in a window.
SLOT, RATE = 0, 1
#: Keys of each task.
ONE_TASK = ((SLOT, RATE),)
SAME_LIMITS = ((SLOT, RATE), (SLOT, RATE))
SAME_SLOT = ((SLOT,), (SLOT,))
SAME_RATE = ((RATE,), (RATE,))
OTHER_LIMITS = ((SLOT,), (RATE, SLOT))

#: A record waits in a lane, or a promoter has claimed it.
WAITS, CLAIMED = "waits", "claimed"
#: Leases of a promotion are CLAIMED or SENT. Those of a body RUN, and an orphan's worker is dead.
SENT, RUNS, ORPHAN = "sent", "runs", "orphan"
#: A promoter has CLAIMED or PUBLISHED a task. If it is stuck, its broker does not answer.
PUBLISHED, STUCK = "published", "stuck"
#: The next step of a worker with a delivery. A late body runs without its lease.
ASKS, PARKS, SENDS_BACK, ACKS, LATE, STORES = "asks", "parks", "sends", "acks", "late", "stores"

#: The serial of a first message, and one that no copy has.
FIRST, NEVER = 0, -1
#: The first serial of a copy that a gate sends back. Those of claims are lower.
FIRST_SENT_BACK = 50


class Lease(NamedTuple):
    """A slot at each key of a task. The lease of a body has the name 0."""

    task: int
    name: int
    state: str


class Copy(NamedTuple):
    """A message on the broker."""

    task: int
    serial: int


class Promoter(NamedTuple):
    """A promoter with a claimed task."""

    task: int
    serial: int
    does: str


class Worker(NamedTuple):
    """A worker with a delivery."""

    task: int
    serial: int
    does: str
    #: Whether the broker delivers the message again if the worker dies.
    unacked: bool
    #: The serial of the copy that goes back.
    sends: int = NEVER


class Task(NamedTuple):
    """One task in the tables and in the ledger."""

    # The record.
    record: str = ""
    blocked_at: int = NEVER
    expires: bool = True
    attempts: int = 0
    reserved: bool = False
    # The memory of copies. Without a rejection there is none.
    current: int | None = None
    following: int | None = None
    admitted: int | None = None
    newcomer: bool = True
    # The ledger.
    outcome: str = ""
    expired: bool = False
    is_over: bool = False
    started: frozenset[int] = frozenset()
    starts: int = 0
    redelivered: int = 0


class Key(NamedTuple):
    """One key in the tables."""

    held: bool = False
    counted: bool = False
    available: bool = False
    #: Whether a timer wakes the lanes that are blocked here.
    timed: bool = False


class Scenario(NamedTuple):
    """The fixed part of one search."""

    rules: Rules = Rules()
    keys: tuple[tuple[int, ...], ...] = SAME_LIMITS
    early_ack: bool = False
    troubles: int = 2


class World:
    """One state. Functions change a copy of it."""

    __slots__ = (
        "keys",
        "leases",
        "messages",
        "outsider",
        "problem",
        "promoters",
        "scenario",
        "tasks",
        "troubles",
        "window",
        "workers",
    )

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.problem, self.troubles = scenario, "", scenario.troubles
        self.tasks = tuple(Task() for _ in scenario.keys)
        self.keys = (Key(), Key())
        self.leases: tuple[Lease, ...] = ()
        self.messages = tuple(Copy(task, FIRST) for task in range(len(scenario.keys)))
        self.promoters: tuple[Promoter, ...] = ()
        self.workers: tuple[Worker, ...] = ()
        #: Another body holds the slot in the beginning.
        self.outsider = True
        #: The ledger's own window: whether a body has started in it.
        self.window = False

    def copy(self) -> World:
        """Return another world in the same state."""
        other = World.__new__(World)
        other.scenario, other.problem, other.troubles = self.scenario, "", self.troubles
        other.tasks, other.keys, other.leases = self.tasks, self.keys, self.leases
        other.messages, other.workers, other.promoters = self.messages, self.workers, self.promoters
        other.outsider, other.window = self.outsider, self.window
        return other

    def set(self, task: int, **values: Any) -> None:
        """Change values of a task."""
        tasks = list(self.tasks)
        tasks[task] = tasks[task]._replace(**values)
        self.tasks = tuple(tasks)

    def set_key(self, key: int, **values: Any) -> None:
        """Change values of a key."""
        keys = list(self.keys)
        keys[key] = keys[key]._replace(**values)
        self.keys = tuple(keys)

    def allow_another_start(self, task: int) -> None:
        """Note that the broker delivers a message that may have started a body."""
        self.set(task, redelivered=self.tasks[task].redelivered + 1)

    def add(self, item: Any) -> None:
        """Add a lease, a message, a promoter or a worker."""
        bag = BAGS[type(item)]
        setattr(self, bag, tuple(sorted((*getattr(self, bag), item))))

    def remove(self, item: Any) -> None:
        """Remove a lease, a message, a promoter or a worker."""
        bag = BAGS[type(item)]
        items = list(getattr(self, bag))
        items.remove(item)
        setattr(self, bag, tuple(items))

    def without(self, item: Any) -> World:
        """Return a copy in which one item is missing."""
        other = self.copy()
        other.remove(item)
        return other

    def fresh_name(self, task: int, first: int) -> int:
        """Return the first serial from `first` on that nothing has or remembers."""
        kept = self.tasks[task]
        taken = {kept.current, kept.following, kept.admitted, *kept.started}
        for bag in (self.messages, self.promoters, self.workers):
            taken |= {item.serial for item in bag if item.task == task}
        taken |= {worker.sends for worker in self.workers if worker.task == task}
        taken |= {lease.name for lease in self.leases if lease.task == task}
        return next(name for name in itertools.count(first) if name not in taken)


BAGS = {Lease: "leases", Copy: "messages", Promoter: "promoters", Worker: "workers"}
