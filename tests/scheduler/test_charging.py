"""What tenants get where they are charged by units, by declared cost, or by the time they take."""

from __future__ import annotations

import heapq
from collections import Counter
from random import Random

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.tiers import Tier
from celery_fairness.scheduler.types import Rules

BY_RUNTIME = Rules(default_limit=None, fairness_by="runtime")
LEASE_MS = BY_RUNTIME.lease_ms


@pytest.fixture
def make_pool(make_shop):
    return lambda places, rules=BY_RUNTIME: Pool(make_shop(rules=rules), places)


class Pool:
    """A worker with places, in which tasks take their tenant's time."""

    def __init__(self, shop, places):
        self.shop, self.places = shop, places
        self.ends, self.always = [], {}
        self.seconds, self.starts = Counter(), Counter()
        self.renewed = shop.now

    def keep(self, *tenants, limits=(), **fields):
        """Something of these tenants always waits."""
        for tenant in tenants:
            self.always[tenant] = limits, fields
            self.shop.put(tenant, *limits, times=2 * self.places, **fields)

    def run(self, seconds, length_of):
        """Keep every place busy for a time; ``length_of`` says how long a tenant's next task is."""
        shop = self.shop
        ends_at = shop.now + seconds * 1000
        while shop.now < ends_at:
            shop.claim(self.places - len(self.ends))
            for task in shop.answer.tasks:
                tenant = task.key.partition(",")[0].removeprefix("tenant:")
                length_ms = length_of(tenant)
                if tenant in self.always:
                    limits, fields = self.always[tenant]
                    shop.put(tenant, *limits, **fields)
                heapq.heappush(self.ends, (shop.now + length_ms, task.lease, task, length_ms))
                self.starts[tenant] += 1
            shop.now, _, task, length_ms = heapq.heappop(self.ends)
            self.seconds[task.key.partition(",")[0].removeprefix("tenant:")] += length_ms / 1000
            shop.settle([task])
            if shop.now - self.renewed > LEASE_MS // 4:
                shop.renew(*(each[2] for each in self.ends))
                self.renewed = shop.now

    def shares(self):
        return {each: held / self.seconds.total() for each, held in self.seconds.items()}


@pytest.mark.parametrize("places", [1, 4])
def test_tenants_of_equal_weight_have_equal_worker_seconds(make_pool, places):
    pool = make_pool(places)
    pool.keep("long", "short")
    pool.run(240 // places, {"long": 3_400, "short": 100}.get)
    # Within one long task of these 240 seconds.
    assert pool.shares() == pytest.approx({"long": 0.5, "short": 0.5}, abs=0.015)


def test_by_tasks_they_have_equal_starts(make_pool):
    pool = make_pool(4, Rules(default_limit=None))
    pool.keep("long", "short")
    pool.run(60, {"long": 3_400, "short": 100}.get)
    assert abs(pool.starts["long"] - pool.starts["short"]) <= 5


def test_tasks_whose_length_nobody_could_expect_are_put_right(make_pool):
    """A clamped refund would give this tenant 0.487."""
    random = Random(7)
    pool = make_pool(3)
    pool.keep("bimodal", "even")
    pool.run(150, lambda tenant: 200 if tenant == "even" else random.choice([10] * 9 + [3_000]))
    assert pool.shares() == pytest.approx({"bimodal": 0.5, "even": 0.5}, abs=0.01)


def test_weights_divide_the_time(make_pool):
    pool = make_pool(4)
    pool.shop.tiers(Tier("one", None), Tier("two", None, 2.0), Tier("five", None, 5.0))
    for tier in ("one", "two", "five"):
        pool.keep(tier, tier=tier)
    pool.run(80, {"one": 100, "two": 1_000, "five": 340}.get)
    expected = {"one": 1 / 8, "two": 2 / 8, "five": 5 / 8}
    assert pool.shares() == pytest.approx(expected, abs=0.01)


def test_who_puts_its_next_long_task_when_the_last_one_started_has_its_share(make_pool):
    """Its debt is ahead of the ring when it is known, and its mean is forgotten each time."""
    pool = make_pool(4)
    pool.keep(*(f"t{number}" for number in range(7)))
    pool.shop.put("chain")

    def length_of(tenant):
        if tenant == "chain":
            pool.shop.put("chain")
        return 3_400 if tenant == "chain" else 100

    pool.run(80, length_of)
    assert pool.shares()["chain"] == pytest.approx(1 / 8, abs=0.01)


def test_a_limit_that_is_shared_is_divided_by_time_too(make_pool):
    pool = make_pool(4)
    pool.keep("long", "short", limits=(Limit("api", concurrency=2),))
    pool.run(100, {"long": 3_400, "short": 100}.get)
    assert pool.shares() == pytest.approx({"long": 0.5, "short": 0.5}, abs=0.02)
