"""What a tenant may run at once holds over all workers, and stops nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from celery_fairness.config.tiers import Tier
from tests.dispatch.conftest import assert_nothing_left
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import at_most, eventually

POOLS = ["prefork", "threads", "gevent", "solo"]
#: Of this, every number is seen as it is.
QUICK = {"tier_cache_seconds": 0}


def started(shop: Shop, result: Any) -> list[dict[str, Any]]:
    """Return the starts of one task."""
    return [entry for entry in shop.ledger("start") if entry["id"] == result.id]


def test_no_tenant_runs_more_than_its_limit_on_many_workers(fair_shop: Shop, memory: Redis) -> None:
    for pool in POOLS:
        fair_shop.worker(pool=pool, concurrency=1 if pool == "solo" else 3)
    fair_shop.fairness.tenants.set_tier("pro", "pro")
    users = {"free": 1, "pro": 3}
    gate = fair_shop.gate_file()
    work = {"seconds": 0.01, "gate": str(gate)}
    results = [fair_shop.send("work", user=user, **work) for _ in range(40) for user in users]
    # Each reaches its limit before the first of them ends.
    eventually(lambda: len(fair_shop.ledger("start")) == sum(users.values()), RESULT_SECONDS)
    gate.touch()
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert fair_shop.runs() == {result.id: 1 for result in results}
    assert {user: fair_shop.most_at_once(user) for user in users} == users
    assert_nothing_left(memory)


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_tenant_at_its_limit_does_not_keep_another_waiting(fair_shop: Shop, pool: str) -> None:
    fair_shop.worker(pool=pool, concurrency=2)
    gate = fair_shop.gate_file()
    crowd = [fair_shop.send("work", user="loud", gate=str(gate)) for _ in range(20)]
    fair_shop.await_held("loud", 1)
    for _ in range(5):
        quiet = fair_shop.send("work", user="quiet")
        assert quiet.get(timeout=RESULT_SECONDS) == "done"
    gate.touch()
    for result in crowd:
        assert result.get(timeout=RESULT_SECONDS) == "done"


@pytest.mark.parametrize("pool", ["prefork", "gevent", "solo"])
def test_with_all_places_taken_an_end_lets_the_next_start_at_once(
    fair_shop: Shop, pool: str
) -> None:
    fair_shop.worker(pool=pool, concurrency=1)
    results = [fair_shop.send("work", user=str(number), seconds=0.05) for number in range(10)]
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    times = sorted(entry["at"] for entry in fair_shop.ledger())
    # Ten bodies of 0.05 s, one after the other.
    assert times[-1] - times[0] < 2.0


def test_a_tier_that_is_raised_lets_waiting_tasks_start(
    make_fair_shop: Callable[..., Shop],
) -> None:
    shop = make_fair_shop(fairness=QUICK)
    shop.worker(pool="threads", concurrency=4)
    gate = shop.gate_file()
    results = [shop.send("work", user="42", gate=str(gate)) for _ in range(4)]
    shop.await_held("42", 1)
    shop.fairness.tenants.set_tier("42", "pro")
    shop.await_held("42", 3, timeout_seconds=at_most(2.0))
    shop.fairness.tenants.set_tier("42", "pro", concurrency=4)
    shop.await_held("42", 4, timeout_seconds=at_most(2.0))
    gate.touch()
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 4


def test_a_tier_that_is_lowered_or_paused_acts_on_waiting_tasks(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop(fairness=QUICK)
    shop.fairness.tenants.set_tier("42", "pro")
    shop.worker(pool="threads", concurrency=4)
    gates = [shop.gate_file() for _ in range(6)]
    results = [shop.send("work", user="42", gate=str(gate)) for gate in gates]
    shop.await_held("42", 3)
    shop.fairness.tenants.set_tier("42", "free")
    gates[0].touch()
    gates[1].touch()
    # Nothing is ended; what ends is not followed until the count is below the new number.
    shop.await_held("42", 1)
    assert len(shop.ledger("start")) == 3
    shop.fairness.tenants.set_tier("42", "free", concurrency=0)
    gates[2].touch()
    shop.await_held("42", 0)
    assert shop.send("work", user="43").get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs().keys() & {result.id for result in results[3:]} == set()
    for gate in gates:
        gate.touch()
    shop.fairness.tenants.set_tier("42", "enterprise")
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)


def test_a_new_tier_table_acts_on_waiting_tasks(make_fair_shop: Callable[..., Shop]) -> None:
    shop = make_fair_shop(fairness=QUICK)
    shop.worker(pool="threads", concurrency=4)
    gate = shop.gate_file()
    results = [shop.send("work", user="42", gate=str(gate)) for _ in range(3)]
    shop.await_held("42", 1)
    tiers = {**shop.fairness.settings.tiers, "free": Tier("free", 2)}
    shop.fairness.tenants.publish_tiers(tiers.values())
    shop.await_held("42", 2, timeout_seconds=at_most(2.0))
    gate.touch()
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 3


def test_inspection_shows_the_leases_of_claimed_tasks(make_fair_shop: Callable[..., Shop]) -> None:
    shop = make_fair_shop(fairness={"lease_seconds": 6})
    shop.worker(pool="threads", concurrency=4)
    gate = shop.gate_file()
    shop.fairness.tenants.set_tier("42", "pro")
    results = [shop.send("work", user="42", gate=str(gate)) for _ in range(2)]
    shop.await_held("42", 2)
    state = shop.state("42")
    assert (state.tier, state.limit, state.held) == ("pro", 3, 2)
    assert len({lease.id for lease in state.leases}) == 2
    for lease in state.leases:
        assert 0 < lease.expires_in_seconds <= 6
    gate.touch()
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 2


@pytest.mark.parametrize("enabled", [False, "observe"])
def test_a_worker_that_enforces_nothing_runs_all_and_counts(
    make_fair_shop: Callable[..., Shop], memory: Redis, enabled: object
) -> None:
    shop = make_fair_shop(fairness={"enabled": enabled})
    shop.worker(pool="threads", concurrency=4)
    gate = shop.gate_file()
    results = [shop.send("work", user="42", gate=str(gate)) for _ in range(4)]
    shop.await_held("42", 4)
    gate.touch()
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 4
    assert_nothing_left(memory)


def test_turned_off_and_on_again_all_tasks_run(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop()
    enforcing = shop.worker(pool="threads", concurrency=4)
    gate = shop.gate_file()
    results = [shop.send("work", user="42", gate=str(gate)) for _ in range(4)]
    # A claimed task whose body has not begun would go back.
    eventually(lambda: len(shop.runs()) == 1)
    enforcing.signal(15)
    off = shop.worker(pool="threads", concurrency=2, env={"SHOP_FAIRNESS": '{"enabled": false}'})
    # The worker that is off takes two more in spite of the one that runs.
    shop.await_held("42", 3)
    off.signal(15)
    off.wait_for_log("Warm shutdown")
    gate.touch()
    eventually(lambda: not (off.alive or enforcing.alive), RESULT_SECONDS)
    shop.worker(pool="threads", concurrency=4)
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 4
    assert shop.runs() == {result.id: 1 for result in results}
    assert_nothing_left(memory)
