"""A start in a window of a rate or throttle is a body that began in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_fairness import RateLimitPolicy
from tests.integration.conftest import RESULT_SECONDS, Shop

pytestmark = pytest.mark.redis

KEY = "api.example.com"
LIMITS = [RateLimitPolicy(KEY, rate="1/PT1H"), RateLimitPolicy(KEY, throttle="1/PT1H")]


@pytest.mark.parametrize("policy", LIMITS, ids=["rate", "throttle"])
@pytest.mark.parametrize("broker", ["fairredis", "redis"])
def test_revoked_tasks_use_up_no_start(
    make_shop: Callable[..., Shop], broker: str, policy: RateLimitPolicy
) -> None:
    shop = make_shop(broker)
    shop.worker(pool="threads", concurrency=2)
    revoked = [f"revoked-{number}" for number in range(4)]
    shop.revoke(*revoked)
    for name in revoked:
        shop.send("work", user="42", options={"limits": [policy], "task_id": name})
    last = shop.send("work", user="43", options={"limits": [policy]})
    assert last.get(timeout=RESULT_SECONDS) == "done"
    assert [entry["user"] for entry in shop.ledger("start")] == ["43"]
    found = shop.fairness.limits.inspect(KEY)
    if found.rate is not None:
        assert found.rate.current_count == 1
