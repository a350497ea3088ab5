"""Workers report how attempts end: the minutes have ends, failures and retries on each path."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.conftest import BROKERS, RESULT_SECONDS, Shop
from tests.support.waiting import eventually


@pytest.mark.parametrize("broker", [*BROKERS, "fairredis"])
def test_ends_failures_and_retries_are_counted(make_shop: Callable[..., Shop], broker: str) -> None:
    shop = make_shop(broker, fairness={"lease_seconds": 60})
    shop.worker(pool="prefork", concurrency=2)
    gate = shop.gate_file()
    gate.touch()
    for user, how in enumerate(("ok", "error", "ignore", "retry", "kill_child")):
        shop.send("work", how, user=str(user), gate=str(gate))

    def counted() -> None:
        minutes = shop.fairness.stats.minutes(5)
        found = [sum(getattr(each, name) for each in minutes) for name in ("failed", "retried")]
        # The task retries twice, and then it is done as two others are.
        assert found == [2, 2]
        assert sum(each.ended for each in minutes) == 2 + 2 + 3
        assert {row.queue for each in minutes for row in each.failures} == {"celery"}

    eventually(counted, RESULT_SECONDS)
