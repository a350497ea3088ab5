"""The lanes of one tenant in one queue: which of its tasks is first.

A rank is a lane: 9 goes first, and within a rank who began to wait first. A task that was claimed
and comes back has its old place. It needs no search: whatever was claimed is older than all of its
lane that never was, so those that came back stand before the others, ordered among themselves.
"""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass

from celery_fairness.scheduling.words import SYSTEM


@dataclass(frozen=True, slots=True)
class Task:
    """One task, wherever it is.

    Attributes:
        seq: Its place among all tasks: who began to wait earlier has the smaller.
        tag: Its delivery tag.
        attempt: How often it was claimed.
        deaths: How often its process died after its body began.
        cost: What its tenant is charged, before the weight.
        rank: 0 to 9; 9 goes first.
        tenant: As it is written in keys; "" is a system task.
        service: "" unless each service counts apart.
        tier: The tenant's tier as the producer knew it, may be "".
        message: As the producer sent it.
    """

    seq: int
    tag: str
    attempt: int
    deaths: int
    cost: float
    rank: int
    tenant: str
    service: str
    tier: str
    message: str

    @property
    def key(self) -> str:
        """Who is charged: the key of the tenant's tier limit, or the system's."""
        if not self.tenant:
            return SYSTEM
        return f"tenant:{self.tenant}:{self.service}" if self.service else f"tenant:{self.tenant}"

    @property
    def lease(self) -> str:
        """The name of its last attempt's lease."""
        return f"{self.tag}.{self.attempt}"


class Lanes:
    """What one tenant has waiting in one queue.

    Attributes:
        new: By rank, tasks that were never claimed, or that went behind all others.
        back: By rank, tasks that came back to their place.
    """

    def __init__(self) -> None:
        self.new: dict[int, deque[Task]] = {}
        self.back: dict[int, list[Task]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.new.values())) + sum(map(len, self.back.values()))

    def append(self, task: Task) -> None:
        """Put a task behind all of its rank."""
        self.new.setdefault(task.rank, deque()).append(task)

    def put_back(self, task: Task) -> None:
        """Put a task where it stood."""
        bisect.insort(self.back.setdefault(task.rank, []), task, key=lambda each: each.seq)

    def pop(self) -> Task:
        """Take the first task out."""
        rank = max({*self.new, *self.back})
        task = self.back[rank].pop(0) if rank in self.back else self.new[rank].popleft()
        self._drop_empty(rank)
        return task

    def withdraw(self, rank: int, tag: str) -> bool:
        """Take out a task that came back; say whether it was there."""
        before = self.back.get(rank, [])
        after = [task for task in before if task.tag != tag]
        self.back[rank] = after
        self._drop_empty(rank)
        return len(after) < len(before)

    def _drop_empty(self, rank: int) -> None:
        for lanes in (self.new, self.back):
            if not lanes.get(rank, True):
                del lanes[rank]
