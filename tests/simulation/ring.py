"""A partition and the bells of an installation, in their plainest form.

``rings.lua`` and ``active.lua`` are what they stand for. One queue, a charge of one for each task,
and no limits.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Task(NamedTuple):
    """A task that a claim has taken: its tenant, and when it was put (None in a backlog)."""

    tenant: int
    put_at: float | None


@dataclass
class Answer:
    """The answer to a claim.

    Attributes:
        tasks: The tasks that it has taken.
        at: The virtual time of the ring.
        first: The first start. None if nothing waits.
        debt: The last debt of a ring without a first start.
        is_left: Whether the caller rings the bell for tasks that it has left.
    """

    tasks: list[Task]
    at: float
    first: float | None
    debt: float
    is_left: bool


@dataclass
class Ring:
    """The tenants of one partition by their starts."""

    virtual: float = 0.0
    is_idle: bool = False
    _starts: list[tuple[float, int]] = field(default_factory=list)
    _backlogs: dict[int, float] = field(default_factory=dict)
    _put_at: dict[int, deque[float]] = field(default_factory=dict)
    _debts: dict[int, float] = field(default_factory=dict)
    _wakeups: set[str] = field(default_factory=set)

    def fill(self, tenant: int, count: float) -> bool:
        """Let a tenant have a backlog; return whether the producer rings the bell."""
        self._backlogs[tenant] = count
        return self._enter(tenant)

    def put(self, tenant: int, now: float) -> bool:
        """Put a task; return whether the producer rings the bell."""
        self._put_at.setdefault(tenant, deque()).append(now)
        if len(self._put_at[tenant]) > 1:
            return self.wake()
        return self._enter(tenant)

    def _enter(self, tenant: int) -> bool:
        heapq.heappush(self._starts, (max(self.virtual, self._debts.pop(tenant, 0.0)), tenant))
        return self.wake()

    def wake(self) -> bool:
        """Set the wake-up for a new task; return whether the producer rings the bell."""
        rings = "new" not in self._wakeups
        self._wakeups.add("new")
        return rings

    def claim(
        self, want: int, floor: float | None, till: float | None, *, is_woken: bool
    ) -> Answer:
        """Take up to ``want`` tasks, none behind ``till``."""
        if is_woken:
            self._wakeups.clear()
        if self.is_idle and floor is not None:
            self.is_idle, self.virtual = False, max(self.virtual, floor)
        tasks: list[Task] = []
        while self._starts and len(tasks) < want:
            start, tenant = self._starts[0]
            if till is not None and start > till:
                break
            heapq.heappop(self._starts)
            self.virtual = max(self.virtual, start)
            tasks.append(self._take(tenant, self.virtual + 1.0))
        is_left = bool(self._starts) and "left" not in self._wakeups
        if self._starts:
            self._wakeups.add("left")
        else:
            self.is_idle = True
            self._wakeups.clear()
        first = self._starts[0][0] if self._starts else None
        return Answer(tasks, self.virtual, first, self._last_debt(first), is_left)

    def _take(self, tenant: int, finish: float) -> Task:
        put_at, waiting = None, self._put_at.get(tenant)
        if waiting:
            put_at = waiting.popleft()
        else:
            self._backlogs[tenant] -= 1
        if waiting or self._backlogs.get(tenant, 0) > 0:
            heapq.heappush(self._starts, (finish, tenant))
        else:
            self._put_at.pop(tenant, None)
            self._debts[tenant] = finish
        return Task(tenant, put_at)

    def _last_debt(self, first: float | None) -> float:
        if first is not None:
            return 0.0
        self._debts = {each: debt for each, debt in self._debts.items() if debt > self.virtual}
        return max(self._debts.values(), default=0.0)


class Bells:
    """The bells in the home, and the workers that sleep at them."""

    def __init__(self) -> None:
        self._rung: dict[str, list[int]] = {"new": [], "left": []}
        self._sleepers: deque[tuple[Any, Callable[[int], Any]]] = deque()

    def ring(self, kind: str, partition: int) -> None:
        """Wake one worker for a partition, or let the number wait, once."""
        if self._sleepers:
            self._sleepers.popleft()[1](partition)
        elif partition not in self._rung[kind]:
            self._rung[kind].append(partition)

    def pop(self, *kinds: str) -> int | None:
        """Return the oldest number of the first bell that has one."""
        return next((self._rung[kind].pop(0) for kind in kinds if self._rung[kind]), None)

    def sleep(self, worker: Any, wake: Callable[[int], Any]) -> None:
        """Let a worker sleep until a bell rings."""
        self._sleepers.append((worker, wake))

    def leave(self, worker: Any) -> None:
        """End the sleep of a worker whose time is over."""
        self._sleepers = deque(each for each in self._sleepers if each[0] is not worker)
