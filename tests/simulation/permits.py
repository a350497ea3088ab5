"""A limit that several partitions share: the cost of its permits (the design of their lending).

A partition starts a task with a permit, and the home of the key has lent it. With at least one
permit for each partition, all keep theirs and renew them three times in a lease. With fewer, a
permit goes from partition to partition: a worker reports it back, the home names the partition that
is next, and the worker carries it there. That is five calls, two of them in the home.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial

from tests.simulation.costs import MEASURED, Costs
from tests.simulation.events import Clock, Server

#: Permits are renewed each third of a lease, in seconds.
RENEWED_SECONDS = 5.0
#: Tasks shorter than this follow each other on one permit before it goes on, in seconds.
KEPT_SECONDS = 0.1


@dataclass(frozen=True)
class Lending:
    """A limit that partitions share, all of which have tasks waiting.

    Attributes:
        limit: The number of permits.
        partitions: The number of partitions with waiting tasks.
        task_seconds: The length of a body.
        servers: The number of primaries. The first one has the home of the key.
        round_trip: The time to a server and back, in seconds.
        costs: The cost of each call.
    """

    limit: int
    partitions: int
    task_seconds: float
    servers: int = 16
    round_trip: float = 0.0004
    costs: Costs = MEASURED


@dataclass(frozen=True)
class Lent:
    """The counts of a run.

    Attributes:
        used: The part of the limit whose permits run tasks.
        calls: Calls for permits for each start.
        home: The part of its core that the home uses for them.
    """

    used: float
    calls: float
    home: float


def run(case: Lending, seconds: float = 5.0) -> Lent:
    """Lend the permits for a time."""
    if case.limit >= case.partitions:
        return _kept(case)
    return _Carried(case).run(seconds)


def _kept(case: Lending) -> Lent:
    renewals = case.partitions / RENEWED_SECONDS
    starts = case.limit / case.task_seconds
    return Lent(1.0, 3 * renewals / starts, renewals * _grant_us(case) / 1e6)


def _grant_us(case: Lending) -> float:
    """Return the CPU time of a grant, which reads the permits of all partitions that have some."""
    holders = min(case.limit, case.partitions)
    return case.costs.write + case.costs.grant + case.costs.holder * holders


class _Carried:
    """Permits that go from partition to partition."""

    def __init__(self, case: Lending) -> None:
        self._case, self._clock = case, Clock()
        write = case.costs.write
        self._servers = [
            Server(self._clock, case.round_trip, write) for _ in range(case.servers + 1)
        ]
        self._next = itertools.cycle(range(case.partitions))
        self._calls = self._starts = 0
        self._ran = 0.0

    def run(self, seconds: float) -> Lent:
        """Carry all permits for a time."""
        case = self._case
        for permit in range(case.limit):
            self._clock.after(case.round_trip * permit / case.limit, self._give_back, 0)
        self._clock.run(seconds)
        return Lent(
            min(1.0, self._ran / (case.limit * seconds)),
            self._calls / max(1, self._starts),
            self._servers[0].used / seconds,
        )

    def _give_back(self, partition: int) -> None:
        taker = next(self._next)
        ask, grant = self._case.costs.ask, _grant_us(self._case) - self._case.costs.write
        there, taken = self._server_of(partition), self._server_of(taker)
        steps = [(there, ask), (0, grant), (taken, ask), (0, grant)]
        self._step([*steps, (taken, self._case.costs.accept)], taker)

    def _server_of(self, partition: int) -> int:
        return 1 + partition % self._case.servers

    def _step(self, steps: list[tuple[int, float]], taker: int) -> None:
        """Make one call after the other, and then run tasks in the partition."""
        if steps:
            (server, us), *rest = steps
            self._calls += 1
            self._servers[server].send(lambda: (us, None), lambda _: self._step(rest, taker))
            return
        case = self._case
        # A bell, and the claim of the worker that it wakes.
        wakes = case.round_trip
        tasks = max(1, round(KEPT_SECONDS / case.task_seconds))
        self._calls += 3 * int(tasks * case.task_seconds / RENEWED_SECONDS)
        self._starts += tasks
        self._ran += tasks * case.task_seconds
        ends = wakes + tasks * (case.task_seconds + case.round_trip)
        self._clock.after(ends, partial(self._give_back, taker))
