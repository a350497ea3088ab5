"""Real workers of an installation with several partitions, and a key of many tenants (ADR 30)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_fairness import RateLimitPolicy
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

USERS = [f"user{number}" for number in range(40)]
KEY = "api:stripe"


def several(count: int) -> dict[str, Any]:
    return {"partitions": count, "tier_cache_seconds": 0, "tiers": "unlimited"}


def limited(limit: int) -> dict[str, Any]:
    return {"limits": [RateLimitPolicy(KEY, concurrency=limit)]}


@pytest.mark.parametrize(("count", "limit"), [(4, 1), (16, 5)])
def test_a_shared_limit_holds_over_all_partitions(
    make_fair_shop: Callable[..., Shop], count: int, limit: int
) -> None:
    shop = make_fair_shop(fairness=several(count))
    for _ in range(2):
        shop.worker(pool="threads", concurrency=8)
    gate, options = shop.gate_file(), limited(limit)
    results = [shop.send("work", user=user, gate=str(gate), options=options) for user in USERS]
    eventually(lambda: len(shop.ledger("start")) == limit, RESULT_SECONDS)
    waits = next(result.id for result in results if result.id not in shop.runs())
    text = shop.command("fairness", "task", "explain", waits).stdout
    assert f"{KEY}: concurrency, waits for a permit: the home of the key grants {limit}" in text
    gate.touch()
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in results}
    assert shop.most_at_once() == limit


def test_permits_of_killed_workers_are_used_again(make_fair_shop: Callable[..., Shop]) -> None:
    shop = make_fair_shop(fairness=several(4))
    first = shop.worker(pool="threads", concurrency=8)
    gate = shop.gate_file()
    options = limited(2)
    results = [shop.send("work", user=user, gate=str(gate), options=options) for user in USERS[:6]]
    eventually(lambda: len(shop.ledger("start")) == 2, RESULT_SECONDS)
    first.kill()
    # Their messages were acknowledged before they ran.
    lost = shop.runs()
    gate.touch()
    shop.forget_ledger()
    shop.worker(pool="threads", concurrency=8)
    for result in results:
        if result.id not in lost:
            assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.most_at_once() <= 2
