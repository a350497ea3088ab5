"""Real workers of an installation whose partitions are on three servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import OperationalError

from celery_fairness.store.partitions import Partitions
from tests.dispatch.conftest import left_in, run_again_after_a_death, send
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.integration.test_exits import POOLS_AND_LATE
from tests.support.redis_server import HOST, RedisServer
from tests.support.waiting import at_most, eventually

pytestmark = pytest.mark.one_redis("servers")

COUNT = 8
KINDS = "tests.dispatch.kinds"
PLACES = Partitions("fairness", count=COUNT)
SEVERAL: dict[str, Any] = {"partitions": COUNT, "tier_cache_seconds": 0}
USERS = [f"user{number}" for number in range(40)]


@pytest.fixture
def make_parted_shop(
    make_shop: Callable[..., Shop], several_servers: list[RedisServer]
) -> Callable[..., Shop]:
    """A factory of shops whose tenants are on three servers."""
    url = "fairservers://" + ";".join(f"{HOST}:{each.port}/0" for each in several_servers)
    return lambda **conf: make_shop(url, conf=conf, fairness=SEVERAL)


@pytest.fixture
def shop(make_parted_shop: Callable[..., Shop]) -> Shop:
    """A shop whose tenants are on three servers."""
    return make_parted_shop()


def users_of(server: int) -> list[str]:
    return [user for user in USERS if PLACES.of_tenant(user) % 3 == server]


def left(servers: list[RedisServer]) -> list[str]:
    """Return what partitions have of tasks that wait or run."""
    found = []
    for server in servers:
        with server.client(decode_responses=True) as client:
            found += left_in(client, PLACES)
    return found


@pytest.mark.parametrize("pool", ["prefork", "gevent", "solo"])
def test_limits_hold_and_every_task_runs_once(
    shop: Shop, several_servers: list[RedisServer], pool: str
) -> None:
    for _ in range(2):
        shop.worker(pool=pool, concurrency=1 if pool == "solo" else 3)
    results = [shop.send("work", user=user, seconds=0.01) for _ in range(2) for user in USERS]
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in results}
    assert {shop.most_at_once(user) for user in USERS} == {1}
    eventually(lambda: left(several_servers) == [])


def test_a_frozen_server_stops_its_own_tenants_alone(
    shop: Shop, several_servers: list[RedisServer]
) -> None:
    worker = shop.worker(pool="threads", concurrency=4)
    shop.send("work", user=users_of(1)[0]).get(timeout=RESULT_SECONDS)
    theirs, others = users_of(1), users_of(0) + users_of(2)
    first = [shop.send("work", user=user, seconds=0.01) for user in theirs]
    several_servers[1].pause()
    began = time.monotonic()
    results = [shop.send("work", user=user, seconds=0.01) for user in others]
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert time.monotonic() - began < at_most(2.0)
    worker.wait_for_log(f"127.0.0.1:{several_servers[1].port} (partitions 1, 4, 7)", at_most(6.0))
    with pytest.raises(OperationalError):
        shop.send("work", user=theirs[0])
    several_servers[1].resume()
    for result in first:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {**shop.runs(), **{each.id: 1 for each in (*first, *results)}}
    assert set(shop.runs().values()) == {1}
    eventually(lambda: left(several_servers) == [])


def test_the_tasks_of_a_killed_worker_run_on_another(
    shop: Shop, several_servers: list[RedisServer]
) -> None:
    run_again_after_a_death(shop, USERS[:12])
    eventually(lambda: left(several_servers) == [])


def test_a_home_that_ends_stops_its_own_tenants_alone(
    shop: Shop, several_servers: list[RedisServer]
) -> None:
    worker = shop.worker(pool="threads", concurrency=4)
    for place in range(3):
        shop.send("work", user=users_of(place)[0]).get(timeout=RESULT_SECONDS)
    several_servers[0].kill()
    others = users_of(1)[:4] + users_of(2)[:4]
    for user in others:
        # The results would be on that server too.
        shop.send("work", user=user, options={"ignore_result": True})
    eventually(lambda: len(shop.ledger("end")) == 3 + len(others), at_most(8.0))
    several_servers[0].restart()
    results = [shop.send("work", user=user) for user in users_of(0)[:4]]
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert set(shop.runs().values()) == {1}
    assert "Trying to re-establish" not in worker.log_text()


def retry_unsent(shop: Shop, servers: list[RedisServer], name: str, how: str, pool: str) -> None:
    """Run a body whose retry is not taken by its server, which then answers again."""
    worker = shop.worker(app=KINDS, pool=pool, concurrency=1)
    gate = shop.gate_file()
    result = send(shop, name, users_of(1)[0], gate=str(gate), how=how)
    eventually(lambda: len(shop.ledger("start")) == 1, RESULT_SECONDS)
    servers[1].pause()
    gate.touch()
    worker.wait_for_log(f"{result.id}] waits again", RESULT_SECONDS)
    servers[1].resume()
    assert result.get(timeout=RESULT_SECONDS) == "done"
    eventually(lambda: left(servers) == [])


@pytest.mark.parametrize(("pool", "late"), POOLS_AND_LATE)
def test_a_retry_that_its_server_does_not_take_is_not_lost(
    make_parted_shop: Callable[..., Shop],
    several_servers: list[RedisServer],
    pool: str,
    late: bool,
) -> None:
    shop = make_parted_shop(task_acks_late=late)
    retry_unsent(shop, several_servers, "kinds.plain", "retry", pool)
    # The attempt that sent no retry goes again, and then its retry.
    assert [each["retries"] for each in shop.ledger("start")] == [0, 0, 1]


def test_a_429_that_its_server_does_not_take_is_not_lost(
    make_parted_shop: Callable[..., Shop], several_servers: list[RedisServer]
) -> None:
    shop = make_parted_shop()
    retry_unsent(shop, several_servers, "kinds.fair", "429", "threads")
    assert [each["retries"] for each in shop.ledger("start")] == [0, 0, 0]
