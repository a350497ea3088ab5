"""A gate whose Redis is at its memory limit keeps its tasks on the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from celery_fairness import RateLimitPolicy
from tests.integration.conftest import RABBITMQ, RESULT_SECONDS, Shop
from tests.integration.test_gate_limits import KEY, key_taken, send
from tests.support.parts import parts_of
from tests.support.redis_server import RedisServer

ONE = RateLimitPolicy(KEY, concurrency=1)


@pytest.fixture
def memory_limit(redis_server: RedisServer) -> Iterator[Callable[[int], None]]:
    """Set the server's memory limit in bytes, for the time of a test."""
    with redis_server.client(decode_responses=True) as client:
        kept: Mapping[str, str] = client.config_get("maxmemory")

        def set_limit(size: int) -> None:
            client.config_set("maxmemory", size)

        yield set_limit
        set_limit(int(kept["maxmemory"]))


@pytest.mark.parametrize("broker", RABBITMQ[:1])
def test_a_task_that_cannot_be_parked_goes_back_to_the_broker_and_runs_later(
    make_shop: Callable[..., Shop], memory_limit: Callable[[int], None], broker: str
) -> None:
    fairness = {"snooze_seconds": 1, "snooze_jitter_seconds": 0.1, "lease_seconds": 60}
    shop = make_shop(broker, fairness=fairness)
    worker = shop.worker(pool="threads", concurrency=2)
    with key_taken(shop):
        memory_limit(1)
        result = send(shop, "42", ONE)
        worker.wait_for_log("maxmemory")
        worker.wait_for_log("waits 1.")
        assert parts_of(shop.fairness).limiter.look(KEY)["waiting_count"] == 0
        memory_limit(0)
    assert result.get(timeout=RESULT_SECONDS) == "done"
    assert set(shop.runs().values()) == {1}
