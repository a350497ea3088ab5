"""The metrics of a large installation: server time of one scrape, and of its longest call.

The figures are the smallest of several scrapes, because other processes share the machine.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery import Celery

from celery_fairness import Fairness
from celery_fairness.scheduler.types import Rules, Waiting
from celery_fairness.transport import register
from tests.benchmarks.claims import Bench
from tests.benchmarks.harness import PREFIX, Row
from tests.support.redis_server import RedisServer

#: What a scrape may take of the server, and each of its calls, in ms.
ALL_MS, ONE_MS = 20.0, 5.0
#: Scrapes of one measurement, and running tasks.
SCRAPES, RUNNING = 20, 600
#: Minutes that nobody has added to the totals, and the fields of each: as many as there may be.
MINUTES, FIELDS = 360, 1000


def rows(server: RedisServer, tasks: int) -> Iterator[Row]:
    """P3: a scrape while ``tasks`` tasks wait, with a tenant for ten and a queue for a hundred."""
    register()
    tenants, queues = tasks // 10, tasks // 100
    bench = Bench(server, "queue0")
    bench.put([_task(number, number % tenants, number % queues) for number in range(tasks)])
    for _ in range(RUNNING // 10):
        bench.claim(10, rules=Rules(default_limit=None))
    app = Celery("bench", broker=f"fair{server.url}", set_as_current=False)
    fairness = Fairness(app)
    try:
        scene = f"{tasks:,} tasks of {tenants:,} tenants in {queues:,} queues"
        yield _row(bench, fairness, scene)
        _leave_minutes(bench)
        yield _row(bench, fairness, f"the same after {MINUTES // 60} hours without an announcement")
    finally:
        fairness.close()


def _row(bench: Bench, fairness: Fairness, scene: str) -> Row:
    sums, longest = [], []
    fairness.stats.metrics()
    # A lower threshold would log, and so slow down, each command inside a function.
    bench.client.config_set("slowlog-log-slower-than", 200)
    for _ in range(SCRAPES):
        bench.client.slowlog_reset()
        bench.client.config_resetstat()
        fairness.stats.metrics()
        stats = bench.client.info("commandstats")
        sums.append(_server_ms(stats))
        slow = (each["duration"] / 1000 for each in bench.client.slowlog_get(100))
        longest.append(max(slow, default=0.2))
    return Row(
        "P3",
        f"server time of a scrape, {scene}",
        f"<= {ALL_MS:.0f} ms, each call <= {ONE_MS:.0f} ms",
        f"{min(sums):.1f} ms, the longest call {min(longest):.1f} ms",
        min(sums) <= ALL_MS and min(longest) <= ONE_MS,
    )


def _leave_minutes(bench: Bench) -> None:
    """Let claims have counted in each minute since the last announcement."""
    current = bench.client.time()[0] // 60
    bench.client.hset(f"{PREFIX}clock", "last_total", current - MINUTES)
    fields = {f"started tier{number} queue{number}": 1 for number in range(FIELDS)}
    for minute in range(current - MINUTES + 1, current):
        bench.client.hset(f"{PREFIX}stats:{minute}", mapping=fields)


def _server_ms(stats: dict[str, dict[str, float]]) -> float:
    """Return the time of functions, of transactions, and of the commands outside of both."""
    outside = ("cmdstat_fcall", "cmdstat_exec", "cmdstat_info", "cmdstat_zrangebyscore")
    return sum(each["usec"] for name, each in stats.items() if name in outside) / 1000


def _task(number: int, tenant: int, queue: int) -> Waiting:
    return Waiting(
        f"queue{queue}",
        f"tag-{number}",
        f"acme{tenant}",
        tier="free",
        message="{}",
        kind="shop.work",
        task_id=f"id-{number}",
    )
