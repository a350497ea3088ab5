"""What tenants get where they are charged by units, by declared cost, or by the time they take."""

from __future__ import annotations

import heapq
from collections import Counter
from random import Random

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.tiers import Tier
from celery_fairness.scheduler.cost import FIRST_SECONDS
from celery_fairness.scheduler.types import Rules, Settle, Verdict, Waiting
from tests.model.model import Scheduler

BY_RUNTIME = Rules(default_limit=None, fairness_by="runtime")
LEASE_MS = BY_RUNTIME.lease_ms


class Pool:
    """A worker with places, in which tasks take their tenant's time."""

    def __init__(self, places, rules=BY_RUNTIME):
        self.now = 1_760_000_000_000
        self.model = Scheduler(lambda: self.now)
        self.places, self.rules = places, rules
        self.number = 0
        self.ends, self.always = [], {}
        self.seconds, self.starts = Counter(), Counter()

    def put(self, tenant, amount=1, queue="q", **fields):
        for _ in range(amount):
            self.number += 1
            waiting = Waiting(queue, f"t{self.number}", tenant, message=tenant, **fields)
            self.model.put(waiting)

    def keep(self, *tenants, **fields):
        """Something of these tenants always waits."""
        for tenant in tenants:
            self.always[tenant] = fields
            self.put(tenant, 2 * self.places, **fields)

    def claim(self, want=1):
        self.number += 1
        return self.model.claim("w", self.number, want, ["q"], self.rules).tasks

    def settle(self, task, verdict=Verdict.DONE):
        self.model.settle([Settle(task.lease, verdict, task.lane)], self.rules)

    def finish(self, tenant):
        ring, key = self.model.rings["q"], f"tenant:{tenant}"
        return next(each[key] for each in (ring.members, ring.full, ring.out) if key in each)

    def run(self, seconds, length_of):
        """Keep every place busy for a time; ``length_of`` says how long a tenant's next task is."""
        ends_at = self.now + round(seconds * 1000)
        while self.now < ends_at:
            for task in self.claim(self.places - len(self.ends)):
                length_ms = length_of(task.message)
                if task.message in self.always:
                    self.put(task.message, **self.always[task.message])
                heapq.heappush(self.ends, (self.now + length_ms, task.lease, task, length_ms))
                self.starts[task.message] += 1
            self.now, _, task, length_ms = heapq.heappop(self.ends)
            self.seconds[task.message] += length_ms / 1000
            self.settle(task)
            self.model.renew([(each[2].lease, each[2].key) for each in self.ends], LEASE_MS)

    def shares(self):
        return {each: held / self.seconds.total() for each, held in self.seconds.items()}


@pytest.mark.parametrize("places", [1, 4, 10])
def test_tenants_of_equal_weight_have_equal_worker_seconds(places):
    pool = Pool(places)
    pool.keep("long", "short")
    pool.run(240, {"long": 3_400, "short": 100}.get)
    assert pool.shares() == pytest.approx({"long": 0.5, "short": 0.5}, abs=0.01)


def test_by_tasks_they_have_equal_starts():
    pool = Pool(4, Rules(default_limit=None))
    pool.keep("long", "short")
    pool.run(240, {"long": 3_400, "short": 100}.get)
    assert abs(pool.starts["long"] - pool.starts["short"]) <= 5


def test_tasks_whose_length_nobody_could_expect_are_put_right():
    """A clamped refund would give this tenant 0.487."""
    random = Random(7)
    pool = Pool(3)
    pool.keep("bimodal", "even")
    pool.run(1_500, lambda tenant: 200 if tenant == "even" else random.choice([10] * 9 + [3_000]))
    assert pool.shares() == pytest.approx({"bimodal": 0.5, "even": 0.5}, abs=0.01)


def test_weights_divide_the_time():
    pool = Pool(4)
    pool.model.publish_tiers([Tier("one", None), Tier("two", None, 2.0), Tier("five", None, 5)])
    for tier in ("one", "two", "five"):
        pool.keep(tier, tier=tier)
    pool.run(400, {"one": 100, "two": 1_000, "five": 340}.get)
    expected = {"one": 1 / 8, "two": 2 / 8, "five": 5 / 8}
    assert pool.shares() == pytest.approx(expected, abs=0.01)


def test_who_puts_its_next_long_task_when_the_last_one_started_has_its_share():
    """Its debt is ahead of the ring when it is known, and its mean is forgotten each time."""
    pool = Pool(4)
    pool.keep(*(f"t{number}" for number in range(7)))
    pool.put("chain")

    def length_of(tenant):
        if tenant == "chain":
            pool.put("chain")
        return 3_400 if tenant == "chain" else 100

    pool.run(500, length_of)
    assert pool.shares()["chain"] == pytest.approx(1 / 8, abs=0.01)


def test_an_estimate_is_the_mean_of_the_last_runs():
    pool = Pool(1)
    pool.put("a", 4)
    for length_ms in (8_000, 16_000):
        before = pool.finish("a")
        (task,) = pool.claim()
        expected = FIRST_SECONDS if length_ms == 8_000 else 8.0
        assert pool.finish("a") - before == expected
        for _ in range(length_ms // 4_000):
            pool.now += 4_000
            pool.model.renew([(task.lease, task.key)], LEASE_MS)
        pool.settle(task)
        assert pool.finish("a") - before == pytest.approx(length_ms / 1000)
    before = pool.finish("a")
    pool.claim()
    assert pool.finish("a") - before == 9.0


@pytest.mark.parametrize("verdict", [Verdict.DONE, Verdict.HEAD, Verdict.TAIL, Verdict.DIED])
def test_every_end_is_charged_what_it_held(verdict):
    pool = Pool(1)
    pool.put("a", 3)
    (task,) = pool.claim()
    pool.settle(task, Verdict.BEGUN)
    pool.now += 4_321
    pool.settle(task, verdict)
    assert pool.finish("a") == pytest.approx(4.321)
    assert not pool.model.charged


def test_a_worker_that_is_gone_held_its_place_until_its_lease_ended():
    pool = Pool(1)
    pool.put("a", 3)
    pool.put("b")
    (task,) = pool.claim()
    for _ in range(4):
        pool.now += LEASE_MS // 3
        pool.claim(0)
    assert task.lease not in pool.model.running
    assert pool.finish("a") == pytest.approx(LEASE_MS / 1000)
    assert not pool.model.charged


def test_an_outage_is_charged_a_third_of_a_lease_at_most():
    pool = Pool(1)
    pool.put("a", 3)
    (task,) = pool.claim()
    pool.now += 3_600_000
    pool.settle(task)
    assert pool.finish("a") == pytest.approx(LEASE_MS / 3_000)


def test_a_ring_that_began_anew_knows_no_old_debt():
    pool = Pool(2)
    pool.put("a", 50)
    for _ in range(49):
        (task,) = pool.claim()
        pool.now += 4_000
        pool.settle(task)
    (last,) = pool.claim()
    pool.now += 2_000
    pool.put("b", 2)
    pool.settle(last)
    # It lasted longer than anybody expects by less than these two seconds.
    assert pool.model.rings["q"].out.get("tenant:a", 0.0) <= 2.0
    pool.put("a")
    assert pool.finish("a") <= 2.0


def test_a_limit_that_is_shared_is_divided_by_time_too():
    pool = Pool(4)
    limits = write_limits((Limit("api", 2),))
    pool.keep("long", "short", limits=limits)
    pool.run(240, {"long": 3_400, "short": 100}.get)
    assert pool.shares() == pytest.approx({"long": 0.5, "short": 0.5}, abs=0.02)


@pytest.mark.parametrize("told_by", ["tasks", "cost", "runtime"])
def test_who_claims_by_time_is_put_right_by_whoever_hears_the_end(told_by):
    pool = Pool(1)
    pool.put("a", 3)
    (task,) = pool.claim()
    pool.now += 3_000
    pool.model.settle(
        [Settle(task.lease, Verdict.DONE, task.lane)],
        Rules(default_limit=None, fairness_by=told_by),
    )
    assert (pool.finish("a"), pool.model.charged) == (3.0, {})
    pool.rules = Rules(default_limit=None, fairness_by=told_by)
    pool.claim()
    assert pool.finish("a") == {"tasks": 4.0, "cost": 4.0, "runtime": 6.0}[told_by]
