"""What an operator asks during an incident: one tenant has a hundred thousand tasks waiting.

The figures are the server's own: the time of all commands that one question sends, and the longest
of them, from the slow log with a threshold of 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from celery import Celery

from celery_fairness import Fairness
from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.control.check import KEYS
from celery_fairness.scheduler.texts import limit_text
from celery_fairness.scheduler.types import Rules, Waiting
from celery_fairness.store.library import check_library, load
from celery_fairness.testing.server import RedisServer
from celery_fairness.transport import register
from tests.benchmarks.claims import QUEUE, UNLIMITED, Bench
from tests.benchmarks.harness import PREFIX, Row

TENANT = "acme"
#: What one question may take of the server, and the longest of its calls, in ms.
ALL_MS, ONE_MS = 20.0, 5.0


def rows(server: RedisServer, tasks: int) -> Iterator[Row]:
    """P3: the cost of questions while ``tasks`` tasks of one tenant wait."""
    register()
    bench = Bench(server)
    limits = write_limits([Limit("api", 5)])
    bench.put([_waiting(number, limits) for number in range(tasks)])
    app = Celery("bench", broker=f"fair{server.url}", set_as_current=False)
    fairness = Fairness(app)
    middle = f"id-{tasks // 2}"
    questions: dict[str, Callable[[], Any]] = {
        "task explain": lambda: fairness.tasks.explain(middle),
        "task cancel": lambda: fairness.tasks.cancel(middle),
        "limit show": lambda: fairness.limits.inspect("api"),
        "tenant show": lambda: fairness.tenants.inspect(TENANT),
        "a chunk of check": lambda: _check(bench.client),
    }
    try:
        # A claim blocks the lane at its limit, as workers do.
        bench.claim(8, rules=UNLIMITED)
        fairness.limits.inspect("api")
        load(bench.client.execute_command, check_library())
        for what, ask in questions.items():
            yield _row(bench.client, what, ask, tasks)
    finally:
        fairness.close()


def _waiting(number: int, limits: str) -> Waiting:
    headers = {"lang": "py", "task": "shop.work", "id": f"id-{number}"}
    message = json.dumps({"body": "x" * 100, "headers": headers, "properties": {}})
    return Waiting(
        QUEUE,
        f"tag-{number}",
        TENANT,
        tier="free",
        message=message,
        kind="shop.work",
        limits=limits,
        task_id=f"id-{number}",
    )


def _check(client: Any) -> None:
    """Make the first call of a check, on the tables that have a row for each task."""
    rules = Rules()
    keys = [name.removeprefix(PREFIX) for name in client.keys(f"{PREFIX}*")][:KEYS]
    settings: Sequence[str] = (str(rules.lease_ms), rules.default_tier, limit_text(rules), "")
    words = [word for key in keys for word in (key, "0")]
    client.fcall(check_library().function("check"), 1, PREFIX, *settings, *words)


def _row(client: Any, what: str, ask: Callable[[], Any], tasks: int) -> Row:
    client.config_set("slowlog-log-slower-than", 0)
    client.config_set("slowlog-max-len", 100_000)
    client.slowlog_reset()
    ask()
    client.config_set("slowlog-log-slower-than", -1)
    ours = ("CONFIG", "SLOWLOG")
    calls = [
        each["duration"] / 1000
        for each in client.slowlog_get(100_000)
        if not str(each["command"]).upper().startswith(ours)
    ]
    longest = max(calls, default=0.0)
    return Row(
        "P3",
        f"server time of {what}, {tasks:,} tasks of one tenant waiting",
        f"<= {ALL_MS:.0f} ms, each call <= {ONE_MS:.0f} ms",
        f"{sum(calls):.1f} ms in {len(calls)} calls, the longest {longest:.1f} ms",
        bool(calls) and sum(calls) <= ALL_MS and longest <= ONE_MS,
    )
