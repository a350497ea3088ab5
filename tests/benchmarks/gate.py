"""P12: no-op tasks a second through FairTask, against the same worker without it."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import redis

from celery_fairness.testing.server import RedisServer

TENANTS = 200


@dataclass(frozen=True)
class Pool:
    """One pool that is measured: its worker arguments and the ratio that is asked for."""

    name: str
    args: tuple[str, ...]
    at_least: float


POOLS = (
    Pool("prefork -c 2", ("--pool=prefork", "--concurrency=2"), 0.85),
    Pool("solo", ("--pool=solo",), 0.7),
)


def tasks_per_second(server: RedisServer, task: str, pool: Pool, tasks: int) -> float:
    """Return the rate between the first and the last tenth of ``tasks`` tasks."""
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        _publish(server, task, tasks)
        worker = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "tests.benchmarks.app",
                "worker",
                "--loglevel=ERROR",
                "--without-mingle",
                "--without-gossip",
                *pool.args,
            ],
            env={**os.environ, "BENCH_BROKER_URL": server.url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            first = _time_below(client, int(tasks * 0.9))
            last = _time_below(client, int(tasks * 0.1))
        finally:
            # A warm shutdown under load makes billiard wait for up to 30 s.
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
    return tasks * 0.8 / (last - first)


def _publish(server: RedisServer, task: str, tasks: int) -> None:
    code = (
        "from tests.benchmarks import app as b\n"
        "with b.app.producer_pool.acquire() as producer:\n"
        f"    for n in range({tasks}):\n"
        f"        b.{task}.apply_async((str(n % {TENANTS}),), producer=producer)\n"
    )
    env = {**os.environ, "BENCH_BROKER_URL": server.url}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


def _time_below(client: redis.Redis, length: int) -> float:
    ends_at = time.monotonic() + 120
    while time.monotonic() < ends_at:
        if int(client.llen("celery")) <= length:  # type: ignore[arg-type]  # redis-py: or awaitable
            return time.monotonic()
        time.sleep(0.005)
    raise TimeoutError(f"the worker left more than {length} tasks after 120 s")


def measure(server: RedisServer, pool: Pool, tasks: int) -> tuple[float, float]:
    """Return the median rates of the plain and the fair task: plain, fair, fair, plain, twice."""
    rates: dict[str, list[float]] = {"plain": [], "fair": []}
    for task in ("plain", "fair", "fair", "plain") * 2:
        rates[task].append(tasks_per_second(server, task, pool, tasks))
    return statistics.median(rates["plain"]), statistics.median(rates["fair"])
