"""Redis is away at the start, is full, or deletes keys to make room, under real workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kombu.exceptions import OperationalError
from redis import Redis

from celery_fairness.store.library import library
from tests.behaviour.conftest import PATHS
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.redis


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server whose memory a test may bound."""
    folder = tmp_path / "server"
    folder.mkdir()
    with RedisServer(directory=folder) as server:
        yield server


@pytest.fixture
def own_client(own_server: RedisServer) -> Iterator[Redis]:
    with own_server.client(decode_responses=True) as client:
        yield client


def shop_on(server: RedisServer, make_shop: Callable[..., Shop], path: str) -> Shop:
    fairness = {"lease_seconds": 1}
    if path == "fairredis":
        url = f"fair{server.url}"
        return make_shop(fairness=fairness, variables={"CELERY_BROKER_URL": url})
    return make_shop(fairness={**fairness, "redis_url": server.url, "tier_on_limit": "wait"})


@pytest.mark.parametrize("path", PATHS)
def test_a_worker_that_starts_before_redis_waits_for_it(
    own_server: RedisServer, make_shop: Callable[..., Shop], path: str
) -> None:
    shop = shop_on(own_server, make_shop, path)
    own_server.kill()
    worker = shop.worker(pool="threads", concurrency=2, wait=False)
    # Above the limit, bodies of 0.3 s would overlap.
    if path == "fairredis":
        worker.wait_for_log("Cannot connect to")
        with pytest.raises(OperationalError):
            shop.send("work", user="42")
        own_server.restart()
        results = [shop.send("work", user="42", seconds=0.3) for _ in range(3)]
    else:
        # The broker is there, so tasks come, and none starts.
        results = [shop.send("work", user="42", seconds=0.3) for _ in range(3)]
        worker.wait_for_log("the limiter's Redis does not answer")
        assert shop.runs() == {}
        own_server.restart()
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in results}
    assert shop.most_at_once("42") == 1
    assert "Traceback" not in worker.log_text()


def test_a_full_broker_rejects_new_tasks_and_runs_those_that_it_has(
    own_server: RedisServer, own_client: Redis, make_shop: Callable[..., Shop]
) -> None:
    shop = shop_on(own_server, make_shop, "fairredis")
    worker = shop.worker(pool="threads", concurrency=2)
    gate = shop.gate_file()
    running = shop.send("work", user="42", gate=str(gate))
    behind = [shop.send("work", user="42") for _ in range(3)]
    eventually(lambda: shop.state("42").waiting_count == 3)
    own_client.config_set("maxmemory", 1)
    with pytest.raises(OperationalError, match="maxmemory"):
        shop.send("work", user="42")
    found = {each.check: each for each in shop.fairness.stats.doctor().symptoms}
    assert found["memory"].level == "problem"
    status = shop.command("fairness", "status")
    assert status.returncode == 0, status.stderr
    worker.wait_for_log(f"{own_server.url} is full: new tasks are rejected")
    # Leases are renewed and ended, and what waits starts.
    gate.touch()
    for result in (running, *behind):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    own_client.config_set("maxmemory", 0)
    assert shop.send("work", user="42").get(timeout=RESULT_SECONDS) == "done"
    assert set(shop.runs().values()) == {1}
    assert len(shop.runs()) == 5
    assert shop.most_at_once("42") == 1
    assert "Traceback" not in worker.log_text()


@pytest.mark.parametrize("path", PATHS)
def test_a_redis_that_deleted_its_keys_is_found_and_works_again(
    own_server: RedisServer, own_client: Redis, make_shop: Callable[..., Shop], path: str
) -> None:
    shop = shop_on(own_server, make_shop, path)
    worker = shop.worker(pool="threads", concurrency=4)
    gate = shop.gate_file()
    running = shop.send("work", user="42", gate=str(gate))
    for user in ("42", "42", "43"):
        shop.send("work", user=user, gate=str(gate))
    eventually(lambda: shop.state("42").waiting_count == 2)
    own_client.config_set("maxmemory-policy", "allkeys-random")
    before = own_client.info("memory")["used_memory"]
    own_client.config_set("maxmemory", before + 1_000_000)
    for number in range(400):
        own_client.set(f"somebody's {number}", "x" * 10_000)
    assert own_client.info("stats")["evicted_keys"] > 100
    found = {each.check: each for each in shop.fairness.stats.doctor().symptoms}
    assert found["eviction"].level == "problem"
    gate.touch()
    assert running.get(timeout=RESULT_SECONDS) == "done"
    # These are the steps of the page for operators.
    own_client.config_set("maxmemory", 0)
    own_client.config_set("maxmemory-policy", "noeviction")

    def repaired() -> None:
        # A person decides about the others.
        assert not [each for each in shop.fairness.check(repair=True).findings if each.repaired]

    eventually(repaired, RESULT_SECONDS)
    for user in ("42", "43", "44"):
        assert shop.send("work", user=user).get(timeout=RESULT_SECONDS) == "done"
    assert library().name in {row[1] for row in own_client.execute_command("FUNCTION LIST")}
    assert "Traceback" not in worker.log_text()
