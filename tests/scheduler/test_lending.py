"""Tenants above their concurrency: a claim that finds nothing else lends them places."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.rates import Rate
from celery_fairness.config.tiers import Tier
from tests.scheduler.shop import RULES
from tests.scheduler.test_units import commands_of

#: One task at once, and up to four while a claim finds nothing else.
SOFT = Tier("free", 1, burst=4)
MARKER = "end of the sequence"


@pytest.fixture
def soft(shop):
    shop.tiers(SOFT, Tier("pro", 1))
    return shop


def tenants_of(shop):
    return [task.key.partition(",")[0].removeprefix("tenant:") for task in shop.answer.tasks]


def test_a_claim_that_finds_nothing_else_lends_up_to_the_burst(soft):
    soft.put("a", times=9)
    assert soft.claim()[0] == [1, 2, 3, 4]
    assert soft.claim()[1] > 0
    soft.check()


def test_a_lent_task_waits_for_every_queue_of_the_claim(soft):
    soft.put("a", times=3)
    soft.put("b", queue="r", times=2, tier="pro")
    soft.put("c", queue="r", tier="pro")
    soft.claim(3, ("q", "r"))
    assert sorted(tenants_of(soft)) == ["a", "b", "c"]
    assert soft.claim(2, ("q", "r"))[0] == [2, 3]


def test_a_claim_that_did_not_look_at_everything_lends_nothing(soft):
    soft.put("a")
    soft.claim()
    soft.put("a", times=2)
    for number in range(20):
        soft.put(f"t{number}", later=1)
    soft.at(100)
    # One call brings in sixteen tasks whose time has come.
    soft.claim(40)
    assert len(soft.answer.tasks) == 16
    assert "a" not in tenants_of(soft)
    assert len(soft.claim(40)[0]) == 4
    assert soft.claim(40)[0] == [2, 3]


def test_a_claim_with_tenants_left_to_check_lends_nothing(soft):
    soft.put("a")
    for number in range(20):
        soft.put(f"t{number:02}", times=2, tier="pro")
    soft.claim(40)
    soft.put("a", times=2)
    soft.tiers(SOFT, Tier("pro", 2))
    # One call checks sixteen tenants again.
    soft.claim(40)
    assert len(soft.answer.tasks) == 16
    assert "a" not in tenants_of(soft)
    soft.claim(40)
    assert tenants_of(soft)[-2:] == ["a", "a"]


def test_the_share_of_a_queue_bounds_lent_tasks_unless_queues_borrow(soft):
    soft.put("a", times=5)
    assert soft.claim(rooms={"q": 2})[0] == [1, 2]
    assert soft.claim(rooms={"q": 1}, lends=True)[0] == [3, 4]


def test_a_key_saves_nothing_for_a_lent_task(soft):
    heavy = Limit("u", rate=((5, 2_000),), units=3)
    soft.put("b", heavy)
    soft.put("a")
    soft.claim()
    soft.put("a", heavy)
    assert soft.claim()[0] == []
    soft.put("c", Limit("u", rate=((5, 2_000),)))
    assert soft.claim()[0] == [4]


def test_the_next_free_place_goes_to_others(soft):
    soft.put("a", times=9)
    soft.claim(3)
    soft.put("b", times=2)
    soft.end_one(2)
    soft.claim(1)
    assert tenants_of(soft) == ["b"]
    assert soft.held("tenant:a") == 2


def test_a_process_keeps_back_its_spare_places_and_wakes_others(soft):
    soft.put("a", times=9)
    soft.hear()
    assert soft.claim(4, spare=2)[0] == [1, 2]
    assert soft.claim(2, spare=2) == ([], 1_000)
    # The wake-up is one to which this process does not listen.
    assert soft.answer.passed == {"q": 0}
    assert soft.is_woken()
    assert soft.claim(2, owner="v")[0] == [3, 4]


def test_what_is_not_lent_is_kept_back_for_others_only(soft):
    soft.put("a")
    assert soft.claim(1, spare=5)[0] == [1]


def test_a_put_of_a_tenant_that_may_be_lent_a_place_wakes_a_worker(soft):
    soft.put("a")
    soft.claim()
    soft.hear()
    soft.put("a", times=2)
    soft.claim(1)
    soft.hear()
    assert not soft.is_woken()
    soft.put("a")
    assert soft.is_woken()


def test_an_end_of_a_tenant_at_its_burst_wakes_a_worker(soft):
    soft.put("a", times=6)
    soft.claim()
    soft.claim()
    soft.hear()
    soft.end_one(0)
    assert soft.is_woken()
    soft.check()
    assert soft.claim()[0] == [5]


def test_a_claim_that_leaves_what_may_be_lent_wakes_another_worker(soft):
    soft.put("a", times=4)
    soft.claim(2)
    soft.hear()
    soft.claim(1)
    assert soft.is_woken()


def test_tenants_are_lent_places_in_turn_by_weight(shop):
    shop.tiers(replace(SOFT, burst=99), Tier("pro", 1, burst=99, weight=2.0))
    shop.put("a", times=20, tier="free")
    shop.put("b", times=20, tier="pro")
    seen = []
    shop.claim(2)
    for _ in range(12):
        shop.claim(1)
        seen += tenants_of(shop)
    assert Counter(seen) == {"a": 4, "b": 8}


def test_a_shared_limit_and_the_limit_of_the_queue_bound_lent_tasks_too(soft):
    soft.put("a", Limit("api", concurrency=2), times=5)
    assert len(soft.claim()[0]) == 2
    soft.end_one(0)
    assert len(soft.claim()[0]) == 1
    assert soft.claim()[0] == []
    assert soft.client.hget(f"{soft.prefix}counters", "lost_entries") is None
    soft.limit_queue("r", concurrency=2)
    soft.put("b", queue="r", times=5)
    assert len(soft.claim(queues=("r",))[0]) == 2
    soft.check()


def test_the_rate_of_the_tier_bounds_lent_tasks_and_wakes_the_worker(make_shop):
    shop = make_shop(rules=replace(RULES, lease_ms=60_000))
    shop.tiers(Tier("free", 1, burst=4, rate=Rate(2, 10)))
    shop.put("a", times=4)
    assert len(shop.claim()[0]) == 2
    shop.at(9_500)
    assert shop.claim() == ([], 501)
    shop.at(10_001)
    assert len(shop.claim()[0]) == 2


def test_a_lent_start_that_uses_up_the_rate_leaves_the_tenant_to_the_next_claim(make_shop):
    shop = make_shop(rules=replace(RULES, lease_ms=60_000))
    shop.tiers(Tier("free", 1, burst=4, rate=Rate(2, 10)))
    shop.put("a", times=4)
    for _ in range(2):
        shop.hear()
        assert len(shop.claim(1)[0]) == 1
    shop.check()
    assert shop.is_woken()
    shop.at(9_500)
    assert shop.claim() == ([], 501)


def test_a_higher_override_is_the_burst_too_and_a_pause_stops_both(soft):
    soft.put("a", times=12)
    soft.override("tenant:a", concurrency=6)
    assert len(soft.claim(20)[0]) == 6
    soft.override("tenant:a")
    soft.end()
    soft.claim(1)
    soft.stop("pause", "tenant:a")
    assert soft.claim()[0] == []


def test_a_tenant_may_have_a_burst_of_its_own(soft):
    soft.tenant("a", "free", burst=2)
    soft.tenant("b", "free", burst=None)
    for tenant in "ab":
        soft.put(tenant, times=9)
    soft.claim(20)
    assert Counter(tenants_of(soft)) == {"a": 2, "b": 1}


def test_a_raised_burst_holds_for_tenants_that_were_at_the_old_one(soft):
    soft.put("a", times=9)
    soft.claim()
    soft.claim()
    soft.tiers(replace(SOFT, burst=6))
    assert soft.claim()[0] == [5, 6]


def test_what_a_process_does_not_take_is_lent_to_others(soft):
    soft.put("a")
    soft.claim()
    soft.put("a", times=2, kind="big")
    soft.put("b", times=3)
    assert soft.claim(never=["big"])[0] == [4, 5, 6]
    # It does not listen to the wake-up that it leaves for others.
    assert soft.claim(never=["big"])[1] > 0
    assert "q" in soft.answer.passed
    assert soft.claim()[0] == [2, 3]


def test_a_tenant_of_parked_tasks_is_lent_no_place_and_wakes_no_promoter(soft):
    parked = "@parked:amqp"
    soft.put("a")
    soft.claim()
    soft.rules = replace(soft.rules, copies_ms=1_000)
    soft.client.hset(f"{soft.prefix}clock", "parked", 1)
    soft.put("a", queue=parked)
    soft.put("a")
    assert soft.claim(queues=(parked,)) == ([], 1_000)
    assert not soft.is_woken(parked)
    soft.cancel(2)


def test_only_a_tenant_at_its_burst_is_reported_as_rejected(soft):
    soft.put("a", times=6)
    soft.claim(3)
    assert "rate_limit.exceeded" not in dict(soft.events())
    soft.claim()
    found = dict(soft.events())["rate_limit.exceeded"]
    assert (found["limit"], found["current"]) == ("4", "4")


def test_a_worker_that_observes_counts_only_what_is_above_the_burst(soft):
    soft.put("a", times=6)
    assert len(soft.claim(enforcement="observe")[0]) == 6
    assert soft.client.hget(f"{soft.prefix}counters", "rejected:free") == "2"


def test_restored_memory_lends_as_before(soft):
    soft.put("a", times=9)
    soft.claim(2)
    soft.save()
    soft.restore()
    assert len(soft.claim()[0]) == 2
    soft.check()


def test_without_a_burst_no_call_looks_at_what_may_be_lent(shop):
    shop.tiers(Tier("free", 1), Tier("pro", 3))
    with shop.client.monitor() as monitor:
        for tenant in "ab":
            shop.put(tenant, Limit("api", concurrency=1), times=3)
            shop.put(tenant, times=3)
        for _ in range(4):
            shop.claim(4)
            shop.end()
        shop.cancel(2)
        shop.purge()
        shop.client.echo(MARKER)
        ran = []
        for command in monitor.listen():
            ran.append(command["command"])
            if MARKER in ran[-1]:
                break
    assert len(ran) > 100
    assert not [each for each in ran if "}:lend:" in each]


def test_a_lent_place_leaves_the_tenant_among_those_at_their_concurrency(soft):
    soft.put("a", times=4)
    assert soft.claim(2)[0] == [1, 2]
    assert soft.client.zscore(f"{soft.prefix}active:q", "tenant:a") is None
    assert soft.client.zscore(f"{soft.prefix}blocked:q", "tenant:a") is not None


def test_a_process_that_takes_nothing_of_a_tenant_lends_to_the_next(soft):
    for tenant, kind in (("a", "big"), ("b", "x")):
        soft.put(tenant)
        soft.put(tenant, times=9, kind=kind)
    # Both tenants are at their concurrency, and may be lent places.
    assert sorted(soft.claim(2)[0]) == [1, 11]
    soft.claim(1, spare=1)
    lent = soft.claim(2, never=("big",))[0]
    assert lent == [12, 13]
    # It wakes a worker that takes what it leaves.
    assert soft.answer.passed == {"q": 0}
    assert soft.claim(1)[0] == [2]


def test_a_process_that_takes_nothing_of_many_tenants_that_may_be_lent_places_sleeps(soft):
    for number in range(20):
        soft.put(f"t{number:02}")
        soft.put(f"t{number:02}", kind="big")
    while soft.claim(20, never=("big",))[0]:
        pass
    while soft.claim(1, spare=1) != ([], 1_000):
        pass
    assert soft.client.zcard(f"{soft.prefix}lend:q") == 20
    assert soft.claim(1, never=("big",)) == ([], 1_000)


def commands_of_a_start(shop, tier):
    """Return the commands of an end, and of the claim that takes the next task."""
    shop.tiers(tier)
    shop.put("a", times=12)
    shop.claim()
    # The first call of each loads what the next ones know.
    for _ in range(2):
        counted = [
            commands_of(shop, lambda: shop.end_one(0)),
            commands_of(shop, lambda: shop.claim(1)),
        ]
    return counted


def test_a_lent_start_costs_sixteen_commands_and_a_burst_that_nobody_needs_none(make_shop):
    without, unused, used = (
        commands_of_a_start(make_shop(), tier)
        for tier in (Tier("free", 4), Tier("free", 4, burst=3), SOFT)
    )
    assert unused == without
    assert sum(used) - sum(without) == 16
