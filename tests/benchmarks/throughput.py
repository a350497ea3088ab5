"""P1 and P13: no-op tasks a second on `fairredis`, tier limits on, against stock Celery.

P1 compares with stock Celery on Redis. P13 compares with stock Celery on a broker that takes no
time: it is 1 if all of a worker's time is Celery's own.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.benchmarks.harness import Row
from tests.benchmarks.idle_broker import BLOCKING, EVENTED
from tests.benchmarks.turns import Contender, Pace, paces, rates
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer

#: Pool, and the ratio that is asked for.
POOLS = (
    ("solo", ("--pool=solo",), 2.0),
    ("prefork -c 2", ("--pool=prefork", "--concurrency=2"), 1.5),
    ("prefork -c 8", ("--pool=prefork", "--concurrency=8"), 2.0),
    ("threads -c 8", ("--pool=threads", "--concurrency=8"), 3.0),
    ("gevent -c 8", ("--pool=gevent", "--concurrency=8"), 2.0),
)
#: The loop of Celery in which a pool is faster, by the broker's address, and the least ratio.
IDLE = {
    "solo": (EVENTED, 0.55),
    "prefork -c 2": (EVENTED, 0.9),
    "prefork -c 8": (EVENTED, 0.85),
    "threads -c 8": (BLOCKING, 0.65),
    "gevent -c 8": (BLOCKING, 0.85),
}
#: The largest CPU time for a task with partitions, by that without.
COST_OF_PARTITIONS = 1.4
#: What makes stock fastest: nothing is asked for while something is here.
BEST = ("--prefetch-multiplier=64",)


def rows(
    server: RedisServer, rounds: int, seconds: float, *, at_best: bool = False
) -> Iterator[Row]:
    """Measure every pool: stock and ours in turns.

    Args:
        server: To use.
        rounds: Turns of each.
        seconds: Of one turn.
        at_best: Also measure stock with more messages fetched ahead.
    """
    for name, args, asked in POOLS:
        contenders = [Contender("plain", args), Contender("fair", args, ours=True)]
        if at_best:
            contenders.append(Contender("plain", (*args, *BEST)))
        theirs, mine, *others = rates(server, contenders, rounds, seconds)
        yield Row(
            "P1",
            f"no-op tasks a second, {name}",
            f">= {asked:g} x stock",
            f"{mine:,.0f} against {theirs:,.0f}: {mine / theirs:.2f} x",
            mine / theirs >= asked,
        )
        if at_best:
            best = max(theirs, *others)
            yield Row(
                "P1",
                f"the same against stock at its best, {name}",
                "> 1 x",
                f"{mine:,.0f} against {best:,.0f}: {mine / best:.2f} x",
                mine > best,
            )


def cluster_rows(server: RedisServer, rounds: int, seconds: float) -> Iterator[Row]:
    """Measure workers on a cluster and on one server of the same kind in turns."""
    with RedisCluster(binary=server.binary) as cluster:
        for name, args, _ in POOLS[:2]:
            contenders = [
                Contender("fair", args, ours=True),
                Contender("fair", args, ours=True, node=cluster.primary()),
            ]
            one, clustered = rates(server, contenders, rounds, seconds)
            yield Row(
                "P1",
                f"no-op tasks a second on faircluster, {name}",
                ">= 0.97 x fairredis",
                f"{clustered:,.0f} against {one:,.0f}: {clustered / one:.2f} x",
                clustered / one >= 0.97,
            )


def partition_rows(server: RedisServer, rounds: int, seconds: float, pools: int) -> Iterator[Row]:
    """Measure workers with one partition, with several, and with several servers in turns."""
    with RedisServer(server.binary) as second, RedisServer(server.binary) as third:
        places = (
            (4, (), "one server", 0.7),
            (16, (), "one server", 0.7),
            # All of it shares the cores of one machine.
            (4, (server, second, third), "three servers", 0.4),
            (16, (server, second, third), "three servers", 0.4),
        )
        for name, args, _ in POOLS[:pools]:
            contenders = [Contender("fair", args, ours=True)]
            contenders += [
                Contender("fair", args, ours=True, partitions=count, servers=servers)
                for count, servers, _, _ in places
            ]
            one, *others = paces(server, contenders, rounds, seconds)
            for (count, _, where, asked), seen in zip(places, others, strict=True):
                what = f"with {count} partitions on {where}, {name}"
                yield Row(
                    "P1",
                    f"no-op tasks a second {what}",
                    f">= {asked:g} x one partition",
                    f"{seen.rate:,.0f} against {one.rate:,.0f}: {seen.rate / one.rate:.2f} x",
                    seen.rate / one.rate >= asked,
                )
                cost = _cpu(seen) / _cpu(one)
                yield Row(
                    "P1",
                    f"CPU time of worker and servers for a task {what}",
                    f"<= {COST_OF_PARTITIONS:g} x one partition",
                    f"{_causes(seen)} against {_causes(one)}: {cost:.2f} x",
                    cost <= COST_OF_PARTITIONS,
                )


def _cpu(pace: Pace) -> float:
    return pace.a_task(pace.worker_us + pace.server_us)


def _causes(pace: Pace) -> str:
    worker, server = pace.a_task(pace.worker_us), pace.a_task(pace.server_us)
    return f"{worker:.0f} us worker + {server:.0f} us in {pace.a_task(pace.calls):.2f} calls"


def idle_rows(server: RedisServer, rounds: int, seconds: float) -> Iterator[Row]:
    """Measure every pool: ours, and stock on a broker that takes no time, in turns."""
    for name, args, _ in POOLS:
        url, asked = IDLE[name]
        contenders = [Contender("plain", args, idle=url), Contender("fair", args, ours=True)]
        idle, mine = rates(server, contenders, rounds, seconds)
        yield Row(
            "P13",
            f"no-op tasks a second against a broker that takes no time, {name}",
            f">= {asked:g} x stock",
            f"{mine:,.0f} against {idle:,.0f}: {mine / idle:.2f} x",
            mine / idle >= asked,
        )
