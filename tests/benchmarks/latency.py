"""P4 and P7: waiting times in a worker: a freed slot, and a quiet tenant under a flood."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from celery_fairness.scheduler.types import Rules, Verdict, Waiting
from tests.benchmarks.claims import Bench
from tests.benchmarks.harness import Row, percentile, url_of, wait_until, worker
from tests.support.redis_server import RedisServer

#: A pool of four and limits below it: a pool slot is free.
POOL = ("--pool=threads", "--concurrency=4", "--queues=flood_default,flood_priority")
EVERY_SECONDS = 0.01
FLOOD_SECONDS = 0.05
#: A queue of this worker, and a tier with one slot.
CROWDED, CROWD_TIER = "flood_default", "capped"

#: What the sender runs: a number of tasks of a user, one every so many seconds.
_SEND = """
import sys, time
from tests.benchmarks.app import app, span
user, tasks, seconds, every = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
with app.producer_pool.acquire() as producer:
    # What the first one takes to connect is not a wait for a worker.
    span.apply_async((time.time(), 0.0), {"user": "first"}, producer=producer)
    for _ in range(tasks):
        span.apply_async((time.time(), seconds), {"user": user}, producer=producer)
        time.sleep(every)
"""


def run(
    server: RedisServer,
    flood: int,
    quiet: int,
    *,
    seconds: float = FLOOD_SECONDS,
    every: float = EVERY_SECONDS,
    prepare: Callable[[], None] | None = None,
    beside: Callable[[], None] | None = None,
) -> list[dict[str, Any]]:
    """Return what the tasks wrote: a flood of one tenant at limit 2, quiet tasks of another.

    ``prepare`` is called before the tasks are sent, ``beside`` when the worker runs.
    """
    with server.client() as client:
        client.flushall()
    if prepare is not None:
        prepare()
    url = url_of(server, ours=True)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger")
        ledger.touch()
        environment = {**os.environ, "BENCH_BROKER_URL": url, "BENCH_LEDGER": str(ledger)}

        def send(user: str, tasks: int, seconds: float, every: float) -> None:
            words = (user, str(tasks), str(seconds), str(every))
            argv = [sys.executable, "-c", _SEND, *words]
            subprocess.run(argv, env=environment, check=True)

        send("two", flood, seconds, 0.0)
        send("quiet", 1, 0.0, 0.0)
        with worker(url, POOL, BENCH_LEDGER=str(ledger)):
            wait_until(lambda: ledger.stat().st_size > 0)
            if beside is not None:
                beside()
            send("quiet", quiet, 0.0, every)
            wait_until(lambda: ledger.read_text().count('"quiet"') > quiet)
        return [json.loads(line) for line in ledger.read_text().splitlines()]


def waits_of_quiet(entries: list[dict[str, Any]]) -> list[float]:
    """Return how long the quiet tenant's tasks waited, less the one from before the worker."""
    return [e["waited"] for e in entries if e["user"] == "quiet"][1:]


def flood_of(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the flood's tasks wrote, in the order of their starts."""
    return sorted((e for e in entries if e["user"] == "two"), key=lambda e: e["began_at"])


def share_of(flood: list[dict[str, Any]]) -> float:
    """Return how much of its two slots the flood used, until all that was seen had ended."""
    window = flood[-1]["ended_at"] - flood[0]["began_at"]
    return float(sum(e["ended_at"] - e["began_at"] for e in flood) / (2 * window))


def rows(server: RedisServer, flood: int, quiet: int, rounds: int) -> Iterator[Row]:
    """Measure with and without a flood of so many tasks, in turn."""
    alone, flooded, gaps, shares = [], [], [], []
    for _ in range(rounds):
        alone.append(percentile(waits_of_quiet(run(server, 0, quiet)), 99))
        busy = run(server, flood, quiet)
        flooded.append(percentile(waits_of_quiet(busy), 99))
        capped = flood_of(busy)
        ends = sorted(e["ended_at"] for e in capped)
        # With two slots, the start number n + 2 takes the slot of the end number n.
        gaps += [s["began_at"] - e for s, e in zip(capped[2:], ends, strict=False)]
        shares.append(share_of(capped))
    freed = percentile([max(0.0, gap) for gap in gaps], 99)
    yield Row(
        "P4",
        "freed slot to the tenant's next start, p99",
        "<= 10 ms",
        f"{freed * 1000:.1f} ms (median {statistics.median(gaps) * 1000:.1f} ms)",
        freed <= 0.010,
    )
    yield Row(
        "P4",
        "a flood at limit 2 uses of its slots, tasks of 50 ms",
        ">= 93 %",
        f"{statistics.median(shares):.1%}",
        statistics.median(shares) >= 0.93,
    )
    before, after = statistics.median(alone), statistics.median(flooded)
    yield Row(
        "P7",
        f"wait of a quiet tenant under a flood of {flood:,}, p99 of {quiet:,}, median of {rounds}",
        "<= 20 ms, <= 1.5 x without",
        f"{after * 1000:.1f} ms against {before * 1000:.1f} ms: {after / before:.2f} x",
        after <= 0.020 and after <= 1.5 * before,
    )


def slow_rows(server: RedisServer, flood: int, quiet: int) -> Iterator[Row]:
    """Measure with tasks of 500 ms, and a quiet task every 250 ms."""
    seen = run(server, flood, quiet, seconds=0.5, every=0.25)
    waited, share = percentile(waits_of_quiet(seen), 99), share_of(flood_of(seen))
    yield Row(
        "P4",
        "a flood at limit 2 uses of its slots, tasks of 500 ms",
        ">= 98 %",
        f"{share:.1%}",
        share >= 0.98,
    )
    yield Row(
        "P7",
        f"wait of a quiet tenant beside it, one task every 250 ms, p99 of {quiet}",
        "<= 20 ms",
        f"{waited * 1000:.1f} ms",
        waited <= 0.020,
    )


def crowd_rows(
    server: RedisServer, flood: int, parked: int, leases: int, quiet: int
) -> Iterator[Row]:
    """Measure beside tenants that wait at their limit, while leases of dead workers end."""

    dying = Bench(server, "elsewhere")

    def crowd() -> None:
        Bench(server, CROWDED).fill_tenants(parked, CROWD_TIER)
        dying.put([Waiting("elsewhere", f"e{n}", str(n), message="m") for n in range(leases)])

    def die() -> None:
        rules = Rules(lease_ms=1_000, default_limit=None)
        while (claim := dying.claim(64, rules=rules)).tasks:
            # Nobody runs them again: what is measured is how their leases end.
            dying.settle(claim, rules, Verdict.ACKED)

    seen = run(server, flood, quiet, prepare=crowd, beside=die)
    waited = percentile(waits_of_quiet(seen), 99)
    yield Row(
        "P7",
        f"the same beside {parked:,} tenants at their limit, while {leases:,} leases end, "
        f"p99 of {quiet:,}",
        "<= 50 ms",
        f"{waited * 1000:.1f} ms",
        waited <= 0.050,
    )
