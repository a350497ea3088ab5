"""P12: what the gate costs: its two calls, and no-op tasks through FairTask against plain ones."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from tests.benchmarks import calls, throughput
from tests.benchmarks.harness import Row
from tests.support.redis_server import RedisServer

#: Pool, and the ratio that is asked for.
POOLS = (
    ("prefork -c 2", ("--pool=prefork", "--concurrency=2"), 0.85),
    ("solo", ("--pool=solo",), 0.7),
)


def rows(server: RedisServer, asked_calls: int, tasks: int, turns: int) -> Iterator[Row]:
    """Measure the calls, then every pool: plain and fair in turns, so many of each."""
    for name, (median, p99) in calls.percentiles(server, asked_calls).items():
        yield Row(
            "P12",
            f"{name}, Redis on the same host",
            f"p99 <= {calls.AT_MOST_SECONDS * 1000:.0f} ms",
            f"median {median * 1000:.3f} ms, p99 {p99 * 1000:.3f} ms",
            p99 <= calls.AT_MOST_SECONDS,
        )
    for name, args, asked in POOLS:
        rates: dict[str, list[float]] = {"plain": [], "fair": []}
        for turn in range(turns):
            for task in ("plain", "fair") if turn % 2 == 0 else ("fair", "plain"):
                rates[task].append(throughput.rate(server, args, tasks, ours=False, task=task))
        plain, fair = statistics.median(rates["plain"]), statistics.median(rates["fair"])
        yield Row(
            "P12",
            f"gate path: FairTask against a plain task, no-op tasks a second, {name}",
            f">= {asked} x",
            f"{fair:,.0f} against {plain:,.0f}: {fair / plain:.2f} x",
            fair / plain >= asked,
        )
