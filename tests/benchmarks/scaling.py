"""P15: what many partitions do, simulated on the costs of real calls (``tests/simulation``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.benchmarks.harness import Row
from tests.simulation.installation import Case, Installation

#: Ten workers of four places run tasks of 20 ms of forty equal tenants. Half of these are in a
#: quarter of the partitions.
MERGE = Case(servers=4, quiet=20, quiet_seconds=0.25)
#: The load of the others, if 90 % of the places are used together with the quiet tenants.
LOAD = 0.86


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
            f"simulated, {count} partitions, all places taken: Jain's index; most starts ahead; "
            "calls a task of workers",
            f">= {least}, <= {most}",
            f"{jain:.5f}; {full.spread}; {full.calls_of('claim', 'look', 'settle'):.2f}, "
            f"{full.calls_of('look'):.2f} of them find nothing",
            jain >= least and full.spread <= most,
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
