"""A body on ``fairredis://`` reads how long its task waited, and at which limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_fairness import RateLimitPolicy
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_request_has_the_wait_and_the_limit_that_rejected_the_task(
    make_shop: Callable[..., Shop], pool: str
) -> None:
    shop = make_shop("fairredis")
    worker = shop.worker(pool=pool, concurrency=2)
    assert worker.alive
    gate, limits = shop.gate_file(), [RateLimitPolicy("api", concurrency=1)]
    first = shop.send("work", user="42", gate=str(gate), options={"limits": limits})
    shop.await_held("42", 1)
    second = shop.send("echo", user="43", options={"limits": limits})

    def is_blocked() -> None:
        exceeded = shop.fairness.events.read(types=["rate_limit.exceeded"]).events
        assert [each.data["key"] for each in exceeded] == ["api"]

    eventually(is_blocked)
    gate.touch()
    assert first.get(timeout=RESULT_SECONDS) == "done"
    claim = second.get(timeout=RESULT_SECONDS)["claim"]
    assert claim["limit"] == "api"
    assert claim["waited_ms"] > 0
