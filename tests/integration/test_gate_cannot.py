"""Workers show what a gate cannot do. docs/explanation/gate.md lists it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.conftest import BROKERS, RESULT_SECONDS, Shop
from tests.integration.test_gate import await_rejections, slot_taken

#: A task that was sent back stays away for the whole test.
SETTINGS = {"snooze_seconds": 60, "lease_seconds": 60}

pytestmark = pytest.mark.parametrize("broker", BROKERS)


def started(shop: Shop) -> list[str]:
    """Return the users of the tasks that started, in their order."""
    return [each["user"] for each in shop.ledger("start")]


def test_a_free_slot_wakes_no_task_that_was_sent_back(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness=SETTINGS)
    shop.worker(pool="solo")
    with slot_taken(shop, "42"):
        first = shop.send("work", "ok", user="42")
        await_rejections(shop, 1)
    newcomer = shop.send("work", "ok", user="42")
    newcomer.get(timeout=RESULT_SECONDS)
    assert shop.runs() == {newcomer.id: 1}
    assert first.state == "PENDING"


def test_tasks_that_the_broker_holds_run_in_its_order(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness=SETTINGS)
    users = ["noisy"] * 4 + ["quiet"]
    sent = [shop.send("work", "ok", user=user) for user in users]
    shop.worker(pool="solo")
    sent[-1].get(timeout=RESULT_SECONDS)
    assert started(shop) == users


def test_each_task_of_a_full_tenant_passes_the_pool_before_the_task_behind_it(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness=SETTINGS)
    with slot_taken(shop, "42"):
        for _ in range(5):
            shop.send("work", "ok", user="42")
        behind = shop.send("work", "ok", user="quiet")
        shop.worker(pool="solo")
        behind.get(timeout=RESULT_SECONDS)
        assert shop.fairness.stats.rejections().tiers["free"] == 5
    assert started(shop) == ["quiet"]
