"""P14: the CPU time of the Redis process for a task, with its network, against stock Celery's.

It is more than the server time of P3, which leaves out reading calls and sending answers. The ratio
of one pair of runs varies. The row has the median of several pairs, with the least and the largest.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.harness import Row, backlog, publish, url_of, wait_until, worker
from tests.support.redis_server import RedisServer

POOLS = (
    ("solo", ("--pool=solo",)),
    ("prefork -c 8", ("--pool=prefork", "--concurrency=8")),
)
TENANTS = 200
AT_MOST = 1.2
#: A question for the backlog costs the server time too.
EVERY_SECONDS = 0.05


@dataclass(frozen=True)
class Cost:
    """Microseconds of the Redis process for a task: its put, and its claim and settle."""

    put: float
    rest: float

    @property
    def all(self) -> float:
        """Return both."""
        return self.put + self.rest


def cpu_us(client: Any) -> float:
    """Return the CPU time that the Redis process has used."""
    used = client.info("cpu")
    return 1e6 * float(used["used_cpu_user"] + used["used_cpu_sys"])


def cost(server: RedisServer, args: tuple[str, ...], tasks: int, *, ours: bool) -> Cost:
    """Publish without a worker, then run one. Its first and its last tenth do not count."""
    url, task = url_of(server, ours=ours), "fair" if ours else "plain"
    with server.client() as client:

        def fewer_wait(than: int) -> bool:
            return backlog(client, ours=ours) <= than

        client.flushall()
        # The first one loads the library.
        publish(url, task, 1, TENANTS)
        before = cpu_us(client)
        publish(url, task, tasks, TENANTS)
        put = (cpu_us(client) - before) / tasks
        with worker(url, args):
            wait_until(lambda: fewer_wait(tasks - tasks // 10), every=EVERY_SECONDS)
            before, waiting = cpu_us(client), backlog(client, ours=ours)
            wait_until(lambda: fewer_wait(tasks // 10), every=EVERY_SECONDS)
            used, waiting = cpu_us(client) - before, waiting - backlog(client, ours=ours)
    return Cost(put, used / waiting)


def rows(server: RedisServer, pairs: int, tasks: int, *, all_pools: bool) -> Iterator[Row]:
    """Measure stock and ours in turns, and every second pair backwards."""
    for name, args in POOLS if all_pools else POOLS[1:]:
        stock, ours = [], []
        for pair in range(pairs):
            for is_ours in (False, True) if pair % 2 == 0 else (True, False):
                (ours if is_ours else stock).append(cost(server, args, tasks, ours=is_ours))
        ratios = [mine.all / theirs.all for mine, theirs in zip(ours, stock, strict=True)]
        ratio = statistics.median(ratios)
        yield Row(
            "P14",
            f"CPU time of the Redis process for a task, median of {pairs} pairs, {name}",
            f"<= {AT_MOST:g} x stock",
            f"{_seen(ours)} against {_seen(stock)}: {ratio:.2f} x "
            f"(pairs {min(ratios):.2f} to {max(ratios):.2f})",
            ratio <= AT_MOST,
        )


def _seen(costs: list[Cost]) -> str:
    put = statistics.median(each.put for each in costs)
    rest = statistics.median(each.rest for each in costs)
    return f"{put:.0f} us to put + {rest:.0f} us to run"
