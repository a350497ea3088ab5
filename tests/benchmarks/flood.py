"""What a flood costs on the gate path: ``python -m tests.benchmarks.flood 5000``.

One free tenant sends many tasks of 0.2 s at once to a worker of four; two others, one free in the
same queue and one pro in the priority queue, send a task of 10 ms every half second.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from tests.support.redis_server import RedisServer

SECONDS = 45.0
EVERY_SECONDS = 0.5


def main(tasks: int) -> None:
    """Run the flood and print what was seen."""
    with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger")
        os.environ.update(BENCH_BROKER_URL=server.url, BENCH_LEDGER=str(ledger))
        from tests.benchmarks.app import app, fairness, job

        with app.producer_pool.acquire() as producer:
            for _ in range(tasks):
                job.apply_async((time.time(), 0.2), {"user": "flood"}, producer=producer)
        argv = [sys.executable, "-m", "celery", "-A", "tests.benchmarks.app", "worker"]
        worker = subprocess.Popen(
            [*argv, "--concurrency=4", "--loglevel=ERROR", "--without-mingle", "--without-gossip"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            first_pass = watch(server, job)
            memory = psutil.Process(worker.pid).memory_info().rss >> 20
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        print(f"{tasks} tasks: each looked at once after {first_pass:.1f} s; ", end="")
        print(f"main process {memory} MiB; refusals {fairness.stats.rejections().tiers}")
        waits: dict[str, list[float]] = {}
        for line in ledger.read_text().splitlines():
            entry = json.loads(line)
            waits.setdefault(entry["user"], []).append(entry["waited"])
        for user, name in (("quiet", "same queue"), ("pro-quiet", "priority queue")):
            seen = waits[user]
            p95 = statistics.quantiles(seen, n=20)[18]
            print(
                f"  {name}: {len(seen)} tasks, waited p50 {statistics.median(seen):.3f} s, "
                f"p95 {p95:.3f} s, most {max(seen):.3f} s"
            )


def watch(server: RedisServer, job: Any) -> float:
    """Send the quiet tenants' tasks; returns when the flood's queue was empty first, in seconds."""
    with server.client() as client:
        while not client.exists("{fairness}:clock"):
            time.sleep(0.02)
        begun, first_pass = time.monotonic(), float("nan")
        while (passed := time.monotonic() - begun) < SECONDS:
            for user in ("quiet", "pro-quiet"):
                job.delay(time.time(), 0.01, user=user)
            time.sleep(EVERY_SECONDS)
            if first_pass != first_pass and client.llen("flood_default") == 0:
                first_pass = passed
    return first_pass


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000)
