"""Limits of queues on brokers that do not claim fairly: the gate takes them with the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery.result import AsyncResult

from celery_fairness.message.partition import partition_of
from tests.integration.conftest import BROKERS, RESULT_SECONDS, Shop
from tests.integration.test_gate_limits import assert_all_free, await_count
from tests.integration.test_parked import await_parked
from tests.support.waiting import at_most, eventually

QUICK = {"snooze_seconds": 0.2, "snooze_jitter_seconds": 0.2, "lease_seconds": 60}


def partitioned(make_shop: Callable[..., Shop], **by: Any) -> Shop:
    """Return a shop with workers, of whose queue each partition lets one task run at once."""
    queues = {"celery": {"partition": {"concurrency": 1}, **by}}
    # No tenant's own limit stands in the way.
    tiers = {"free": {"concurrency": None}}
    shop = make_shop("redis", fairness={**QUICK, "tiers": tiers, "queues": queues})
    for _ in range(2):
        shop.worker(pool="threads", concurrency=4)
    return shop


def held(shop: Shop, part: str) -> int:
    """Return how many slots are held of the queue, or of the partition whose key ends so."""
    return shop.fairness.limits.inspect(f"queue:celery{part}").held


@pytest.mark.parametrize("broker", BROKERS)
def test_s30_s32_rlr005_a_queue_s_limit_and_the_tenants_both_hold(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    limits = {"tiers": {"free": {"concurrency": 1}}, "queues": {"celery": {"global_limit": 2}}}
    shop = make_shop(broker, fairness={**QUICK, **limits})
    for _ in range(2):
        shop.worker(pool="threads", concurrency=3)
    gate = str(shop.gate_file())

    def send(user: str) -> AsyncResult[Any]:
        return shop.send("work", "ok", user=user, seconds=0.1, gate=gate)

    # The queue has room for the second one, and its tenant has not.
    results = [send("u0") for _ in range(2)]
    eventually(lambda: shop.fairness.stats.rejections().tiers.get("free", 0) >= 1, RESULT_SECONDS)
    assert (shop.held("u0"), held(shop, "")) == (1, 1)
    assert shop.fairness.stats.counters().get("limited", 0) == 0
    # Of four tenants that have room the queue has room for one.
    results += [send(f"u{n}") for n in range(1, 5)]
    await_parked(shop, 3, "queue:celery")
    assert (shop.held("u0"), held(shop, "")) == (1, 2)
    results += [send("u0") for _ in range(2)]
    Path(gate).touch()
    for result in results:
        assert result.get(timeout=at_most(60)) == "done"
    running, most = 0, 0
    for entry in sorted(shop.ledger(), key=lambda e: (e["at"], e["event"] == "start")):
        running += 1 if entry["event"] == "start" else -1
        most = max(most, running)
    assert most == 2
    assert shop.most_at_once("u0") == 1
    assert set(shop.runs().values()) == {1}
    assert_all_free(shop, "queue:celery", "tenant:u0", "tenant:u4")


def test_s30_rlr005_each_customer_has_the_limit_of_a_partitioned_queue_for_itself(
    make_shop: Callable[..., Shop],
) -> None:
    shop = partitioned(make_shop, by_args=["user"])
    gates = {user: shop.gate_file() for user in ("41", "42")}
    sent = {
        user: [shop.send("work", user=user, gate=str(gate), seconds=0.1) for _ in range(3)]
        for user, gate in gates.items()
    }
    for user in gates:
        await_parked(shop, 2, f"queue:celery:{user}")
    # Two customers run at the same time, and of each one task alone.
    assert (held(shop, ":41"), held(shop, ":42"), held(shop, "")) == (1, 1, 2)
    eventually(lambda: sorted(e["user"] for e in shop.ledger("start")) == ["41", "42"])
    gates["41"].touch()
    for result in sent["41"]:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert [entry["user"] for entry in shop.ledger("end")] == ["41"] * 3
    assert held(shop, ":42") == 1
    gates["42"].touch()
    for result in sent["42"]:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert (shop.most_at_once("41"), shop.most_at_once("42")) == (1, 1)
    assert_all_free(shop, "queue:celery", "queue:celery:41", "queue:celery:42")


def test_s30_rlr005_each_kind_has_the_limit_of_a_queue_for_itself(
    make_shop: Callable[..., Shop],
) -> None:
    shop = partitioned(make_shop, by_kind=True)
    gate = shop.gate_file()
    works = [shop.send("work", user="41", gate=str(gate), seconds=0.1) for _ in range(3)]
    await_parked(shop, 2, "queue:celery:shop.work")
    in_queue = {"queue": "celery"}
    routed = [shop.send("routed", user="42", seconds=0.2, options=in_queue) for _ in range(4)]
    for result in routed:
        assert result.get(timeout=RESULT_SECONDS) == "celery"
    # All of the other kind ran beside one of this, and one at a time.
    assert shop.most_at_once("42") == 1
    assert (held(shop, ":shop.work"), len(shop.ledger("start", "shop.work"))) == (1, 1)
    assert shop.ledger("end", "shop.work") == []
    gate.touch()
    for result in works:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.most_at_once("41") == 1
    assert_all_free(shop, "queue:celery", "queue:celery:shop.work", "queue:celery:shop.routed")


def test_s30_rlr005_each_set_of_all_arguments_has_the_limit_of_a_queue_for_itself(
    make_shop: Callable[..., Shop],
) -> None:
    shop = partitioned(make_shop, by_args=[])
    gate = str(shop.gate_file())

    def part(**said: Any) -> str:
        """Return the end of the key of the tasks that have these arguments."""
        work, policy = shop.app.tasks["shop.work"], shop.fairness.settings.queues["celery"]
        key = partition_of(policy, "celery", work.name, work.run, (), said)
        return key.removeprefix("queue:celery")

    # What is said as its default, by its place or by its name is the same.
    same = [
        shop.send("work", user="41", gate=gate, seconds=0.1),
        shop.send("work", "ok", "41", gate=gate, seconds=0.1),
        shop.send("work", how="ok", user="41", gate=gate, seconds=0.1),
    ]
    one = part(user="41", gate=gate, seconds=0.1)
    await_parked(shop, 2, f"queue:celery{one}")
    others = [
        shop.send("work", user="42", gate=gate, seconds=0.1),
        shop.send("work", "ok", user="41", gate=gate, seconds=0.2),
    ]
    two, three = part(user="42", gate=gate, seconds=0.1), part(user="41", gate=gate, seconds=0.2)
    eventually(lambda: len(shop.ledger("start")) == 3, RESULT_SECONDS)
    assert len({one, two, three}) == 3
    assert (held(shop, one), held(shop, two), held(shop, three), held(shop, "")) == (1, 1, 1, 3)
    Path(gate).touch()
    for result in (*same, *others):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    ids = {result.id for result in same}
    events = sorted((e["at"], e["event"]) for e in shop.ledger() if e["id"] in ids)
    assert [event for _, event in events] == ["start", "end"] * 3
    assert_all_free(shop, "queue:celery", *(f"queue:celery{each}" for each in (one, two, three)))


def test_numbers_that_people_set_and_partitions_hold_at_the_gate(
    make_shop: Callable[..., Shop],
) -> None:
    queues = {"celery": {"by_args": ["user"]}}
    shop = make_shop(
        "redis",
        fairness={**QUICK, "tiers": {"free": {"concurrency": None}}, "queues": queues},
    )
    shop.worker(pool="prefork", concurrency=3)
    shop.fairness.queues.set_limit("celery", global_limit=0)
    one = shop.send("work", "ok", user="u1")
    await_count(shop, "limited", 1)
    assert shop.ledger("start") == []
    assert shop.fairness.queues.clear_limit("celery")
    assert one.get(timeout=RESULT_SECONDS) == "done"
    shop.fairness.limits.pause("queue:celery")
    held = shop.send("work", "ok", user="u2")
    await_count(shop, "limited", 2)
    shop.fairness.limits.resume("queue:celery")
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
    # Rejected for the first time, and parked, after the broker delayed it.
    shop.fairness.limits.pause("queue:celery")
    held = shop.send("work", user="42", options={"countdown": 1})
    await_parked(shop, 1, "queue:celery")
    assert shop.fairness.tasks.explain(held.id).queue == "celery"
    events = shop.fairness.events.read().events
    told = [event.data["queue"] for event in events if "job_id" in event.data]
    assert set(told) == {"celery"}
    shop.fairness.limits.resume("queue:celery")
    assert held.get(timeout=RESULT_SECONDS) == "done"
