"""The same tasks on both paths: a tenant's limit holds, and the others' tasks start."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.integration.conftest import (
    RESULT_SECONDS,
    Shop,
)
from tests.support.waiting import eventually


@pytest.mark.parametrize("broker", ["fairredis", "redis"])
def test_a_tenant_at_its_limit_keeps_nobody_waiting(
    make_shop: Callable[..., Shop],
    broker: str,
) -> None:
    shop = make_shop(broker, fairness={"tiers": {"free": {"concurrency": 1}}})
    shop.worker(concurrency=3)
    gate = shop.gate_file()
    flood = [shop.send("work", user="42", gate=str(gate)) for _ in range(4)]
    eventually(lambda: shop.ledger("start"), RESULT_SECONDS)
    assert shop.send("work", user="43").get(timeout=RESULT_SECONDS) == "done"
    assert len(shop.runs()) == 2
    gate.touch()
    assert [each.get(timeout=RESULT_SECONDS) for each in flood] == ["done"] * 4
    assert shop.most_at_once("42") == 1


@pytest.mark.parametrize(
    ("broker", "number", "rate"), [("fairredis", "throttle", "1/s"), ("redis", "rate", "2/2s")]
)
def test_a_tenant_starts_as_its_tier_allows_and_keeps_nobody_waiting(
    make_shop: Callable[..., Shop],
    broker: str,
    number: str,
    rate: str,
) -> None:
    shop = make_shop(broker, fairness={"tiers": {"free": {"concurrency": 9, number: rate}}})
    shop.worker(concurrency=2)
    sent_at = time.time()
    flood = [shop.send("work", user="42") for _ in range(5)]
    quiet = shop.send("work", user="43")
    assert [each.get(timeout=RESULT_SECONDS) for each in (*flood, quiet)] == ["done"] * 6
    begun = {
        user: sorted(each["at"] for each in shop.ledger("start") if each["user"] == user)
        for user in ("42", "43")
    }
    assert begun["43"][0] < begun["42"][-1]
    # A body may begin long after its start was counted, and never before. A throttle makes up for a
    # tenth of its spacing.
    earliest = {"rate": (0, 0, 2, 2, 4), "throttle": (0, 0.9, 1.9, 2.9, 3.9)}[number]
    pairs = zip(begun["42"], earliest, strict=True)
    assert all(at - sent_at > after - 0.01 for at, after in pairs), begun


def test_an_idle_worker_lends_places_keeps_its_spare_ones_and_gives_way_within_one_task(
    make_shop: Callable[..., Shop],
) -> None:
    tiers = {"free": {"concurrency": 1, "burst": 9}}
    shop = make_shop("fairredis", fairness={"tiers": tiers, "lending_spare": 1})
    shop.worker(concurrency=4)
    gates = [shop.gate_file() for _ in range(5)]
    flood = [shop.send("work", user="42", gate=str(gate)) for gate in gates]
    shop.await_held("42", 3)
    # The fourth place is kept back for others.
    spare = shop.send("work", user="43", gate=str(gates[-1]))
    shop.await_held("43", 1)
    waits = shop.send("work", user="44", gate=str(gates[-1]))
    gates[0].touch()
    shop.await_held("44", 1)
    assert shop.held("42") == 2
    for gate in gates:
        gate.touch()
    results = [each.get(timeout=RESULT_SECONDS) for each in (*flood, spare, waits)]
    assert results == ["done"] * 7


@pytest.mark.parametrize("broker", ["fairredis", "redis"])
def test_a_body_corrects_what_its_start_has_counted(
    make_shop: Callable[..., Shop],
    broker: str,
) -> None:
    shop = make_shop(broker)
    shop.worker(concurrency=2)

    def counted() -> int:
        rate = shop.fairness.limits.inspect("tokens").rate
        assert rate is not None
        return rate.current_count

    assert shop.send("tokens", 60, user="42").get(timeout=RESULT_SECONDS) is False
    assert counted() == 60
    # It would not fit beside the estimate of the next one.
    assert shop.send("tokens", 40, used=7, user="42").get(timeout=RESULT_SECONDS) is True
    assert counted() == 67
    assert shop.send("tokens", 33, used=50, user="43").get(timeout=RESULT_SECONDS) is True
    assert counted() == 117


@pytest.mark.parametrize("broker", ["fairredis", "redis"])
def test_a_task_that_takes_several_slots_starts_when_all_of_them_are_free(
    make_shop: Callable[..., Shop],
    broker: str,
) -> None:
    shop = make_shop(broker)
    shop.worker(concurrency=4)
    gate, open_gate = shop.gate_file(), shop.gate_file()
    open_gate.touch()

    def held() -> int:
        return int(shop.fairness.limits.inspect("memory").held)

    first = [shop.send("memory", 1, gate=str(gate), user=user) for user in ("41", "42")]
    eventually(lambda: held() == 2, RESULT_SECONDS)
    large = shop.send("memory", 9, gate=str(open_gate), user="43")
    eventually(lambda: shop.fairness.tasks.explain(large.id).blocked_by, RESULT_SECONDS)
    small = shop.send("memory", 1, gate=str(open_gate), user="44")
    eventually(lambda: shop.fairness.tasks.explain(small.id).blocked_by, RESULT_SECONDS)
    (by,) = shop.fairness.tasks.explain(large.id).blocked_by
    assert by.amount is not None
    assert (by.amount.needs, by.amount.of, by.amount.free) == (3, 3, 1)
    gate.touch()
    results = [each.get(timeout=RESULT_SECONDS) for each in (*first, large, small)]
    assert results == [1, 1, 9, 1]
    eventually(lambda: held() == 0, RESULT_SECONDS)


def test_a_report_outside_of_a_worker_changes_nothing(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop("fairredis")
    assert shop.fairness.limits.used("tokens", 5) is False
    with pytest.raises(ValueError, match="units: expected a whole number from 0"):
        shop.fairness.limits.used("tokens", -1)
