"""The lanes of one tenant in one queue: which of its tasks is first.

Within a rank (9 goes first) who began to wait first is first. Tasks stand in one lane in that
order, of whatever kind. A task that was claimed and comes back has its old place; it needs no
search, because whatever was taken out of the lane is older than all that is left in it: those that
came back stand before the lane, in a lane for each kind, and the oldest of their heads goes first.

So does a task that a claim passes over. It hides nothing behind it from that claim, and no other
claim sees a difference.
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
        kind: Name of the task as it is written in keys, may be "".
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
    kind: str
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


#: A lane by rank; and by kind where it holds what came back.
LaneName = tuple[int, str | None]


class Lanes:
    """What one tenant has waiting in one queue.

    Attributes:
        new: By rank, tasks that were never taken out, or that went behind all others.
        back: By rank and kind, tasks that came back to their place.
    """

    def __init__(self) -> None:
        self.new: dict[int, deque[Task]] = {}
        self.back: dict[tuple[int, str], list[Task]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.new.values())) + sum(map(len, self.back.values()))

    def append(self, task: Task) -> None:
        """Put a task behind all of its rank."""
        self.new.setdefault(task.rank, deque()).append(task)

    def put_back(self, task: Task) -> None:
        """Put a task where it stood."""
        lane = self.back.setdefault((task.rank, task.kind), [])
        bisect.insort(lane, task, key=lambda each: each.seq)

    def in_order(self) -> list[LaneName]:
        """Return the lanes, the one of the first task first."""
        back = sorted((-rank, False, lane[0].seq, kind) for (rank, kind), lane in self.back.items())
        new = sorted((-rank, True, 0, "") for rank in self.new)
        return [(-rank, None if is_new else kind) for rank, is_new, _, kind in sorted(back + new)]

    def head(self, name: LaneName) -> Task:
        """Return the first task of a lane."""
        rank, kind = name
        return self.new[rank][0] if kind is None else self.back[rank, kind][0]

    def pop(self, name: LaneName | None = None) -> Task:
        """Take the first task out, of all or of one lane."""
        rank, kind = name or self.in_order()[0]
        if kind is None:
            task = self.new[rank].popleft()
        else:
            task = self.back[rank, kind].pop(0)
        self._drop_empty()
        return task

    def withdraw(self, rank: int, tag: str) -> bool:
        """Take out a task that came back; say whether it was there."""
        for (of_rank, _), lane in self.back.items():
            for task in lane:
                if of_rank == rank and task.tag == tag:
                    lane.remove(task)
                    self._drop_empty()
                    return True
        return False

    def _drop_empty(self) -> None:
        self.new = {rank: lane for rank, lane in self.new.items() if lane}
        self.back = {name: lane for name, lane in self.back.items() if lane}
