"""The questions of an operator during an incident, with a hundred thousand tasks waiting.

The figures are the server's own: the time of all functions that one question calls, the time of all
commands, of which most run inside these functions, and the longest call from the slow log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from celery import Celery

from celery_fairness import Fairness
from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.control.check import KEYS
from celery_fairness.scheduler.calls import limit_text
from celery_fairness.scheduler.types import Rules, Waiting
from celery_fairness.store.library import check_library, load
from celery_fairness.transport import register
from tests.benchmarks.claims import QUEUE, UNLIMITED, Bench
from tests.benchmarks.harness import PREFIX, Row
from tests.support.redis_server import RedisServer

#: What one question may take of the server, and the longest of its calls, in ms.
ALL_MS, ONE_MS = 20.0, 5.0
#: Tenants of the explanation, how many of them have many lanes, and how many lanes these have.
WHOLE, FIRST_TENANTS, LANES = 100_000, 200, 50


def rows(server: RedisServer, tasks: int) -> Iterator[Row]:
    """P3: the cost of questions while ``tasks`` tasks of one tenant wait, or of many tenants."""
    yield from _rows(server, tasks, 1)
    yield from _rows(server, tasks, tasks // 10)
    if tasks >= WHOLE:
        yield _explain(server)


def _explain(server: RedisServer) -> Row:
    """Return the cost of an explanation among many tenants, of which the first have many lanes."""
    register()
    bench = Bench(server)
    limits = write_limits([Limit(f"api{number}", 5) for number in range(4)])
    lanes = [(tenant, name) for name in range(LANES) for tenant in range(FIRST_TENANTS)]
    lanes += [(tenant, 0) for tenant in range(FIRST_TENANTS, WHOLE)]
    waiting = [
        waiting_task(number, tenant, limits)._replace(kind=f"shop.work{name}")
        for number, (tenant, name) in enumerate(lanes)
    ]
    # The last task of the first tenants has all lanes of its own tenant before it.
    middle = f"id-{FIRST_TENANTS * LANES - 1}"
    bench.put(waiting)
    fairness = Fairness(Celery("bench", broker=f"fair{server.url}", set_as_current=False))
    try:
        for _ in range(50):
            bench.claim(8, rules=UNLIMITED)
        fairness.tasks.explain(middle)
        what = f"task explain with 4 limits, {LANES} lanes a tenant and {WHOLE:,} tenants"
        return _row(bench.client, what, lambda: fairness.tasks.explain(middle))
    finally:
        fairness.close()


def _rows(server: RedisServer, tasks: int, tenants: int) -> Iterator[Row]:
    register()
    bench = Bench(server)
    limits = write_limits([Limit("api", 5)])
    bench.put([waiting_task(number, number % tenants, limits) for number in range(tasks)])
    app = Celery("bench", broker=f"fair{server.url}", set_as_current=False)
    fairness = Fairness(app)
    keys = [name.removeprefix(PREFIX) for name in bench.client.keys(f"{PREFIX}*")][:KEYS]
    middle = f"id-{tasks // 2}"
    questions: dict[str, Callable[[], Any]] = {
        "task explain": lambda: fairness.tasks.explain(middle),
        "task cancel": lambda: fairness.tasks.cancel(middle),
        "limit show": lambda: fairness.limits.inspect("api"),
        "tenant show": lambda: fairness.tenants.inspect("acme0"),
        "status": fairness.stats.status,
        "queue show": lambda: fairness.queues.inspect(QUEUE),
        "a chunk of check": lambda: _check(bench.client, keys),
    }
    try:
        # A claim blocks the lane at its limit, as workers do.
        bench.claim(8, rules=UNLIMITED)
        fairness.limits.inspect("api")
        load(bench.client.execute_command, check_library())
        for what, ask in questions.items():
            yield _row(bench.client, f"{what}, {tasks:,} tasks of {tenants:,} tenants waiting", ask)
    finally:
        fairness.close()


def waiting_task(number: int, tenant: int, limits: str) -> Waiting:
    """Return a task of the tenant ``acme`` with a number."""
    headers = {"lang": "py", "task": "shop.work", "id": f"id-{number}"}
    message = json.dumps({"body": "x" * 100, "headers": headers, "properties": {}})
    return Waiting(
        QUEUE,
        f"tag-{number}",
        f"acme{tenant}",
        tier="free",
        message=message,
        kind="shop.work",
        limits=limits,
        task_id=f"id-{number}",
    )


def _check(client: Any, keys: Sequence[str]) -> None:
    """Make the first call of a check."""
    rules = Rules()
    settings: Sequence[str] = (
        str(rules.lease_ms),
        rules.default_tier,
        limit_text(rules.default_limit),
        "",
    )
    words = [word for key in keys for word in (key, "0")]
    client.fcall(check_library().function("check"), 1, PREFIX, *settings, *words)


def _row(client: Any, what: str, ask: Callable[[], Any]) -> Row:
    # A lower threshold would log, and so slow down, each command inside a function.
    client.config_set("slowlog-log-slower-than", 200)
    client.slowlog_reset()
    client.config_resetstat()
    ask()
    stats = client.info("commandstats")
    functions = {name: each for name, each in stats.items() if "fcall" in name}
    # Commands that functions run are in both.
    sum_ms = sum(each["usec"] for each in functions.values()) / 1000
    others = sum(each["usec"] for name, each in stats.items() if name not in functions) / 1000
    slow = (each["duration"] / 1000 for each in client.slowlog_get(100))
    longest = max(slow, default=0.2)
    return Row(
        "P3",
        f"server time of {what}",
        f"<= {ALL_MS:.0f} ms, each call <= {ONE_MS:.0f} ms",
        f"{sum_ms:.1f} ms in functions, {others:.1f} ms in all their and other commands, "
        f"the longest call {longest:.1f} ms",
        max(sum_ms, others) <= ALL_MS and longest <= ONE_MS,
    )
