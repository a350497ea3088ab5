"""P1: no-op tasks a second on `fairredis`, tier limits on, against stock Celery."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import redis

from tests.benchmarks.harness import Row, backlog, publish, url_of, wait_until, worker
from tests.support.redis_server import RedisServer

TENANTS = 200
#: Pool, and the ratio that is asked for.
POOLS = (
    ("solo", ("--pool=solo",), 2.0),
    ("prefork -c 2", ("--pool=prefork", "--concurrency=2"), 1.5),
    ("prefork -c 8", ("--pool=prefork", "--concurrency=8"), 2.0),
    ("threads -c 8", ("--pool=threads", "--concurrency=8"), 3.0),
    ("gevent -c 8", ("--pool=gevent", "--concurrency=8"), 2.0),
)
#: What makes stock fastest: nothing is asked for while something is here.
BEST = ("--prefetch-multiplier=64",)


def rate(
    server: RedisServer, args: tuple[str, ...], tasks: int, *, ours: bool, task: str = ""
) -> float:
    """Return tasks a second between the first and the last tenth of ``tasks``.

    Args:
        server: To use.
        args: Of the worker.
        tasks: How many.
        ours: On our transport, else on the stock one.
        task: Which; by default the one with limits on ours and the one without on stock.
    """
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        url = url_of(server, ours=ours)
        publish(url, task or ("fair" if ours else "plain"), tasks, TENANTS)
        with worker(url, args):
            first = wait_until(lambda: backlog(client, ours=ours) <= tasks * 0.9)
            last = wait_until(lambda: backlog(client, ours=ours) <= tasks * 0.1)
    return tasks * 0.8 / (last - first)


def rows(server: RedisServer, tasks: int, turns: int, *, at_best: bool = False) -> Iterator[Row]:
    """Measure every pool: stock and ours in turns; ours with twice the tasks, for as long.

    What is told is the median of all turns: a shared machine is two or three times slower for
    seconds at a time.

    Args:
        server: To use.
        tasks: Of stock, in one turn.
        turns: Of each.
        at_best: Also tell how stock does with more messages fetched ahead.
    """
    for name, args, asked in POOLS:
        stock, ours = [], []
        for turn in range(turns):
            for is_ours in (False, True) if turn % 2 == 0 else (True, False):
                if is_ours:
                    ours.append(rate(server, args, 2 * tasks, ours=True))
                else:
                    stock.append(rate(server, args, tasks, ours=False))
        mine, theirs = statistics.median(ours), statistics.median(stock)
        ratio = mine / theirs
        yield Row(
            "P1",
            f"no-op tasks a second, {name}",
            f">= {asked:g} x stock",
            f"{mine:,.0f} against {theirs:,.0f}: {ratio:.2f} x",
            ratio >= asked,
        )
        if at_best:
            best = max(theirs, rate(server, (*args, *BEST), tasks, ours=False))
            yield Row(
                "P1",
                f"the same against stock at its best, {name}",
                "> 1 x",
                f"{mine:,.0f} against {best:,.0f}: {mine / best:.2f} x",
                mine > best,
            )
