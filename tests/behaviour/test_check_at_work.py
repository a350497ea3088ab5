"""A check of an installation whose workers claim, park, promote and settle meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_fairness import RateLimitPolicy
from tests.integration.conftest import RESULT_SECONDS, Shop

pytestmark = pytest.mark.redis

LIMITS = (
    [],
    [RateLimitPolicy("api", concurrency=2)],
    [RateLimitPolicy("api", concurrency=2), RateLimitPolicy("mail", rate="30/PT1S")],
)


@pytest.mark.parametrize("broker", ["fairredis", "redis"])
def test_nothing_is_found_while_workers_work(make_shop: Callable[..., Shop], broker: str) -> None:
    shop = make_shop(broker, fairness={"snooze_seconds": 0.1, "snooze_jitter_seconds": 0.1})
    for _ in range(2):
        shop.worker(pool="threads", concurrency=4)
    results = [
        shop.send("work", user=f"u{n % 7}", seconds=0.01, options={"limits": LIMITS[n % 3]})
        for n in range(120)
    ]
    found = []
    for result in results[::6]:
        found.append(shop.fairness.check(repair=len(found) % 2 == 0))
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert [each.findings for each in found] == [()] * 20
    assert [each.get(timeout=RESULT_SECONDS) for each in results] == ["done"] * 120
    assert set(shop.runs().values()) == {1}
