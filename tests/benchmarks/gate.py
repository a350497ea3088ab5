"""P12: what the gate costs: its two calls, and no-op tasks through FairTask against plain ones."""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks import calls
from tests.benchmarks.harness import Row
from tests.benchmarks.turns import Contender, rates
from tests.support.redis_server import RedisServer

#: Pool, and the ratio that is asked for.
POOLS = (
    ("prefork -c 2", ("--pool=prefork", "--concurrency=2"), 0.85),
    ("solo", ("--pool=solo",), 0.7),
)


def rows(server: RedisServer, asked_calls: int, rounds: int, seconds: float) -> Iterator[Row]:
    """Measure the calls, then every pool: plain and fair in turns of so many seconds."""
    for name, (median, p99) in calls.percentiles(server, asked_calls).items():
        yield Row(
            "P12",
            f"{name}, Redis on the same host",
            f"p99 <= {calls.AT_MOST_SECONDS * 1000:.0f} ms",
            f"median {median * 1000:.3f} ms, p99 {p99 * 1000:.3f} ms",
            p99 <= calls.AT_MOST_SECONDS,
        )
    for name, args, asked in POOLS:
        contenders = [Contender("plain", args), Contender("fair", args)]
        plain, fair = rates(server, contenders, rounds, seconds)
        yield Row(
            "P12",
            f"gate path: FairTask against a plain task, no-op tasks a second, {name}",
            f">= {asked} x",
            f"{fair:,.0f} against {plain:,.0f}: {fair / plain:.2f} x",
            fair / plain >= asked,
        )
