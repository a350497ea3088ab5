"""What the benchmarks of the dispatch path share: a row of the table, workers, and backlogs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from celery_fairness.store.partitions import Partitions
from tests.support.redis_server import RedisServer

QUEUE = "celery"
PREFIX = "{fairness}:"


@dataclass(frozen=True)
class Row:
    """One line of the table: what was asked for, what was seen, and whether it holds."""

    number: str
    what: str
    asked: str
    seen: str
    holds: bool


def url_of(server: RedisServer, *, ours: bool) -> str:
    """Return the broker's address for our transport or the stock one."""
    return f"fair{server.url}" if ours else server.url


def backlog(client: Any, *, ours: bool, partitions: int = 1) -> int:
    """Return how many tasks wait."""
    if ours:
        names = Partitions("fairness", count=partitions).names
        return sum(int(client.hget(each.waiting, QUEUE) or 0) for each in names)
    return int(client.llen(QUEUE))


@contextlib.contextmanager
def worker(
    url: str, args: tuple[str, ...], *, app: str = "tests.benchmarks.app", **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker of the benchmarks' app, or of another one; it is killed at the end."""
    quiet = ("--loglevel=ERROR", "--without-mingle", "--without-gossip")
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", app, "worker", *quiet, *args],
        env={**os.environ, "BENCH_BROKER_URL": url, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def publish(url: str, task: str, tasks: int, tenants: int, **variables: str) -> None:
    """Publish no-op tasks of ``tenants`` tenants in turn."""
    code = (
        "from tests.benchmarks import app as b\n"
        "with b.app.producer_pool.acquire() as producer:\n"
        f"    for n in range({tasks}):\n"
        f"        b.{task}.apply_async((str(n % {tenants}),), producer=producer)\n"
    )
    env = {**os.environ, "BENCH_BROKER_URL": url, **variables}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


def wait_until(done: Callable[[], bool], seconds: float = 120.0, *, every: float = 0.005) -> float:
    """Return the time at which ``done`` was true first (monotonic seconds)."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        if done():
            return time.monotonic()
        time.sleep(every)
    raise TimeoutError(f"not done after {seconds:.0f} s")


def percentile(values: list[float], percent: float) -> float:
    """Return a percentile of what was measured."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
