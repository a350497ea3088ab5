"""Limits of queues on brokers that do not claim fairly: the gate takes them with the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.conftest import BROKERS, RESULT_SECONDS, Shop
from tests.integration.test_gate_limits import assert_all_free, await_count
from tests.integration.test_parked import await_parked

QUICK = {"snooze_seconds": 0.2, "snooze_jitter_seconds": 0.2, "lease_seconds": 60}


@pytest.mark.parametrize("broker", BROKERS)
def test_s30_s32_rlr005_a_queue_s_limit_holds_beside_the_tenants(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    queues = {"celery": {"global_limit": 2}}
    shop = make_shop(broker, fairness={**QUICK, "queues": queues})
    for _ in range(2):
        shop.worker(pool="threads", concurrency=3)
    results = [shop.send("work", "ok", user=f"u{n}", seconds=0.1) for n in range(8)]
    for result in results:
        assert result.get(timeout=60) == "done"
    running, most = 0, 0
    for entry in sorted(shop.ledger(), key=lambda e: (e["at"], e["event"] == "start")):
        running += 1 if entry["event"] == "start" else -1
        most = max(most, running)
    assert most <= 2
    assert set(shop.runs().values()) == {1}
    assert_all_free(shop, "queue:celery", "tenant:u0", "tenant:u7")


def test_numbers_that_people_set_and_partitions_hold_at_the_gate(
    make_shop: Callable[..., Shop],
) -> None:
    queues = {"celery": {"by_args": ["user"]}}
    shop = make_shop(
        "redis",
        fairness={**QUICK, "tiers": {"free": {"concurrency": None}}, "queues": queues},
    )
    shop.worker(pool="prefork", concurrency=3)
    shop.fairness.set_queue_limit("celery", global_limit=0)
    one = shop.send("work", "ok", user="u1")
    await_count(shop, "limited", 1)
    assert shop.ledger("start") == []
    assert shop.fairness.clear_queue_limit("celery")
    assert one.get(timeout=RESULT_SECONDS) == "done"
    shop.fairness.pause(key="queue:celery")
    held = shop.send("work", "ok", user="u2")
    await_count(shop, "limited", 2)
    shop.fairness.resume(key="queue:celery")
    assert held.get(timeout=RESULT_SECONDS) == "done"


def test_a_delayed_task_is_of_its_queue_where_the_broker_itself_delays(
    make_shop: Callable[..., Shop],
) -> None:
    free = {"tiers": {"free": {"concurrency": None}}}
    queues = {"celery": {"global_limit": 1}}
    shop = make_shop("rabbitmq_quorum", fairness={**QUICK, **free, "queues": queues})
    shop.worker(pool="threads", concurrency=3)
    delayed = [
        shop.send("work", user="42", seconds=0.5, options={"countdown": 1}) for _ in range(3)
    ]
    for result in delayed:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.most_at_once("42") == 1
    # Refused for the first time, and parked, after the broker delayed it.
    shop.fairness.pause(key="queue:celery")
    held = shop.send("work", user="42", options={"countdown": 1})
    await_parked(shop, 1, "queue:celery")
    assert shop.fairness.explain(held.id).queue == "celery"
    events = shop.fairness.events().events
    told = [event.data["queue"] for event in events if "job_id" in event.data]
    assert set(told) == {"celery"}
    shop.fairness.resume(key="queue:celery")
    assert held.get(timeout=RESULT_SECONDS) == "done"
