"""``make bench``: print every figure that README quotes, and whether it holds.

Ratios are taken in one run on one machine, both sides doing the same work.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator

from celery_fairness.testing.server import RedisServer
from tests.benchmarks import calls, claims, gate, latency, throughput, wire
from tests.benchmarks.harness import Row

#: What the parts are called on the command line, in the order in which they run.
PARTS = ("wire", "claims", "order", "memory", "latency", "slow", "crowd", "throughput", "gate")


def main() -> int:
    """Run the benchmarks; returns 1 where a figure does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer tasks, under two minutes")
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; repeatable")
    options = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"stock Celery at its defaults",
        flush=True,
    )
    failed = 0
    begun = time.monotonic()
    for part in options.only or PARTS:
        with RedisServer() as server:
            for row in _parts(server, quick=options.quick)[part]():
                failed += not row.holds
                word = "holds" if row.holds else "DOES NOT HOLD"
                print(
                    f"{row.number:4} {row.what}\n     {row.seen}   ({row.asked}: {word})",
                    flush=True,
                )
    print(f"{time.monotonic() - begun:.0f} s; figures that do not hold: {failed}")
    return int(failed > 0)


def _parts(server: RedisServer, *, quick: bool) -> dict[str, Callable[[], Iterator[Row]]]:
    return {
        "wire": lambda: wire.rows(server, 1_000 if quick else 10_000),
        "claims": lambda: claims.scale_rows(server, 10_000 if quick else 100_000),
        "order": lambda: (
            claims.order_rows(server, (99, 1_000), 10_000)
            if quick
            else claims.order_rows(server, (99, 1_000, 10_000))
        ),
        "memory": lambda: claims.memory_rows(server, 2_000 if quick else 10_000),
        "latency": lambda: latency.rows(server, 200 if quick else 1_000, 1 if quick else 3),
        "slow": lambda: latency.slow_rows(server, 20 if quick else 240),
        "crowd": lambda: latency.crowd_rows(
            server, *((1_000, 300, 100) if quick else (100_000, 10_000, 1_000))
        ),
        "throughput": lambda: throughput.rows(server, 700 if quick else 5_000, at_best=not quick),
        "gate": lambda: _gate_rows(server, quick=quick),
    }


def _gate_rows(server: RedisServer, *, quick: bool) -> Iterator[Row]:
    """P12, and the limiter's calls."""
    for name, (median, p99) in calls.percentiles(server, 2_000 if quick else 20_000).items():
        yield Row(
            "P12",
            f"{name}, Redis on the same host",
            f"p99 <= {calls.AT_MOST_SECONDS * 1000:.0f} ms",
            f"median {median * 1000:.3f} ms, p99 {p99 * 1000:.3f} ms",
            p99 <= calls.AT_MOST_SECONDS,
        )
    for pool in gate.POOLS:
        plain, fair = gate.measure(server, pool, 800 if quick else 6_000)
        yield Row(
            "P12",
            f"gate path: FairTask against a plain task, no-op tasks a second, {pool.name}",
            f">= {pool.at_least} x",
            f"{fair:,.0f} against {plain:,.0f}: {fair / plain:.2f} x",
            fair / plain >= pool.at_least,
        )


if __name__ == "__main__":
    sys.exit(main())
