"""P1 and P6: tasks a second, and turns of tenants, with a slow network between workers and Redis.

A proxy delays every byte. What the proxy itself costs is in each figure, also in those without a
delay, so they are lower than those of the other parts. Compare them with each other.

The backlog lies in blocks, one tenant after the other. Without turns a worker starts the tasks of
one tenant only: Jain's index is 1 divided by the number of tenants.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.harness import Row, url_of, wait_until, worker
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer

TENANTS = 9
#: Round trips in ms, each with the tasks that wait: more than a worker starts in a window.
ROUND_TRIPS = ((0, 15_000), (1, 12_000), (10, 6_000), (100, 2_000))
POOLS = (
    ("solo", ("--pool=solo",)),
    ("threads -c 8", ("--pool=threads", "--concurrency=8")),
)
#: Round trips from so many ms on are read four times as long: fewer tasks start there.
FAR_MS = 100
#: From the first body until a worker has found its pace, in seconds.
WARM_SECONDS = 1.0
#: Jain's index that is asked for.
EQUAL = 0.99

_SEND = """
import sys
from tests.benchmarks import app as b
task, tasks, tenants = getattr(b, sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with b.app.producer_pool.acquire() as producer:
    for n in range(tasks):
        task.apply_async((str(n * tenants // tasks),), producer=producer)
"""


def jain(amounts: list[int]) -> float:
    """Return Jain's index: 1 if all are equal."""
    squares = sum(each * each for each in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else 0.0


def run(
    server: RedisServer,
    args: tuple[str, ...],
    tasks: int,
    round_trip_ms: float,
    seconds: float,
    *,
    ours: bool,
) -> tuple[float, float]:
    """Return tasks a second, and Jain's index of the tenants whose tasks ran."""
    with server.client() as client:
        client.flushall()
    url = url_of(server, ours=ours)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger")
        ledger.touch()
        environment = {**os.environ, "BENCH_BROKER_URL": url}
        words = ("counted_fair" if ours else "counted_plain", str(tasks), str(TENANTS))
        subprocess.run([sys.executable, "-c", _SEND, *words], env=environment, check=True)
        with (
            Proxy(server.port, delay_seconds=round_trip_ms / 2000) as proxy,
            worker(proxy.url(url), args, BENCH_LEDGER=str(ledger)),
        ):
            wait_until(lambda: ledger.stat().st_size > 0)
            time.sleep(WARM_SECONDS)
            before, begun = ledger.read_text().split(), time.monotonic()
            time.sleep(seconds)
            after, ended = ledger.read_text().split(), time.monotonic()
    assert len(after) < tasks, f"{tasks} tasks are too few for {seconds} s"
    ran = Counter(after[len(before) :])
    index = jain([ran[str(tenant)] for tenant in range(TENANTS)])
    return ran.total() / (ended - begun), index


def rows(server: RedisServer, seconds: float, *, all_pools: bool) -> Iterator[Row]:
    """Measure ours and stock in turns, at each round trip."""
    for name, args in POOLS if all_pools else POOLS[1:]:
        for round_trip_ms, tasks in ROUND_TRIPS:
            window = seconds * (4 if round_trip_ms >= FAR_MS else 1)
            mine, index = run(server, args, tasks, round_trip_ms, window, ours=True)
            theirs, unfair = run(server, args, tasks, round_trip_ms, window, ours=False)
            yield Row(
                "P1",
                f"tasks a second with {round_trip_ms} ms to Redis and back, {name}",
                ">= 1 x stock",
                f"{mine:,.0f} against {theirs:,.0f}: {mine / theirs:.2f} x",
                mine >= theirs,
            )
            yield Row(
                "P6",
                f"Jain's index of {TENANTS} tenants there",
                f">= {EQUAL}",
                f"{index:.4f} against {unfair:.4f}",
                index >= EQUAL,
            )
