"""The rules of lending as a small model, whose states are all visited.

A lane is one tenant in one queue. Its tenant is ``active`` below its concurrency, in ``lend`` from
there to below its burst, or ``out``. A worker has places and takes some queues. It claims for all
its free places at once, and sleeps until a wake-up of one of its queues.

The model knows no virtual time, so a claim may take the active lanes in either order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

#: A lane whose tasks never end.
STREAM = 9
_ACTIVE, _LEND, _OUT = "active", "lend", "out"
_RANKS = (_OUT, _LEND, _ACTIVE)


class Installation(NamedTuple):
    """What does not change.

    Attributes:
        name: What it shows.
        workers: Places and queues of each.
        lanes: Queue, tenant and most waiting tasks of each.
        soft: The concurrency of each tenant.
        hard: The burst of each tenant.
        spare: The places that each worker keeps back.
        stops: The first worker may stop.
    """

    name: str
    workers: tuple[tuple[int, tuple[int, ...]], ...]
    lanes: tuple[tuple[int, int, int], ...]
    soft: tuple[int, ...]
    hard: tuple[int, ...]
    spare: int = 0
    stops: bool = False


INSTALLATIONS = (
    Installation("one stream alone", ((2, (0,)),), ((0, 0, 9),), (1,), (2,)),
    Installation("a quiet tenant", ((2, (0,)),), ((0, 0, 9), (0, 1, 2)), (1, 1), (2, 2)),
    Installation("two streams", ((3, (0,)),), ((0, 0, 9), (0, 1, 9)), (1, 1), (3, 2)),
    Installation("two queues", ((2, (0, 1)),), ((0, 0, 9), (1, 1, 2)), (1, 1), (2, 1)),
    Installation(
        "two workers",
        ((1, (0,)), (2, (0,))),
        ((0, 0, 9), (0, 1, 1)),
        (1, 1),
        (2, 1),
        stops=True,
    ),
    Installation("few tasks", ((3, (0,)),), ((0, 0, 2), (0, 1, 2)), (1, 1), (3, 2)),
    Installation(
        "three tenants",
        ((3, (0, 1)), (2, (1,))),
        ((0, 0, 9), (1, 0, 2), (1, 1, 2), (0, 2, 1)),
        (2, 1, 1),
        (4, 3, 1),
        1,
        stops=True,
    ),
    Installation("a spare place", ((3, (0,)),), ((0, 0, 9), (0, 1, 2)), (1, 1), (3, 1), 1),
)


@dataclass(frozen=True)
class Rules:
    """The rules, each of which may be left out."""

    second_order: bool = True
    all_queues: bool = True
    put_wakes: bool = True
    end_returns: bool = True
    spare_wakes: bool = True


class _State(NamedTuple):
    waiting: tuple[int, ...]
    where: tuple[str, ...]
    leases: tuple[tuple[int, int], ...]
    woken: frozenset[int]
    stopped: frozenset[int]


@dataclass
class _Draft:
    """A state that changes."""

    waiting: list[int]
    where: list[str]
    leases: list[tuple[int, int]]
    woken: set[int]
    stopped: set[int]
    #: The lanes of which a claim starts a task, how many its tenant had, and what else waited.
    started: list[tuple[int, int, bool]] = field(default_factory=list)

    @classmethod
    def of(cls, state: _State) -> _Draft:
        return cls(
            list(state.waiting),
            list(state.where),
            list(state.leases),
            set(state.woken),
            set(state.stopped),
        )

    def frozen(self) -> _State:
        return _State(
            tuple(self.waiting),
            tuple(self.where),
            tuple(sorted(self.leases)),
            frozenset(self.woken),
            frozenset(self.stopped),
        )


class Search:
    """All states of one installation under some rules.

    Attributes:
        states: How many there are.
        violations: What was found to be violated.
    """

    def __init__(self, place: Installation, rules: Rules) -> None:
        self.place, self.rules = place, rules
        self.states, self.violations = 0, set[str]()
        self._run()

    def _run(self) -> None:
        lanes = self.place.lanes
        first = _State(
            tuple(most if most == STREAM else 0 for _, _, most in lanes),
            (_ACTIVE,) * len(lanes),
            (),
            frozenset(queue for queue, _, _ in lanes),
            frozenset(),
        )
        seen, left = {first}, deque([first])
        while left:
            for draft in self._steps(left.popleft()):
                self.violations.update(self._violated(draft))
                state = draft.frozen()
                if state not in seen:
                    seen.add(state)
                    left.append(state)
        self.states = len(seen)

    def _steps(self, state: _State) -> Iterator[_Draft]:
        for worker in range(len(self.place.workers)):
            if worker not in state.stopped and self._free(state.leases, worker):
                for order in (0, -1):
                    draft = _Draft.of(state)
                    self._claim(draft, worker, order)
                    yield draft
        for lease in sorted(set(state.leases)):
            for order in (0, -1):
                # Its worker settles the end and claims in one call.
                draft = _Draft.of(state)
                draft.leases.remove(lease)
                self._unblock(draft, lease[1])
                if lease[0] not in draft.stopped:
                    self._claim(draft, lease[0], order)
                yield draft
        for lane, (queue, tenant, most) in enumerate(self.place.lanes):
            if most != STREAM and state.waiting[lane] < most:
                draft = _Draft.of(state)
                draft.waiting[lane] += 1
                if draft.waiting[lane] == 1:
                    draft.where[lane] = self._where(draft, tenant)
                where = draft.where[lane]
                if where == _ACTIVE or (where == _LEND and self.rules.put_wakes):
                    draft.woken.add(queue)
                yield draft
        if self.place.stops and not state.stopped:
            draft = _Draft.of(state)
            draft.stopped.add(0)
            yield draft

    def _free(self, leases: Sequence[tuple[int, int]], worker: int) -> int:
        return self.place.workers[worker][0] - sum(owner == worker for owner, _ in leases)

    def _held(self, draft: _Draft, tenant: int) -> int:
        return sum(each == tenant for _, each in draft.leases)

    def _where(self, draft: _Draft, tenant: int) -> str:
        held = self._held(draft, tenant)
        if held < self.place.soft[tenant]:
            return _ACTIVE
        return _LEND if held < self.place.hard[tenant] else _OUT

    def _unblock(self, draft: _Draft, tenant: int) -> None:
        """A task of a tenant has ended."""
        to = self._where(draft, tenant)
        for lane, (queue, its, _) in enumerate(self.place.lanes):
            if its != tenant or not draft.waiting[lane]:
                continue
            is_better = _RANKS.index(to) > _RANKS.index(draft.where[lane])
            if is_better and (to == _ACTIVE or self.rules.end_returns):
                draft.where[lane] = to
                draft.woken.add(queue)

    def _claim(self, draft: _Draft, worker: int, order: int) -> None:
        queues = self.place.workers[worker][1]
        want = self._free(draft.leases, worker)
        draft.woken.difference_update(queues)
        draft.started.clear()

        def take(kind: str, some: Sequence[int]) -> None:
            while len(draft.started) < want:
                lanes = [
                    lane
                    for lane, (queue, _, _) in enumerate(self.place.lanes)
                    if queue in some and draft.waiting[lane] and draft.where[lane] == kind
                ]
                is_kept = kind == _LEND and want - len(draft.started) <= self.place.spare
                if not lanes or is_kept:
                    return
                self._take(draft, worker, lanes[order], kind)

        rounds = [queues] if self.rules.all_queues else [(queue,) for queue in queues]
        for some in rounds:
            take(_ACTIVE, some)
            take(_LEND, some)
        for lane, (queue, _, _) in enumerate(self.place.lanes):
            if queue not in queues or not draft.waiting[lane] or draft.where[lane] == _OUT:
                continue
            is_kept = draft.where[lane] == _LEND and self.rules.spare_wakes
            if is_kept or len(draft.started) == want:
                draft.woken.add(queue)

    def _take(self, draft: _Draft, worker: int, lane: int, kind: str) -> None:
        """Take a task of a lane, or note that its tenant is elsewhere now."""
        tenant = self.place.lanes[lane][1]
        at = self._where(draft, tenant)
        if at == _LEND and not self.rules.second_order:
            at = kind
        if at != kind and not (kind == _LEND and at == _ACTIVE):
            draft.where[lane] = at
            return
        waits = any(
            draft.waiting[other] and self._held(draft, its) < self.place.soft[its]
            for other, (queue, its, _) in enumerate(self.place.lanes)
            if queue in self.place.workers[worker][1]
        )
        draft.started.append((lane, self._held(draft, tenant), waits))
        draft.leases.append((worker, tenant))
        if draft.waiting[lane] != STREAM:
            draft.waiting[lane] -= 1

    def _violated(self, draft: _Draft) -> Iterator[str]:
        for lane, held, waits in draft.started:
            tenant = self.place.lanes[lane][1]
            if held >= self.place.hard[tenant]:
                yield "above the burst"
            if held >= self.place.soft[tenant] and waits:
                yield "lent although another waited"
        for worker, (_, queues) in enumerate(self.place.workers):
            if worker in draft.stopped or draft.woken.intersection(queues):
                continue
            if not self._free(draft.leases, worker):
                continue
            trial = _Draft.of(draft.frozen())
            for lane, (_, tenant, _) in enumerate(self.place.lanes):
                trial.where[lane] = self._where(trial, tenant)
            self._claim(trial, worker, 0)
            if trial.started:
                yield "lost wake-up"


def violations_of(rules: Rules, note: Callable[[int], None] = lambda states: None) -> set[str]:
    """Return what all installations together violate under some rules."""
    found = set[str]()
    for place in INSTALLATIONS:
        search = Search(place, rules)
        note(search.states)
        found |= search.violations
    return found
