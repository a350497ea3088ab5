"""The lanes of one tenant in one queue: which of its tasks is first.

A lane is of one rank (9 goes first) and one exact set of limits; it is first in, first out, of
whatever kind of task. A task that was claimed and comes back has its old place; it needs no search,
because whatever was taken out of the lane is older than all that is left in it: those that came
back stand before the lane, in a list for each kind, and the oldest of their heads goes first. So
does a task that a claim passes over. It hides nothing behind it from that claim, and no other claim
sees a difference.

Between lanes of one rank the one whose head is older goes first. Where a list stands is noted when
it begins, when another list of its lane does, and after it was taken from while others are ready:
one that is never empty starves nobody, and a tenant with a single lane costs no second look.

A lane that a limit refused is *parked*: its tasks are on a shelf, in the same order, and not ready.
"""

from __future__ import annotations

import bisect
import re
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from celery_fairness.config.limit_spec import read_limits
from celery_fairness.scheduler.types import SYSTEM

#: How an owner ends, which no other has.
_NONCE = re.compile(r"[0-9A-Za-z]+\Z")


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
        limits: Those beside the tier's, as one word (``limits.write_limits``).
        message: As the producer sent it.
        blocked: ``STRATEGY|KEY``: it was told that this refused it; ``-``: and that it started.
        put_ms: Server time since when it waits in a lane; None before.
        is_noisy: Something of its tenant waited in the queue then.
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
    limits: str
    message: str
    blocked: str = ""
    put_ms: int | None = None
    is_noisy: bool = False

    @property
    def key(self) -> str:
        """Who is charged: the key of the tenant's tier limit, or the system's."""
        if not self.tenant:
            return SYSTEM
        return f"tenant:{self.tenant}:{self.service}" if self.service else f"tenant:{self.tenant}"

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key of which it holds a slot while it runs: the tenant's first, each once."""
        of_limits = (limit.key for limit in read_limits(self.limits))
        return tuple(dict.fromkeys((self.key, *of_limits)))

    @property
    def record(self) -> str:
        """The same as the functions write it."""
        put = "" if self.put_ms is None else f"{self.put_ms}{'+' if self.is_noisy else ''}"
        return (
            f"{self.seq} {self.tag} {self.attempt} {self.deaths} {self.cost:.17g} {self.rank} "
            f"{self.tenant} {self.service} {self.tier} {self.kind} {self.limits} {put} "
            f"{self.blocked}\n{self.message}"
        )

    def lease_of(self, owner: str) -> str:
        """Return the name of its last attempt's lease, which is ``owner``'s and nobody else's."""
        return f"{self.tag}.{self.attempt}.{_NONCE.findall(owner)[0]}"


class Lane(NamedTuple):
    """One tenant's tasks in one queue that share rank and limits."""

    rank: int
    limits: str


class Part(NamedTuple):
    """A list of a lane: of tasks of one kind that came back; ``kind`` None holds all others."""

    lane: Lane
    kind: str | None

    @property
    def text(self) -> str:
        """Its name, as the functions write it."""
        word = f"{self.lane.rank},{self.lane.limits}" if self.lane.limits else f"{self.lane.rank}"
        return word if self.kind is None else f"{word}b {self.kind}"


class Lanes:
    """What one tenant has waiting in one queue.

    Attributes:
        lists: The parts with the tasks in each; none is empty.
        noted: By part, the sequence number by which it stands among the parts of its rank.
        parked: Lanes that a limit refused, with the name of the group they wait in.
    """

    def __init__(self) -> None:
        self.lists: dict[Part, deque[Task]] = {}
        self.noted: dict[Part, int] = {}
        self.parked: dict[Lane, str] = {}

    def __len__(self) -> int:
        return sum(map(len, self.lists.values()))

    def append(self, task: Task) -> None:
        """Put a task behind all of its lane."""
        part = Part(Lane(task.rank, task.limits), None)
        self.lists.setdefault(part, deque()).append(task)
        if part not in self.noted:
            self.note(part)

    def put_back(self, task: Task) -> None:
        """Put a task where it stood."""
        lane = Lane(task.rank, task.limits)
        part = Part(lane, task.kind)
        bisect.insort(self.lists.setdefault(part, deque()), task, key=lambda each: each.seq)
        self.note(part)
        if (new := Part(lane, None)) in self.lists:
            self.note(new)

    def note(self, part: Part) -> None:
        """Note by which head a part stands."""
        self.noted[part] = self.lists[part][0].seq

    def in_order(self, group: str | None = None) -> list[Part]:
        """Return the parts that are ready, or that wait in ``group``; the first task's first."""
        parts = (part for part in self.lists if self.parked.get(part.lane) == group)
        return sorted(parts, key=self.order_of)

    def order_of(self, part: Part) -> tuple[int, int, str]:
        """Return by what a part stands among the others: the least is first."""
        return -part.lane.rank, self.noted[part], part.text

    def kinds_of(self, lane: Lane) -> int:
        """Return of how many kinds something of a lane came back."""
        return sum(part.lane == lane and part.kind is not None for part in self.lists)

    def first_parked(self) -> str:
        """Return the group of the first parked lane: of those that wait with others, by name."""
        groups = (
            (" " in group, Part(lane, None).text, group) for lane, group in self.parked.items()
        )
        return min(groups)[2]

    def pop(self, part: Part) -> Task:
        """Take the first task of a part."""
        group = self.parked.get(part.lane)
        others = len(self.in_order(group)) > 1
        task = self.lists[part].popleft()
        if not self.lists[part]:
            self._drop(part)
        elif others:
            self.note(part)
        return task

    def withdraw(self, rank: int, tag: str) -> bool:
        """Take out a task that came back; say whether it was there."""
        for part, tasks in self.lists.items():
            for task in tasks:
                if part.kind is not None and part.lane.rank == rank and task.tag == tag:
                    self._remove(part, task)
                    return True
        return False

    def cancel(self, task: Task) -> bool:
        """Take a task out, wherever it stands; say whether it was there."""
        lane = Lane(task.rank, task.limits)
        for part in (Part(lane, None), Part(lane, task.kind)):
            if task in self.lists.get(part, ()):
                self._remove(part, task)
                return True
        return False

    def _remove(self, part: Part, task: Task) -> None:
        self.lists[part].remove(task)
        if self.lists[part]:
            self.note(part)
        else:
            self._drop(part)

    def _drop(self, part: Part) -> None:
        del self.lists[part], self.noted[part]
        if not any(other.lane == part.lane for other in self.lists):
            self.parked.pop(part.lane, None)
