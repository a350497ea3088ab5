"""Redis loses its memory, or is restarted and keeps it, under running workers of both paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.behaviour.conftest import PATHS
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.nodes import WorkerNode
from tests.support.redis_server import RedisServer
from tests.support.waiting import at_most, eventually

#: What each path can lose.
LOSSES = {
    "fairredis": "the waiting tasks, the delayed tasks and the dead letters that it held are gone",
    "redis": "the parked tasks, pauses, overrides and counts that it held are gone",
}


@pytest.fixture
def kept_server() -> Iterator[RedisServer]:
    """A Redis that writes each change to a file before it answers."""
    with RedisServer(args=("--appendonly", "yes", "--appendfsync", "always")) as server:
        yield server


def workers_of(shop: Shop, number: int) -> list[WorkerNode]:
    """Start workers and wait until Redis lists them: then each knows the memory."""
    workers = [shop.worker(pool="threads", concurrency=1) for _ in range(number)]
    eventually(lambda: len(shop.fairness.stats.status().workers) == number, RESULT_SECONDS)
    return workers


def losses(shop: Shop) -> list[str]:
    events = shop.fairness.events.read(types=["fairness.memory_lost"]).events
    return [each.data["since"] for each in events]


@pytest.mark.parametrize("path", PATHS)
def test_each_worker_reports_a_lost_memory_and_the_installation_keeps_one_event(
    make_shop: Callable[..., Shop], redis_server: RedisServer, path: str
) -> None:
    shop = make_shop(path, fairness={"lease_seconds": 1})
    busy, idle = workers_of(shop, 2)
    gate = shop.gate_file()
    running = shop.send("work", user="42", gate=str(gate))
    shop.await_held("42", 1)
    with redis_server.client() as client:
        client.flushall()
    for worker in (busy, idle):
        worker.wait_for_log(LOSSES[path])
        (line,) = (each for each in worker.log_text().splitlines() if LOSSES[path] in each)
        assert "ERROR" in line
    assert shop.fairness.stats.counters()["memory_lost"] == 1
    (since,) = losses(shop)
    shop.await_held("42", 1)
    gate.touch()
    assert running.get(timeout=RESULT_SECONDS) == "done"
    # The event is of the new memory: one that is lost too has its own.
    with redis_server.client() as client:
        client.flushall()
    eventually(lambda: len(losses(shop)) == 1, at_most(10.0))
    assert losses(shop) > [since]


@pytest.mark.parametrize("path", PATHS)
def test_a_restart_that_kept_the_memory_is_not_reported_as_a_loss(
    make_shop: Callable[..., Shop], kept_server: RedisServer, path: str
) -> None:
    fair = "fair" if path == "fairredis" else ""
    urls = {
        "CELERY_BROKER_URL": fair + kept_server.url,
        "CELERY_RESULT_BACKEND": kept_server.url,
    }
    shop = make_shop(fairness={"lease_seconds": 1}, variables=urls)
    (worker,) = workers_of(shop, 1)
    shop.fairness.limits.pause("api")
    assert shop.send("work", user="42").get(timeout=RESULT_SECONDS) == "done"
    kept_server.restart()
    # What comes behind the restart has been through a renewal: workers claim nothing before it.
    assert shop.send("work", user="42").get(timeout=RESULT_SECONDS) == "done"
    eventually(lambda: len(shop.fairness.stats.status().workers) == 1, RESULT_SECONDS)
    listed = shop.fairness.limits.inspect("api").holds
    assert listed is not None
    assert listed.paused
    assert "lost its memory" not in worker.log_text()
    assert losses(shop) == []
    assert "memory_lost" not in shop.fairness.stats.counters()
