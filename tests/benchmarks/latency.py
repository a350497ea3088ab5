"""P4 and P7: waiting times in a worker: a freed slot, and a quiet tenant under a flood."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from celery_fairness.testing.server import RedisServer
from tests.benchmarks.harness import Row, percentile, url_of, wait_until, worker

#: A pool of four and limits below it: a pool slot is free.
POOL = ("--pool=threads", "--concurrency=4", "--queues=flood_default,flood_priority")
EVERY_SECONDS = 0.01
FLOOD_SECONDS = 0.05


#: What the sender runs: a number of tasks of a user, one every so many seconds.
_SEND = """
import sys, time
from tests.benchmarks.app import app, span
user, tasks, seconds, every = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
with app.producer_pool.acquire() as producer:
    for _ in range(tasks):
        span.apply_async((time.time(), seconds), {"user": user}, producer=producer)
        time.sleep(every)
"""


def run(server: RedisServer, flood: int, quiet: int) -> list[dict[str, Any]]:
    """Return what the tasks wrote: a flood of one tenant at limit 2, quiet tasks of another."""
    with server.client() as client:
        client.flushall()
    url = url_of(server, ours=True)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger")
        ledger.touch()
        environment = {**os.environ, "BENCH_BROKER_URL": url, "BENCH_LEDGER": str(ledger)}

        def send(user: str, tasks: int, seconds: float, every: float) -> None:
            words = (user, str(tasks), str(seconds), str(every))
            argv = [sys.executable, "-c", _SEND, *words]
            subprocess.run(argv, env=environment, check=True)

        send("two", flood, FLOOD_SECONDS, 0.0)
        send("quiet", 1, 0.0, 0.0)
        with worker(url, POOL, BENCH_LEDGER=str(ledger)):
            wait_until(lambda: ledger.stat().st_size > 0)
            send("quiet", quiet, 0.0, EVERY_SECONDS)
            wait_until(lambda: ledger.read_text().count('"quiet"') > quiet)
        return [json.loads(line) for line in ledger.read_text().splitlines()]


def rows(server: RedisServer, quiet: int, rounds: int) -> Iterator[Row]:
    """Measure with and without the flood, in turn."""
    alone, flooded, gaps, shares = [], [], [], []
    for _ in range(rounds):
        calm = run(server, 0, quiet)
        alone.append(percentile([e["waited"] for e in calm if e["user"] == "quiet"][1:], 99))
        busy = run(server, 5_000, quiet)
        flooded.append(percentile([e["waited"] for e in busy if e["user"] == "quiet"][1:], 99))
        flood = sorted((e for e in busy if e["user"] == "two"), key=lambda e: e["began_at"])
        ends = sorted(e["ended_at"] for e in flood)
        # With two slots, the start number n + 2 takes the slot of the end number n.
        gaps += [s["began_at"] - e for s, e in zip(flood[2:], ends, strict=False)]
        window = flood[-1]["ended_at"] - flood[0]["began_at"]
        shares.append(sum(e["ended_at"] - e["began_at"] for e in flood) / (2 * window))
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
        f"wait of a quiet tenant under a flood of 5,000, p99 of {quiet:,}, median of {rounds}",
        "<= 20 ms, <= 1.5 x without",
        f"{after * 1000:.1f} ms against {before * 1000:.1f} ms: {after / before:.2f} x",
        after <= 0.020 and after <= 1.5 * before,
    )
