"""``make bench``: print every figure that README quotes, and whether it holds.

Ratios are taken in one run on one machine, both sides doing the same work.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks import (
    admin,
    claims,
    costs,
    flags,
    gate,
    latency,
    metrics,
    network,
    operator,
    parked,
    scaling,
    server_calls,
    server_cpu,
    shares,
    throughput,
    wire,
)
from tests.benchmarks.harness import Row
from tests.support.redis_server import RedisServer

#: The names of the parts on the command line, in the order in which they run.
PARTS = (
    *("wire", "claims", "parked", "order", "memory", "operator", "metrics", "admin", "flags"),
    *(
        "numbers",
        "shares",
        "latency",
        "slow",
        "crowd",
        "throughput",
        "idle",
        "cpu",
        "cluster",
        "partitions",
        "calls",
        "merge",
        "scaling",
        "network",
        "gate",
    ),
)
#: The parts that --quick leaves out. A share needs many seconds in which everybody waits, and the
#: cost of the gate needs more than a few hundred tasks.
NOT_QUICK = (
    "admin",
    "flags",
    "shares",
    "idle",
    "cpu",
    "partitions",
    "calls",
    "scaling",
    "network",
    "gate",
)


def main() -> int:
    """Run the benchmarks; returns 1 where a figure does not hold."""
    # Parts empty Redis, and the producers of this process would log the loss.
    logging.getLogger("celery_fairness").addHandler(logging.NullHandler())
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer tasks, not all parts: three minutes"
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; repeatable")
    parser.add_argument(
        "--server",
        metavar="PATH",
        help="redis-server or valkey-server; default: what the tests use",
    )
    options = parser.parse_args()
    binary = options.server and shutil.which(options.server)
    if options.server and not binary:
        parser.error(f"--server: expected a program, got: {options.server}")
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{_version(binary)}, stock Celery at its defaults",
        flush=True,
    )
    failed = 0
    begun = time.monotonic()
    quick = [part for part in PARTS if part not in NOT_QUICK]
    for part in options.only or (quick if options.quick else PARTS):
        with RedisServer(binary) as server:
            for row in _parts(server, quick=options.quick)[part]():
                failed += not row.holds
                word = "holds" if row.holds else "DOES NOT HOLD"
                print(
                    f"{row.number:4} {row.what}\n     {row.seen}   ({row.asked}: {word})",
                    flush=True,
                )
    print(f"{time.monotonic() - begun:.0f} s; figures that do not hold: {failed}")
    return int(failed > 0)


def _version(binary: str | None) -> str:
    with RedisServer(binary) as server, server.client() as client:
        # Any: redis-py says of each answer that it may be awaited.
        told: Any = client.info("server")
    name = told.get("server_name", "redis")
    return f"{name} {told.get(f'{name}_version', '?')}"


def _parts(server: RedisServer, *, quick: bool) -> dict[str, Callable[[], Iterator[Row]]]:
    return {
        "wire": lambda: wire.rows(server, 500 if quick else 4_000),
        "claims": lambda: claims.scale_rows(server, 10_000 if quick else 100_000),
        "parked": lambda: parked.rows(server, *((5_000, 1_000) if quick else (100_000, 10_000))),
        "order": lambda: (
            claims.order_rows(server, (99,), 5_000)
            if quick
            else claims.order_rows(server, (99, 1_000, 10_000))
        ),
        "memory": lambda: claims.memory_rows(server, 2_000 if quick else 10_000),
        "admin": lambda: admin.rows(server, 10_000 if quick else 100_000),
        "operator": lambda: operator.rows(server, 10_000 if quick else 100_000),
        "metrics": lambda: metrics.rows(server, 10_000 if quick else 100_000),
        "flags": lambda: flags.rows(server),
        "numbers": lambda: costs.rows(server, 3 if quick else 9),
        "shares": lambda: shares.rows(server, 15 if quick else 60),
        "latency": lambda: latency.rows(server, *((600, 60, 1) if quick else (5_000, 1_000, 3))),
        "slow": lambda: latency.slow_rows(server, *((300, 12) if quick else (5_000, 240))),
        "crowd": lambda: latency.crowd_rows(
            server, *((1_000, 1_000, 300, 60) if quick else (5_000, 100_000, 10_000, 1_000))
        ),
        "throughput": lambda: throughput.rows(
            server, *((1, 0.3) if quick else (16, 1.0)), at_best=not quick
        ),
        "idle": lambda: throughput.idle_rows(server, *((1, 0.3) if quick else (8, 1.0))),
        "cpu": lambda: server_cpu.rows(
            server, *((3, 1_000) if quick else (9, 2_000)), all_pools=not quick
        ),
        "cluster": lambda: throughput.cluster_rows(server, *((1, 0.3) if quick else (16, 1.0))),
        "partitions": lambda: throughput.partition_rows(
            server, *((1, 0.3, 1) if quick else (16, 1.0, 2))
        ),
        "calls": lambda: server_calls.rows(server, *((3, 500) if quick else (9, 2_000))),
        "merge": lambda: scaling.merge_rows(*(((1, 16), 2) if quick else ((1, 4, 16, 64), 5))),
        "scaling": lambda: scaling.rows(quick=quick),
        "network": lambda: network.rows(server, 2 if quick else 3, all_pools=not quick),
        "gate": lambda: gate.rows(server, *((2_000, 1, 0.3) if quick else (20_000, 16, 1.0))),
    }


if __name__ == "__main__":
    sys.exit(main())
