"""P15: what many partitions do, simulated on the costs of real calls (``tests/simulation``)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

from celery_fairness.transport.ring_merge import Look, RingMerge
from celery_fairness.transport.task_filter import TaskFilter
from tests.benchmarks.harness import Row
from tests.simulation import permits
from tests.simulation.costs import MEASURED
from tests.simulation.installation import Case, Installation
from tests.simulation.permits import Lending
from tests.simulation.ring import Answer
from tests.simulation.worker import QUEUE, claim_of

#: Ten workers of four places run tasks of 20 ms of forty equal tenants. Half of these are in a
#: quarter of the partitions.
MERGE = Case(servers=4, quiet=20, quiet_seconds=0.25)
#: The load of the others, if 90 % of the places are used together with the quiet tenants.
LOAD = 0.86
#: A claim, an end that goes to another partition, and a tenth of a call that finds nothing.
CALLS = 2.1


def merge_rows(partitions: tuple[int, ...], seconds: float) -> Iterator[Row]:
    """The turns of tenants over all partitions, and the waits of quiet tenants."""
    one_ring_ms = 0.0
    for count in partitions:
        case = replace(MERGE, partitions=count, servers=min(4, count), seconds=seconds)
        full = Installation(case).run()
        jain, most = full.jain(case.tenants), case.workers + 2
        # A short run has few starts of each tenant, so one start more is a larger part of them.
        least = 0.9999 if seconds >= 5 else 0.999
        yield Row(
            "P15",
            f"simulated, {count} partitions, all places taken: Jain's index; most starts ahead",
            f">= {least}, <= {most}",
            f"{jain:.5f}; {full.spread}",
            jain >= least and full.spread <= most,
        )
        calls = full.calls_of("claim", "look", "settle")
        yield Row(
            "P15",
            f"simulated, {count} partitions, all places taken: calls of workers a task",
            f"<= {CALLS}",
            f"{calls:.2f}, and {full.calls_of('look'):.2f} of them find nothing",
            calls <= CALLS,
        )
        busy = Installation(replace(case, load=LOAD)).run()
        one_ring_ms = one_ring_ms or busy.wait_ms(99)
        yield Row(
            "P15",
            f"simulated, {count} partitions, 90 % of the places used: a quiet tenant's wait, "
            f"median and p99 of {len(busy.waits):,}",
            "p99 <= 3 x one partition",
            f"{busy.wait_ms(50):.1f} ms, {busy.wait_ms(99):.1f} ms: "
            f"{busy.wait_ms(99) / one_ring_ms:.2f} x",
            busy.wait_ms(99) <= 3 * one_ring_ms,
        )


def _row(what: str, seen: str) -> Row:
    """Return a figure without a bound."""
    return Row("P15", f"simulated, {what}", "to compare", seen, holds=True)


# -- primaries ------------------------------------------------------------------------------------

#: For each primary, workers that could run four times the tasks that it serves.
BUSY = Case(tenants=4_000, quiet=0, places=32, task_seconds=0.08, is_lopsided=False)
WORKERS = 48


def primary_rows(primaries: tuple[int, ...], seconds: float) -> Iterator[Row]:
    """Tasks a second of 16 partitions by the number of primaries, and of one without partitions."""
    for servers, partitions in [(1, 1), *((each, 16) for each in primaries)]:
        workers = WORKERS * servers
        case = replace(BUSY, servers=servers, partitions=partitions, workers=workers)
        # A run of many primaries has as many tasks in less time.
        seen = Installation(replace(case, seconds=min(seconds, 6.4 / servers))).run()
        calls = 1 + seen.calls_of("claim", "look", "settle")
        yield _row(
            f"{partitions} partitions on {servers} primaries, workers without end",
            f"{seen.rate:,.0f} tasks a second, {seen.rate / servers:,.0f} a primary; {calls:.2f} "
            f"calls a task with its put; CPU {1e6 * sum(seen.used) / seen.rate:.0f} us a task",
        )


# -- starts that are old --------------------------------------------------------------------------

#: Workers, partitions, and tenants with a backlog.
STALE = ((10, 16, 40), (10, 64, 40), (50, 16, 40), (50, 64, 1_000), (200, 16, 1_000))


def stale_rows(cases: tuple[tuple[int, int, int], ...], seconds: float) -> Iterator[Row]:
    """Claims that find nothing, because the worker has read the first starts long ago."""
    for workers, partitions, tenants in cases:
        case = Case(partitions, servers=16, workers=workers, tenants=tenants, quiet=0)
        case = replace(case, places=2, seconds=seconds, is_lopsided=False)
        seen = Installation(case).run()
        places = workers * case.places / case.task_seconds
        yield _row(
            f"{workers} workers, {partitions} partitions, {tenants} tenants with a backlog: "
            f"workers x partitions / tenants = {workers * partitions / tenants:.1f}",
            f"{seen.calls_of('look'):.2f} claims a task find nothing; {seen.rate / places:.0%} of "
            f"what the places could run; {seen.spread} starts ahead",
        )


# -- sizes ----------------------------------------------------------------------------------------

#: The sizes of an installation: partitions, primaries, tenants, workers of the
#: installation, and workers that are simulated with all of its partitions and primaries.
SIZES = (
    (16, 2, 10_000, 100, 100),
    (128, 16, 100_000, 1_000, 150),
    (1_024, 128, 1_000_000, 10_000, 20),
)
#: Tasks of 0.1 s use 80 % of the places, and the tenants' shares fall as 1 / rank.
SIZE = Case(task_seconds=0.1, load=0.8, zipf=1.0, is_lopsided=False, quiet=40, quiet_seconds=0.1)


def size_rows(sizes: tuple[tuple[int, ...], ...], seconds: float) -> Iterator[Row]:
    """Tasks a second, waits and calls of three sizes; what the looks of all workers cost."""
    for partitions, servers, tenants, workers, simulated in sizes:
        case = replace(SIZE, partitions=partitions, servers=servers, tenants=tenants)
        case = replace(case, workers=simulated, seconds=min(seconds, 200 / partitions))
        case = replace(case, quiet=min(SIZE.quiet, 4 * simulated // 10))
        seen = Installation(case).run()
        rate = seen.rate * workers / simulated
        looks = workers * partitions
        yield _row(
            f"{partitions:,} partitions, {servers} primaries, {tenants:,} tenants, "
            f"{workers:,} workers ({simulated} simulated)",
            f"{rate:,.0f} tasks a second; a quiet tenant's wait, median and p99: "
            f"{seen.wait_ms(50):.1f} and {seen.wait_ms(99):.1f} ms; "
            f"{1 + seen.calls_of('claim', 'look', 'settle'):.2f} calls a task with its put, and "
            f"{seen.calls_of('pop', 'sleep', 'bell'):.2f} at the home; looks of all workers: "
            f"{looks:,} a second, {looks * MEASURED.look / 1e6 / servers:.2f} of each core; the "
            f"largest tenant has {1 / sum(1 / (n + 1) for n in range(tenants)):.1%} of the tasks",
        )


# -- what breaks first ----------------------------------------------------------------------------

#: The part of a core at which a cost is a problem.
PART = 0.1


def ceiling_rows() -> Iterator[Row]:
    """The sizes at which each cost takes a tenth of a core, or all of it."""
    costs = MEASURED
    yield _row(
        "looks of each worker at each partition, once a second",
        f"a tenth of a primary's core at {PART * 1e6 / costs.look:,.0f} workers x partitions for "
        f"each primary, all of it at {1e6 / costs.look:,.0f}",
    )
    for load in (0.0, 0.8):
        case = replace(SIZE, workers=100, servers=2, tenants=1_000, load=load, quiet=0, seconds=2)
        seen = Installation(case).run()
        us = (costs.write + costs.pop) * seen.calls_of("pop", "sleep")
        us += (costs.write + costs.ring) * seen.calls_of("bell")
        yield _row(
            f"the home, {f'{load:.0%} of the places used' if load else 'all places taken'}",
            f"{us:.0f} us a task for its bells: all of its core at {1e6 / us:,.0f} tasks a second",
        )
    held = costs.write + costs.renew
    yield _row(
        "renewals of leases in 4 partitions, and the announcement, each third of a lease",
        f"a tenth of a primary's core at {PART * 5e6 / (4 * held + costs.announce):,.0f} workers "
        "for each primary",
    )
    for count in (1, 16, 64, 256, 1_024):
        yield _row(
            f"a request of a worker with {count:,} partitions",
            f"{_plan_us(count):,.0f} us of the worker's own time",
        )


def _plan_us(partitions: int, requests: int = 50) -> float:
    """Return the time in which a worker plans a request and reads its answer."""
    rings = RingMerge(partitions, TaskFilter())
    for partition in range(partitions):
        start = float(partition % 7)
        answer = claim_of(Answer([], start, start, 0.0, is_left=False))
        rings.read(Look(partition), answer, 0.0)
    took = math.inf
    for _ in range(requests):
        begun = time.process_time()
        looks = rings.plan([QUEUE], 4, 0.5, is_strict=False, takes_of_one=False)
        for look in looks:
            rings.read(look, claim_of(Answer([], 3.0, 3.0, 0.0, is_left=False)), 0.5)
        rings.seconds_to_look([QUEUE], 0.5)
        took = min(took, time.process_time() - begun)
    return 1e6 * took


# -- permits --------------------------------------------------------------------------------------


def permit_rows() -> Iterator[Row]:
    """The cost of a limit that partitions share, by its size, their number, and the tasks."""
    for limit in (1, 5, 100, 10_000):
        for partitions in (2, 16, 1_000):
            seen = []
            for task_seconds in (0.02, 1.0, 60.0):
                case = Lending(limit, partitions, task_seconds)
                lent = permits.run(case, max(3.0, 10 * task_seconds))
                seen.append(f"{lent.calls:.3f}")
            home = permits.run(Lending(limit, partitions, 0.02), 3.0)
            yield _row(
                f"a limit of {limit:,} with tasks in {partitions:,} partitions",
                f"calls for permits a start, tasks of 20 ms, 1 s, 60 s: {', '.join(seen)}; with "
                f"20 ms, {home.used:.1%} of the limit runs and the home uses {home.home:.1%} of "
                "a core",
            )


def rows(*, quick: bool) -> Iterator[Row]:
    """All that the page on scaling quotes."""
    yield from primary_rows(*(((1, 2), 0.3) if quick else ((1, 2, 3, 4, 8, 16), 0.8)))
    yield from stale_rows(*((STALE[:1], 0.5) if quick else (STALE, 0.5)))
    yield from size_rows(*((SIZES[:1], 1.0) if quick else (SIZES, 1.0)))
    yield from ceiling_rows()
    yield from permit_rows()
