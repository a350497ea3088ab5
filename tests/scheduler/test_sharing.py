"""Limits that many share: who is served, and how much of a rate is used."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.tiers import Tier
from celery_fairness.scheduler.types import Rules

RULES = Rules(default_limit=None)


def tenants_of(tasks):
    return [task.key.partition(",")[0].removeprefix("tenant:") for task in tasks]


def claimed(shop, want=1, queues=("q",)):
    """Claim; return the tasks."""
    shop.claim(want, queues)
    return shop.answer.tasks


def starts(shop, times, queues=("q",)):
    """Run one task after the other; return whose they were."""
    emitted = []
    for _ in range(times):
        tasks = claimed(shop, 1, queues)
        emitted += tenants_of(tasks)
        shop.settle(tasks)
    return emitted


def test_a_shared_limit_is_divided_among_tenants_and_not_among_their_tasks(shop):
    shop.put("big", Limit("api", concurrency=1), times=90)
    for tenant in "abc":
        shop.put(tenant, Limit("api", concurrency=1), times=9)
    assert Counter(starts(shop, 36)) == {"big": 9, "a": 9, "b": 9, "c": 9}


@pytest.mark.parametrize("own", ["account", "zone"])
def test_a_tenant_that_waits_at_its_own_limit_too_has_no_more_turns(shop, own):
    """An end frees both keys, and one of the two limits is looked at first."""
    for tenant in "ab":
        shop.put(
            tenant, Limit(f"{own}:{tenant}", concurrency=1), Limit("api", concurrency=1), times=9
        )
    shop.claim(1)
    seen = Counter(shop_starts_holding(shop, 14, ("q",)))
    assert seen == pytest.approx({"a": 7, "b": 7}, abs=1)


@pytest.mark.parametrize(
    "wide", [Limit("api", concurrency=1, rate=((1000, 1000),)), Limit("api", concurrency=2)]
)
def test_a_tenant_with_other_numbers_of_the_key_has_no_more_turns(shop, wide):
    for limit in (Limit("api", concurrency=1), wide):
        shop.put("a", limit, times=9)
    shop.put("b", Limit("api", concurrency=1), times=9)
    shop.claim(1)
    # The first two may be of one tenant, because only the second claim meets the limit.
    assert shop_starts_holding(shop, 13, ("q",))[1:].count("b") == 6


def test_it_is_divided_over_all_queues(shop):
    """One tenant alone in a queue gets no more than one of many in another."""
    shop.put("alone", Limit("api", concurrency=1), queue="p", times=60)
    for tenant in "abcde":
        shop.put(tenant, Limit("api", concurrency=1), times=60)
    shop.claim(1, ("p", "q"))
    seen = Counter(shop_starts_holding(shop, 60, ("p", "q")))
    assert {tenant: seen[tenant] for tenant in ("alone", *"abcde")} == pytest.approx(
        dict.fromkeys(("alone", *"abcde"), 10), abs=2
    )


def shop_starts_holding(shop, times, queues):
    """The slot is taken when the others are met, so that they wait; then it is passed on."""
    emitted = []
    for _ in range(times):
        shop.claim(1, queues)
        first = shop.running()[:1]
        shop.settle(first)
        emitted += tenants_of(first)
    return emitted


def test_a_tenant_of_two_queues_has_one_share(shop):
    shop.put("both", Limit("api", concurrency=1), queue="p", times=60)
    shop.put("both", Limit("api", concurrency=1), times=60)
    for tenant in "ab":
        shop.put(tenant, Limit("api", concurrency=1), times=60)
    shop.claim(1, ("p", "q"))
    seen = Counter(shop_starts_holding(shop, 60, ("p", "q")))
    assert [seen[tenant] for tenant in ("both", "a", "b")] == pytest.approx([20] * 3, abs=2)


def test_a_limit_that_opens_gives_no_more_of_the_queue_than_the_share(shop):
    shop.put("limited", Limit("api", concurrency=1), times=100)
    shop.put("other", times=100)
    held = [claimed(shop)[0] for _ in range(3)]
    seen = Counter()
    for _ in range(60):
        shop.settle(held)
        held = list(claimed(shop, 1)) + list(claimed(shop, 1))
        seen.update(tenants_of(held))
    assert abs(seen["limited"] - seen["other"]) <= 3, seen


def test_weights_hold_among_those_that_wait(shop):
    shop.tiers(Tier("one", None, 1.0), Tier("two", None, 2.0), Tier("five", None, 5))
    for tier in ("one", "two", "five"):
        shop.put(tier, Limit("api", concurrency=1), tier=tier, times=200)
    shares = Counter(shop_starts_holding(shop, 160, ("q",)))
    assert [shares[tier] for tier in ("one", "two", "five")] == pytest.approx([20, 40, 100], abs=2)


def test_other_work_costs_no_turn_at_the_limit(shop):
    """A tenant that is busy elsewhere gets as much of a shared limit as one that is not."""
    for tenant in ("busy", "idle"):
        shop.put(tenant, Limit("api", concurrency=1), times=100)
    shop.put("busy", times=100)
    seen = Counter()
    slot = None
    for _ in range(120):
        for task in claimed(shop, 2):
            if "api" in task.key:
                slot = task
                seen.update(tenants_of([task]))
            else:
                shop.settle([task])
        if slot:
            shop.settle([slot])
            slot = None
    assert abs(seen["busy"] - seen["idle"]) <= 2, seen


@pytest.mark.parametrize(("limit", "period_ms"), [(5, 1_000), (1_500, 10_000)])
def test_a_rate_is_used_and_never_broken(shop, limit, period_ms):
    """Starts in any window, and in all of the time; claims come late and in bursts (P10)."""
    random = Random(1)
    rate = Limit("api", rate=((limit, period_ms),))
    starts, begun = [], shop.now
    tenants = [f"t{n}" for n in range(8)]
    for tenant in tenants:
        shop.put(tenant, rate, times=limit)
    while shop.now < begun + 5 * period_ms:
        given, sleep_ms = shop.claim(random.choice([1, 8, 64]))
        starts += [shop.now] * len(given)
        shop.settle(shop.answer.tasks)
        shop.now += sleep_ms and max(1, min(sleep_ms, period_ms // 50))
        shop.now += random.choice([0, 0, 0, 1])
    first = 0
    for last, at in enumerate(starts):
        while starts[first] <= at - period_ms:
            first += 1
        assert last - first < limit
    assert len(starts) >= 0.95 * limit * 5


def test_a_throttle_spaces_starts_evenly(shop):
    random = Random(2)
    shop.put("a", Limit("api", throttle=((10, 1_000),)), times=200)
    starts, begun = [], shop.now
    while shop.now < begun + 10_000:
        given, sleep_ms = shop.claim(4)
        starts += [shop.now] * len(given)
        shop.now += max(1, sleep_ms) + random.choice([0, 0, 1, 5])
    gaps = [after - before for before, after in pairwise(starts)]
    assert min(gaps) >= 90
    assert max(gaps) <= 110
    assert len(starts) >= 98


def test_the_newest_numbers_of_a_key_hold_for_all_that_wait(shop):
    """Counts and numbers are those of the key: who came with other numbers waits no longer."""
    shop.put("a", Limit("api", concurrency=5), times=10)
    shop.put("b", Limit("api", concurrency=7), times=10)
    started = tenants_of(claimed(shop, 20))
    assert started == ["a", "b"] * 3 + ["a"]


def test_of_tenants_that_are_due_at_one_time_who_waits_longest_goes_first(shop):
    """New tenants that come again and again pass nobody, whatever they are called."""
    shop.put("held", Limit("api", concurrency=1))
    (held,) = claimed(shop, 1)
    started = []
    for name in ("z", "y", "x"):
        shop.put(name, Limit("api", concurrency=1))
    assert claimed(shop, 1) == ()
    for number in range(6):
        shop.put(f"new{number}", Limit("api", concurrency=1))
        shop.settle([held])
        (held,) = claimed(shop, 1)
        started += tenants_of([held])
    assert started == ["z", "y", "x", "new0", "new1", "new2"]


def test_higher_priority_of_a_tenant_goes_before_its_lane_at_an_open_limit(shop):
    """S-37: a limited task does not bypass the priority order."""
    shop.put("a", Limit("api", concurrency=1), times=2)
    (first,) = claimed(shop)
    shop.claim()
    shop.put("a", rank=9)
    shop.settle([first])
    assert [task.rank for task in claimed(shop, 3)] == [9, 0]


def test_a_lower_priority_goes_while_the_higher_is_limited(shop):
    """S-38."""
    shop.put("a", Limit("api", concurrency=1), rank=9, times=2)
    shop.put("a", rank=0)
    assert [task.rank for task in claimed(shop, 3)] == [9, 0]


def test_a_lane_that_is_never_empty_starves_no_other_of_its_tenant(shop):
    """F20: the age of a lane is that of its first task."""
    for _ in range(20):
        shop.put("a", Limit("x"))
        shop.put("a", Limit("y"))
    keys = [task.key.partition(",")[2] for task in claimed(shop, 20)]
    assert Counter(keys) == {"x": 10, "y": 10}


def test_what_joins_an_open_group_wakes_a_worker_again(shop):
    """F14: the bell that told of the opening may have gone to a worker that died."""
    shop.put("a", Limit("api", concurrency=1), times=2)
    (first,) = claimed(shop)
    shop.claim()
    shop.settle([first])
    assert shop.is_woken()
    shop.hear()
    shop.put("a", Limit("api", concurrency=1))
    assert shop.is_woken()


@pytest.mark.parametrize(("concurrency", "runs"), [(0, 0), (1, 2)])
def test_a_pause_holds_also_where_nothing_is_enforced(shop, concurrency, runs):
    shop.put("a", Limit("api", concurrency=concurrency), times=2)
    shop.claim()
    shop.claim()
    shop.claim(enforcement="off")
    assert len(shop.running()) == runs
