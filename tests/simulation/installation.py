"""An installation: its tenants, its servers, its workers, and what they did."""

from __future__ import annotations

import bisect
import itertools
import math
import random
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from celery_fairness.transport.ring_merge import Look, RingMerge
from celery_fairness.transport.task_filter import TaskFilter
from tests.simulation.costs import MEASURED, Costs
from tests.simulation.events import Clock, Server
from tests.simulation.ring import Answer, Bells, Ring, Task
from tests.simulation.worker import HOME, Worker, claim_of

#: A part of the simulated time that does not count, because all begin at once.
WARM_UP = 0.2


@dataclass(frozen=True)
class Case:
    """What is simulated.

    Attributes:
        partitions: The number of partitions.
        servers: The number of primaries. The first one has the home.
        workers: The number of worker processes.
        places: The places of each.
        tenants: Tenants that send tasks all the time.
        load: The part of the workers' places that their tasks use. 0: each tenant has a backlog
            that stays.
        zipf: The exponent of the tenants' shares of the load. 0: equal shares.
        is_lopsided: Whether half of these tenants are in a quarter of the partitions.
        quiet: Tenants that send a task now and then.
        quiet_seconds: The mean time between two tasks of one of them.
        has_late: Whether one more tenant has a backlog from the middle of the time on.
        task_seconds: The mean length of a body.
        seconds: The simulated time.
        round_trip: The time to a server and back, in seconds.
        costs: What each call takes of a server.
        has_bells: Whether bells ring.
        has_starts: Whether a worker takes from the ring with the least start. Otherwise it takes
            from one partition after the other.
        has_tills: Whether a claim stops after the start of the next ring.
        has_floors: Whether a ring without a turn moves on to the time of the worker.
        rings: Makes the merge of a worker.
    """

    partitions: int = 16
    servers: int = 1
    workers: int = 10
    places: int = 4
    tenants: int = 40
    load: float = 0.0
    zipf: float = 0.0
    is_lopsided: bool = True
    quiet: int = 10
    quiet_seconds: float = 0.5
    has_late: bool = False
    task_seconds: float = 0.02
    seconds: float = 5.0
    round_trip: float = 0.0004
    costs: Costs = MEASURED
    seed: int = 1
    has_bells: bool = True
    has_starts: bool = True
    has_tills: bool = True
    has_floors: bool = True
    rings: Callable[[int, TaskFilter], RingMerge] = RingMerge


@dataclass
class Result:
    """The counts after the warm-up.

    Attributes:
        seconds: The counted time.
        starts: By tenant, the tasks that began.
        calls: By kind, the calls.
        waits: The waits of tasks of quiet tenants, in seconds.
        spread: The most starts by which a tenant with a backlog was ahead of another at any time.
        used: By server, the part of its core that was used.
        unserved: Tasks of quiet tenants that still wait at the end.
        late_lead: The starts by which the late tenant is ahead of the mean of the others, which
            began at the same time to count.
    """

    seconds: float
    starts: Counter[int] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    spread: int = 0
    used: list[float] = field(default_factory=list)
    unserved: int = 0
    late_lead: float = 0.0

    @property
    def rate(self) -> float:
        """Tasks a second."""
        return self.starts.total() / self.seconds

    def jain(self, tenants: int) -> float:
        """Jain's index of the first tenants; 1 is equal."""
        counts = [self.starts[tenant] for tenant in range(tenants)]
        return sum(counts) ** 2 / (tenants * sum(count * count for count in counts))

    def wait_ms(self, percent: float) -> float:
        """A percentile of the waits of quiet tenants, in ms."""
        waits = sorted(self.waits) or [math.inf]
        return 1000 * waits[min(len(waits) - 1, int(len(waits) * percent / 100))]

    def calls_of(self, *kinds: str) -> float:
        """Calls of some kinds a task."""
        return sum(self.calls[kind] for kind in kinds) / max(1, self.starts.total())


class Installation:
    """One run of a case."""

    def __init__(self, case: Case) -> None:
        self.case, self.clock, self.bells = case, Clock(), Bells()
        self._random = random.Random(case.seed)
        self._rings = [Ring() for _ in range(case.partitions)]
        self.servers = [
            Server(self.clock, case.round_trip, case.costs.write) for _ in range(case.servers)
        ]
        self._partition = [self._place(tenant) for tenant in range(case.tenants + case.quiet)]
        # The late tenant is in a partition that nobody else uses, if there is one.
        idle = set(range(case.partitions)).difference(self._partition[: case.tenants])
        self._partition.append(min(idle, default=0))
        self._result = Result(case.seconds * (1 - WARM_UP))
        #: By its number of starts, how many tenants with a backlog have it.
        self._levels = Counter({0: case.tenants})
        self._starts: Counter[int] = Counter()
        self._begin_load()
        self._workers = [self._worker() for _ in range(case.workers)]

    def _place(self, tenant: int) -> int:
        if self.case.is_lopsided and tenant < self.case.tenants // 2:
            return self._random.randrange(max(1, self.case.partitions // 4))
        return zlib.crc32(f"t{tenant}".encode()) % self.case.partitions

    def _worker(self) -> Worker:
        """Return a worker that has looked at each partition within the last second."""
        case = self.case
        rings = case.rings(case.partitions, TaskFilter())
        for partition, ring in enumerate(self._rings):
            answer = ring.claim(0, None, None, is_woken=False)
            rings.read(Look(partition), claim_of(answer, self._random.randrange(1000)), 0.0)
        return Worker(self, case.places, rings)

    def server_of(self, partition: int) -> int:
        """Return the server of a partition."""
        return partition % self.case.servers

    def run(self) -> Result:
        """Run the case."""
        case, clock, result = self.case, self.clock, self._result
        for tenant in range(case.tenants, case.tenants + case.quiet):
            self._put_every(case.quiet_seconds, lambda tenant=tenant: tenant)
        for worker in self._workers:
            clock.after(self._random.random() * case.task_seconds, worker.turn)
        clock.run(case.seconds * WARM_UP)
        for counts in (result.starts, result.calls, result.waits):
            counts.clear()
        used = [server.used for server in self.servers]
        clock.run(case.seconds / 2)
        before = result.starts.copy()
        if case.has_late:
            self._fill(case.tenants + case.quiet)
        clock.run(case.seconds)
        since = result.starts - before
        others = sum(since[tenant] for tenant in range(case.tenants)) / case.tenants
        result.late_lead = since[case.tenants + case.quiet] - others
        result.used = [
            (server.used - already) / result.seconds
            for server, already in zip(self.servers, used, strict=True)
        ]
        return result

    # -- producers --------------------------------------------------------------------------------

    def _begin_load(self) -> None:
        case = self.case
        if not case.load:
            for tenant in range(case.tenants):
                self._fill(tenant)
            return
        every = case.task_seconds / (case.workers * case.places * case.load)
        shares = [1 / (tenant + 1) ** case.zipf for tenant in range(case.tenants)]
        sums = list(itertools.accumulate(shares))
        self._put_every(every, lambda: bisect.bisect(sums, self._random.random() * sums[-1]))

    def _fill(self, tenant: int) -> None:
        partition = self._partition[tenant]
        if self._rings[partition].fill(tenant, math.inf) and self.clock.now:
            self.ring("new", partition)

    def _put_every(self, seconds: float, tenant: Callable[[], int]) -> None:
        def put() -> None:
            self.put(tenant())
            self.clock.after(self._random.expovariate(1 / seconds), put)

        self.clock.after(self._random.expovariate(1 / seconds), put)

    def put(self, tenant: int) -> None:
        """Put a task of a tenant; the producer rings the bell if the answer demands it."""
        partition = self._partition[tenant]
        self._result.unserved += tenant >= self.case.tenants
        ring = self._rings[partition]
        self._send_put(partition, lambda: ring.put(tenant, self.clock.now))

    def _send_put(self, partition: int, put: Callable[[], bool]) -> None:
        def effect() -> tuple[float, bool]:
            self.count("put")
            return self.case.costs.put, put()

        def answered(rings: bool) -> None:
            if rings:
                self.ring("new", partition)

        self.servers[self.server_of(partition)].send(effect, answered)

    # -- workers ----------------------------------------------------------------------------------

    def claim(self, look: Look, floor: float | None, till: float | None) -> Answer:
        """Claim in a partition."""
        case, ring = self.case, self._rings[look.partition]
        answer = ring.claim(
            look.want,
            floor if case.has_floors else None,
            till if case.has_tills else None,
            is_woken=look.is_woken,
        )
        kind = "claim" if answer.tasks else "look" if look.want else "settle"
        self.count(kind)
        for task in answer.tasks:
            self._note_start(task, look.partition)
        return answer

    def ring(self, kind: str, partition: int) -> None:
        """A producer rings a bell in the home."""
        if not self.case.has_bells:
            return

        def effect() -> tuple[float, None]:
            self.bells.ring(kind, partition)
            return self.case.costs.ring, None

        self.count("bell")
        self.servers[HOME].send(effect)

    def count(self, kind: str, calls: int = 1) -> None:
        """Count calls."""
        self._result.calls[kind] += calls

    def begin(self, worker: Worker, partition: int, task: Task) -> None:
        """Begin the body of a task."""
        if task.tenant >= self.case.tenants and task.put_at is not None:
            self._result.waits.append(self.clock.now - task.put_at)
            self._result.unserved -= 1
        length = self._random.expovariate(1 / self.case.task_seconds)
        self.clock.after(length, worker.end, partition)

    def _note_start(self, task: Task, partition: int) -> None:
        self._result.starts[task.tenant] += 1
        if task.put_at is not None:
            return
        # A producer keeps the backlog at its length.
        self._send_put(partition, self._rings[partition].wake)
        if task.tenant < self.case.tenants:
            self._note_level(task)

    def _note_level(self, task: Task) -> None:
        count = self._starts[task.tenant]
        self._starts[task.tenant] += 1
        self._levels[count] -= 1
        if not self._levels[count]:
            del self._levels[count]
        self._levels[count + 1] += 1
        self._result.spread = max(self._result.spread, max(self._levels) - min(self._levels))
