"""The questions of an operator during an incident, with a hundred thousand tasks waiting.

The figures are the server's own, each the shortest of three runs:

- the time of all functions that one question calls
- the time of all commands, most of which run inside these functions
- the longest call, from the slow log
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from celery import Celery

from celery_fairness import Fairness
from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.numbers import write_numbers
from celery_fairness.control.health.table_check import KEYS
from celery_fairness.control.installation.reader import batches
from celery_fairness.control.task.task_list import LONGEST_LIST
from celery_fairness.scheduler.types import Rules, Waiting
from celery_fairness.store.library import check_library, load
from celery_fairness.transport import register
from tests.benchmarks.claims import QUEUE, UNLIMITED, Bench
from tests.benchmarks.harness import PREFIX, Row
from tests.support.redis_server import RedisServer

#: The most server time of one question, and of its longest call or of a page of tasks, in ms.
ALL_MS, ONE_MS = 20.0, 5.0
#: Runs of each question. Others may use the machine during one of them.
RUNS = 3
#: The tasks of the small installation with which commands are compared.
FEW = 10
#: Tenants of the explanation, how many of them have many lanes, and how many lanes these have.
WHOLE, FIRST_TENANTS, LANES = 100_000, 200, 50


def rows(server: RedisServer, tasks: int) -> Iterator[Row]:
    """P3: the cost of questions while ``tasks`` tasks of one tenant wait, or of many tenants."""
    yield from _rows(server, tasks, 1)
    yield from _rows(server, tasks, tasks // 10)
    yield _growth(server, tasks)
    if tasks >= WHOLE:
        yield _explain(server)


def _explain(server: RedisServer) -> Row:
    """Return the cost of an explanation among many tenants, of which the first have many lanes."""
    register()
    bench = Bench(server)
    limits = write_limits([Limit(f"api{number}", concurrency=5) for number in range(4)])
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
    bench, fairness = _installation(server, tasks, tenants)
    middle = tasks // 2
    waiting = iter(range(middle, tasks))
    questions: dict[str, Callable[[], Any]] = {
        "task explain": lambda: fairness.tasks.explain(f"id-{middle}"),
        "task cancel": lambda: fairness.tasks.cancel(f"id-{next(waiting)}"),
        "limit show": lambda: fairness.limits.inspect("api"),
        "tenant show": lambda: fairness.tenants.inspect("acme0"),
        "status": fairness.stats.status,
        "queue show": lambda: fairness.queues.inspect(QUEUE),
    }
    lists: dict[str, Callable[[], Any]] = {
        "task list": fairness.tasks.list,
        "task list --tenant": lambda: fairness.tasks.list("acme0", limit=LONGEST_LIST),
        "task list --queue": lambda: fairness.tasks.list(queue=QUEUE, limit=LONGEST_LIST),
        "task list --key": lambda: fairness.tasks.list(key="api", limit=LONGEST_LIST),
        "task list --state delayed": lambda: fairness.tasks.list(state="delayed"),
    }
    waits = f"{tasks:,} tasks of {tenants:,} tenants waiting"
    try:
        fairness.limits.inspect("api")
        for what, ask in questions.items():
            yield _row(bench.client, f"{what}, {waits}", ask)
        # No task has this key, so a page looks at as many tasks as it may.
        rare = partial(fairness.tasks.list, key="other")
        yield _row(bench.client, f"a page of task list for a key without tasks, {waits}", rare)
        for what, ask in lists.items():
            yield _row(bench.client, f"a page of {what}, {waits}", ask, all_ms=ONE_MS)
        chunk = _largest_chunk(bench.client)
        what = f"the chunk of check with the most commands, {waits}"
        yield _row(bench.client, what, lambda: _check(bench.client, chunk))
    finally:
        fairness.close()


def _installation(server: RedisServer, tasks: int, tenants: int) -> tuple[Bench, Fairness]:
    """Return an installation in which tasks wait for a limit, as a claim has found."""
    register()
    bench = Bench(server)
    limits = write_limits([Limit("api", concurrency=5)])
    bench.put([waiting_task(number, number % tenants, limits) for number in range(tasks)])
    # A claim blocks the lane at its limit, as workers do.
    bench.claim(8, rules=UNLIMITED)
    app = Celery("bench", broker=f"fair{server.url}", set_as_current=False)
    return bench, Fairness(app)


def _growth(server: RedisServer, tasks: int) -> Row:
    """Return the commands of questions about one task, with few and with many tasks waiting."""
    seen = []
    for waiting in (FEW, tasks):
        bench, fairness = _installation(server, waiting, 1)
        questions: dict[str, Callable[[], Any]] = {
            "task explain": partial(fairness.tasks.explain, f"id-{waiting - 1}"),
            "task cancel": partial(fairness.tasks.cancel, f"id-{waiting - 1}"),
            "a put of a known tag": partial(bench.put, [waiting_task(waiting - 2, 0, "")]),
        }
        try:
            fairness.limits.inspect("api")
            seen.append({what: _commands(bench.client, ask) for what, ask in questions.items()})
        finally:
            fairness.close()
    few, many = seen
    return Row(
        "P3",
        f"commands with {FEW} and with {tasks:,} tasks waiting",
        "the same",
        ", ".join(f"{what} {few[what]} and {many[what]}" for what in few),
        few == many,
    )


def _commands(client: Any, ask: Callable[[], Any]) -> int:
    """Return how many commands a question runs, inside functions and outside."""
    return _commands_and_answer(client, ask)[0]


def _commands_and_answer(client: Any, ask: Callable[[], Any]) -> tuple[int, Any]:
    client.config_resetstat()
    answer = ask()
    others = {"cmdstat_config|resetstat", "cmdstat_info", "cmdstat_ping", "cmdstat_hello"}
    stats = client.info("commandstats")
    return sum(each["calls"] for name, each in stats.items() if name not in others), answer


def _largest_chunk(client: Any) -> list[str]:
    """Walk over a whole check, and return the arguments of the call with the most commands."""
    load(client.execute_command, check_library())
    names = [name.removeprefix(PREFIX) for name in client.keys(f"{PREFIX}*")]
    most, largest = 0, list[str]()
    for batch in batches(names, KEYS):
        rest = [word for key in batch for word in (key, "0")]
        while rest:
            words = rest
            commands, (rest, _) = _commands_and_answer(client, partial(_check, client, words))
            if commands > most:
                most, largest = commands, words
    return largest


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


def _check(client: Any, words: Sequence[str]) -> Any:
    """Make one call of a check; ``words`` are keys with their cursors."""
    rules = Rules()
    settings: Sequence[str] = (
        str(rules.lease_ms),
        rules.default_tier,
        write_numbers({"concurrency": rules.default_limit}),
        "",
    )
    return client.fcall(check_library().function("check"), 1, PREFIX, *settings, *words)


def _row(client: Any, what: str, ask: Callable[[], Any], all_ms: float = ALL_MS) -> Row:
    runs = [_cost(client, ask) for _ in range(RUNS)]
    sum_ms, others, longest = (min(each) for each in zip(*runs, strict=True))
    return Row(
        "P3",
        f"server time of {what}",
        f"<= {all_ms:.0f} ms, each call <= {ONE_MS:.0f} ms",
        f"{sum_ms:.1f} ms in functions, {others:.1f} ms in all their and other commands, "
        f"the longest call {longest:.1f} ms",
        max(sum_ms, others) <= all_ms and longest <= ONE_MS,
    )


def _cost(client: Any, ask: Callable[[], Any]) -> tuple[float, float, float]:
    """Return the ms of a question in functions, those in all commands, and its longest call."""
    # A lower threshold would log, and so slow down, each command inside a function.
    client.config_set("slowlog-log-slower-than", 200)
    client.slowlog_reset()
    client.config_resetstat()
    ask()
    stats = client.info("commandstats")
    functions = {name: each for name, each in stats.items() if "fcall" in name}
    # Commands that functions run are in both.
    in_functions = sum(each["usec"] for each in functions.values()) / 1000
    others = sum(each["usec"] for name, each in stats.items() if name not in functions) / 1000
    longest = max((each["duration"] / 1000 for each in client.slowlog_get(100)), default=0.2)
    return in_functions, others, longest
