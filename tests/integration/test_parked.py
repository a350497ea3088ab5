"""Tasks behind the gate whose limits say ``wait``: parked in Redis, promoted when a slot frees."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_fairness import RateLimitPolicy
from celery_fairness.limiter.redis import RedisLimiter
from tests.integration.conftest import BROKERS, RESULT_SECONDS, Shop
from tests.integration.test_gate_limits import (
    KEY,
    LONG,
    assert_all_free,
    key_taken,
    send,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.parametrize("broker", BROKERS)

ONE = RateLimitPolicy(KEY, concurrency=1)


def await_parked(shop: Shop, count: int, key: str = KEY) -> None:
    def parked() -> None:
        assert shop.fairness.limiter.parked(key) == count

    eventually(parked, RESULT_SECONDS)


def assert_nothing_parked(shop: Shop) -> None:
    def nothing() -> None:
        limiter = shop.fairness.limiter
        assert isinstance(limiter, RedisLimiter)
        read = limiter.connection.read
        assert read("KEYS", "*gate_*") == []
        assert read("HGET", f"{limiter.prefix}clock", "parked") is None

    eventually(nothing, RESULT_SECONDS)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_parked_task_starts_when_the_slot_is_free_and_not_a_snooze_later(
    make_shop: Callable[..., Shop], broker: str, pool: str
) -> None:
    shop = make_shop(broker, fairness=LONG)
    shop.worker(pool=pool, concurrency=1 if pool == "solo" else 2)
    with key_taken(shop):
        results = []
        for n in range(3):
            results.append(send(shop, f"u{n}", ONE))
            await_parked(shop, n + 1)
        assert {result.state for result in results} == {"PENDING"}
        assert shop.ledger("start") == []
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert [entry["user"] for entry in shop.ledger("start")] == ["u0", "u1", "u2"]
    assert set(shop.runs().values()) == {1}
    assert {entry["retries"] for entry in shop.ledger("start")} == {0}
    assert_all_free(shop, KEY, "tenant:u0")
    assert_nothing_parked(shop)
