"""``make bench``: print every figure that README quotes, and whether it holds."""

from __future__ import annotations

import argparse
import os
import platform
import sys

from celery_fairness.testing.server import RedisServer
from tests.benchmarks import calls, gate


def main() -> int:
    """Run the benchmarks; returns 1 where a figure does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer tasks, about a minute")
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    failed = False
    with RedisServer() as server:
        for name, (median, p99) in calls.percentiles(
            server, 2_000 if options.quick else 20_000
        ).items():
            holds = p99 <= calls.AT_MOST_SECONDS
            failed |= not holds
            print(
                f"{name}: median {median * 1000:.3f} ms, p99 {p99 * 1000:.3f} ms "
                f"(at most {calls.AT_MOST_SECONDS * 1000:.0f} ms: {_word(holds)})"
            )
        for pool in gate.POOLS:
            plain, fair = gate.measure(server, pool, 1_500 if options.quick else 6_000)
            holds = fair / plain >= pool.at_least
            failed |= not holds
            print(
                f"{pool.name}: plain {plain:,.0f} tasks/s, FairTask {fair:,.0f} tasks/s, "
                f"ratio {fair / plain:.2f} (at least {pool.at_least}: {_word(holds)})"
            )
    return int(failed)


def _word(holds: bool) -> str:
    return "holds" if holds else "DOES NOT HOLD"


if __name__ == "__main__":
    sys.exit(main())
