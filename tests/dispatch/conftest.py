"""Real workers on ``fairredis://``: a shop whose broker claims fairly.

Invariant: after a test whose tasks have all ended, Redis knows none of them any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery.result import AsyncResult
from redis import Redis

from celery_fairness.store.partitions import Partitions
from tests.integration.conftest import RESULT_SECONDS, Shop, make_shop
from tests.support.redis_server import RedisServer
from tests.support.waiting import at_most, eventually

PREFIX = "{fairness}:"
#: What Redis knows of tasks that wait or run; numbers of the whole installation may stay.
OF_TASKS = (
    *(
        "tasks",
        "messages",
        "ids",
        "same_id:*",
        "running",
        "ends",
        "leases:*",
        "waiting",
        "tenant_state:*",
        "at_limit",
    ),
    "outcomes",
    *(
        "lane:*",
        "names:*",
        "ready:*",
        "active:*",
        "blocked:*",
        "scheduled:*",
        "scheduled_of:*",
        "expires:*",
    ),
    *("blocked_lanes:*", "blocked_classes:*", "groups:*", "group:*", "groups_at:*", "available:*"),
    *("waiters:*", "timers", "looks", "virtual_times", "finish_tags:*"),
)


@pytest.fixture
def make_fair_shop(make_shop: Callable[..., Shop]) -> Callable[..., Shop]:
    """A factory of shops on ``fairredis://``: ``make_fair_shop(conf=…, fairness=…)``."""

    def make(**options: Any) -> Shop:
        return make_shop("fairredis", **options)

    return make


@pytest.fixture
def fair_shop(make_fair_shop: Callable[..., Shop]) -> Shop:
    """A shop on ``fairredis://`` with the default settings of the tests."""
    return make_fair_shop()


@pytest.fixture
def memory(redis_server: RedisServer, redis_url: str) -> Iterator[Redis]:
    """What lies in Redis: a client that decodes."""
    del redis_url
    client = redis_server.client(decode_responses=True)
    yield client
    client.close()


def left(memory: Redis, prefix: str = PREFIX) -> dict[str, Any]:
    """Return the keys that speak of tasks which wait or run."""
    found = (key for name in OF_TASKS for key in memory.scan_iter(prefix + name))
    return {key: memory.type(key) for key in found}


def left_in(memory: Redis, partitions: Partitions) -> list[str]:
    """Return the same of partitions. These keep the virtual times of their queues (ADR 27)."""
    found = (key for names in partitions.names for key in left(memory, names.prefix))
    return [key for key in found if not key.endswith(":virtual_times")]


def states(memory: Redis) -> list[str]:
    """Return what Redis knows of each claimed task: ``claimed``, ``begun`` or ``acked``."""
    rows = memory.hvals(f"{PREFIX}running")
    return [row.split(" ")[2].partition("@")[0] for row in rows]


def assert_nothing_left(memory: Redis, timeout_seconds: float = at_most(5.0)) -> None:
    """Wait until Redis knows no task any more."""

    def nothing() -> None:
        assert not left(memory), left(memory)

    eventually(nothing, timeout_seconds)


def cut_all(memory: Redis) -> None:
    """Cut every connection to the broker's database."""
    for client in memory.client_list():
        if client["db"] == "0" and client["id"] != str(memory.client_id()):
            memory.client_kill_filter(_id=client["id"])


def waiting_in(memory: Redis, queue: str = "celery") -> list[str]:
    """Return the ids of the tasks that wait in a queue, in the order of each lane."""
    lanes = sorted(memory.scan_iter(f"{PREFIX}lane:* {queue}"))
    tags = [tag for lane in lanes for tag in memory.zrange(lane, 0, -1)]
    messages = memory.hmget(f"{PREFIX}messages", tags) if tags else []
    # A worker may claim and end a task between the two reads.
    return [json.loads(message)["headers"]["id"] for message in messages if message]


def send(shop: Shop, name: str, user: str | None, **kwargs: Any) -> AsyncResult[Any]:
    """Send a task of any kind by its name, charged by its header."""
    headers = {} if user is None else {"fairness": {"v": 1, "tenant": user}}
    options = kwargs.pop("options", {})
    return shop.app.send_task(name, kwargs=kwargs, headers=headers, **options)


def run_again_after_a_death(shop: Shop, users: list[str]) -> None:
    """Kill a worker that runs a late-acked task of each tenant, and expect that another runs it."""
    first = shop.worker(app="tests.dispatch.kinds", pool="threads", concurrency=len(users))
    gate = shop.gate_file()
    results = [send(shop, "kinds.late", user, gate=str(gate)) for user in users]
    eventually(lambda: len(shop.ledger("start")) == len(users), RESULT_SECONDS)
    first.kill()
    gate.touch()
    shop.worker(app="tests.dispatch.kinds", pool="threads", concurrency=len(users))
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert set(shop.runs().values()) == {2}
