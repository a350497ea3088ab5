"""Limits that many share: who is served, how much of a rate is used, and what it costs."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.tiers import Tier
from celery_fairness.scheduler.types import Passing, Rules, Settle, Verdict, Waiting
from tests.model.budget import Budget
from tests.model.candidates import Turns
from tests.model.model import Scheduler
from tests.model.passing import Look
from tests.model.window import Window

RULES = Rules(default_limit=None)


class Shop:
    """A scheduler, its clock, and one worker."""

    def __init__(self, rules=RULES):
        self.now = 1_760_000_000_000
        self.model = Scheduler(lambda: self.now)
        self.rules = rules
        self.number = self.tags = 0

    def put(self, tenant, *limits, queue="q", times=1, rank=0, tier="", cost=1.0):
        for _ in range(times):
            self.tags += 1
            self.model.put(
                Waiting(
                    queue,
                    f"t{self.tags}",
                    tenant,
                    tier=tier,
                    rank=rank,
                    cost=cost,
                    message=f"{tenant} {self.tags}",
                    limits=write_limits(limits),
                )
            )

    def claim(self, want=1, queues=("q",)):
        self.number += 1
        return self.model.claim("w", self.number, want, queues, self.rules)

    def done(self, *tasks):
        ends = [Settle(task.lease, Verdict.DONE, task.lane) for task in tasks]
        self.model.settle(ends, self.rules)

    def starts(self, times, queues=("q",)):
        """Run one task after the other; return whose they were."""
        told = []
        for _ in range(times):
            (task,) = self.claim(1, queues).tasks
            told.append(task.message.split()[0])
            self.done(task)
        return told


def test_a_shared_limit_is_divided_among_tenants_and_not_among_their_tasks():
    shop = Shop()
    shop.put("big", Limit("api", 1), times=90)
    for tenant in "abc":
        shop.put(tenant, Limit("api", 1), times=9)
    assert Counter(shop.starts(36)) == {"big": 9, "a": 9, "b": 9, "c": 9}


def test_it_is_divided_over_all_queues():
    """One tenant alone in a queue gets no more than one of many in another."""
    shop = Shop()
    shop.put("alone", Limit("api", 1), queue="p", times=60)
    for tenant in "abcde":
        shop.put(tenant, Limit("api", 1), times=60)
    shop.claim(1, ("p", "q"))
    seen = Counter(shop_starts_holding(shop, 60, ("p", "q")))
    assert {tenant: seen[tenant] for tenant in ("alone", *"abcde")} == pytest.approx(
        dict.fromkeys(("alone", *"abcde"), 10), abs=2
    )


def shop_starts_holding(shop, times, queues):
    """The slot is taken when the others are met, so that they wait; then it is passed on."""
    told = []
    for _ in range(times):
        shop.claim(1, queues)
        lease = next(iter(shop.model.running))
        task = shop.model.running[lease].task
        shop.model.settle([Settle(lease, Verdict.DONE, "x 0 q")], shop.rules)
        told.append(task.tenant)
    return told


def test_a_tenant_of_two_queues_has_one_share():
    shop = Shop()
    shop.put("both", Limit("api", 1), queue="p", times=60)
    shop.put("both", Limit("api", 1), times=60)
    for tenant in "ab":
        shop.put(tenant, Limit("api", 1), times=60)
    shop.claim(1, ("p", "q"))
    seen = Counter(shop_starts_holding(shop, 60, ("p", "q")))
    assert [seen[tenant] for tenant in ("both", "a", "b")] == pytest.approx([20] * 3, abs=2)


def test_a_limit_that_opens_gives_no_more_of_the_queue_than_the_share():
    shop = Shop()
    shop.put("limited", Limit("api", 1), times=100)
    shop.put("other", times=100)
    held = [shop.claim().tasks[0] for _ in range(3)]
    seen = Counter()
    for _ in range(60):
        shop.done(*held)
        held = list(shop.claim(1).tasks) + list(shop.claim(1).tasks)
        seen.update(task.message.split()[0] for task in held)
    assert abs(seen["limited"] - seen["other"]) <= 3, seen


def test_weights_hold_among_those_that_wait():
    shop = Shop()
    shop.model.publish_tiers(
        [Tier("one", None, 1.0), Tier("two", None, 2.0), Tier("five", None, 5)]
    )
    for tier in ("one", "two", "five"):
        shop.put(tier, Limit("api", 1), tier=tier, times=200)
    shares = Counter(shop_starts_holding(shop, 160, ("q",)))
    assert [shares[tier] for tier in ("one", "two", "five")] == pytest.approx([20, 40, 100], abs=2)


def test_other_work_costs_no_turn_at_the_limit():
    """A tenant that is busy elsewhere gets as much of a shared limit as one that is not."""
    shop = Shop()
    for tenant in ("busy", "idle"):
        shop.put(tenant, Limit("api", 1), times=100)
    shop.put("busy", times=100)
    seen = Counter()
    slot = None
    for _ in range(120):
        for task in shop.claim(2).tasks:
            if "api" in task.key:
                slot = task
                seen[task.message.split()[0]] += 1
            else:
                shop.done(task)
        if slot:
            shop.done(slot)
            slot = None
    assert abs(seen["busy"] - seen["idle"]) <= 2, seen


@pytest.mark.parametrize(("limit", "period_ms"), [(5, 1_000), (1_000, 10_000), (5_000, 10_000)])
def test_a_rate_is_used_and_never_broken(limit, period_ms):
    """Starts in any window, and in all of the time; claims come late and in bursts (P10)."""
    shop, random = Shop(), Random(1)
    rate = Limit("api", rates=((limit, period_ms),))
    starts, begun = [], shop.now
    tenants = [f"t{n}" for n in range(8)]
    for tenant in tenants:
        shop.put(tenant, rate, times=limit)
    while shop.now < begun + 5 * period_ms:
        claim = shop.claim(random.choice([1, 8, 64]))
        starts += [shop.now] * len(claim.tasks)
        shop.done(*claim.tasks)
        shop.now += claim.sleep_ms and max(1, min(claim.sleep_ms, period_ms // 50))
        shop.now += random.choice([0, 0, 0, 1])
    first = 0
    for last, at in enumerate(starts):
        while starts[first] <= at - period_ms:
            first += 1
        assert last - first < limit
    assert len(starts) >= 0.95 * limit * 5


def test_a_throttle_spaces_starts_evenly():
    shop, random = Shop(), Random(2)
    shop.put("a", Limit("api", throttle=(10, 1_000)), times=200)
    starts, begun = [], shop.now
    while shop.now < begun + 10_000:
        claim = shop.claim(4)
        starts += [shop.now] * len(claim.tasks)
        shop.now += max(1, claim.sleep_ms) + random.choice([0, 0, 1, 5])
    gaps = [after - before for before, after in pairwise(starts)]
    assert min(gaps) >= 90
    assert max(gaps) <= 110
    assert len(starts) >= 98


def test_the_newest_numbers_of_a_key_hold_for_all_that_wait():
    """Counts and numbers are those of the key: who came with other numbers waits no longer."""
    shop = Shop()
    shop.put("a", Limit("api", 5), times=10)
    shop.put("b", Limit("api", 7), times=10)
    started = [task.message.split()[0] for task in shop.claim(20).tasks]
    assert started == ["a", "b"] * 3 + ["a"]


def test_of_tenants_that_are_due_at_one_time_who_waits_longest_goes_first():
    """New tenants that come again and again pass nobody, whatever they are called."""
    shop = Shop()
    shop.put("held", Limit("api", 1))
    (held,) = shop.claim(1).tasks
    started = []
    for name in ("z", "y", "x"):
        shop.put(name, Limit("api", 1))
    assert shop.claim(1).tasks == ()
    for number in range(6):
        shop.put(f"new{number}", Limit("api", 1))
        shop.done(held)
        (held,) = shop.claim(1).tasks
        started.append(held.message.split()[0])
    assert started == ["z", "y", "x", "new0", "new1", "new2"]


def test_two_limits_cost_no_more_with_many_lanes():
    """F4: those that need two full limits move as one group."""
    spent = {}
    for lanes in (10, 300):
        shop = Shop()
        both = (Limit("x", 1), Limit("y", 1))
        shop.put("x", Limit("x", 1), times=50)
        shop.put("y", Limit("y", 1), times=50)
        held = list(shop.claim(2).tasks)
        for tenant in range(lanes):
            shop.put(f"t{tenant}", *both)
        while not shop.claim(1).sleep_ms:
            pass
        moves = 0
        for turn in range(20):
            shop.done(held.pop(0))
            turns = Turns(1_000)
            shop_find(shop, turns)
            moves += 1_000 - turns.moves
            held += shop.claim(1).tasks
            assert len(held) == 2, turn
        spent[lanes] = moves
    assert spent[300] == spent[10]


def shop_find(shop, turns):
    """Look for what is next as a claim does, and count its moves."""
    logical = shop.model.clock.read(shop.now, shop.rules.lease_ms)
    shop.model.find("q", logical, shop.rules, turns, Look(Passing(), Budget()))


def test_higher_priority_of_a_tenant_goes_before_its_lane_at_an_open_limit():
    """S-37: a limited task does not bypass the priority order."""
    shop = Shop()
    shop.put("a", Limit("api", 1), times=2)
    (first,) = shop.claim().tasks
    shop.claim()
    shop.put("a", rank=9)
    shop.done(first)
    assert [task.rank for task in shop.claim(3).tasks] == [9, 0]


def test_a_lower_priority_goes_while_the_higher_is_limited():
    """S-38."""
    shop = Shop()
    shop.put("a", Limit("api", 1), rank=9, times=2)
    shop.put("a", rank=0)
    assert [task.rank for task in shop.claim(3).tasks] == [9, 0]


def test_a_lane_that_is_never_empty_starves_no_other_of_its_tenant():
    """F20: the age of a lane is that of its first task."""
    shop = Shop()
    for _ in range(20):
        shop.put("a", Limit("x"))
        shop.put("a", Limit("y"))
    keys = [task.key.partition(",")[2] for task in shop.claim(20).tasks]
    assert Counter(keys) == {"x": 10, "y": 10}


def test_what_joins_an_open_group_wakes_a_worker_again():
    """F14: the bell that told of the opening may have gone to a worker that died."""
    shop = Shop()
    shop.put("a", Limit("api", 1), times=2)
    (first,) = shop.claim().tasks
    shop.claim()
    shop.done(first)
    ring = shop.model.rings["q"]
    assert ring.bell
    ring.bell = ring.left = False
    shop.put("a", Limit("api", 1))
    assert ring.bell


@pytest.mark.parametrize(("concurrency", "runs"), [(0, 0), (1, 2)])
def test_a_pause_holds_also_where_nothing_is_enforced(concurrency, runs):
    shop = Shop()
    shop.put("a", Limit("api", concurrency), times=2)
    shop.claim()
    shop.claim()
    shop.rules = Rules(default_limit=None, enforcement="off")
    shop.claim()
    assert len(shop.model.running) == runs


def test_a_window_counts_by_the_last_starts_alone():
    window, limit = Window(), Limit("api", rates=((3, 1_000),))
    for at in (0, 10, 20):
        window.start(limit, at)
    assert window.rate_wait_ms(3, 1_000, 20) == 981
    window.start(limit, 1_001)
    assert window.rate_wait_ms(3, 1_000, 1_001) == 10
    window.start(limit, 1_011)
    # One more than the rate: that it has left the window says that no other is in it.
    assert sorted(window.log.values()) == [10, 20, 1_001, 1_011]


@pytest.mark.parametrize("seed", range(20))
def test_a_rate_that_changes_counts_what_is_in_the_window(seed):
    random, window, starts = Random(seed), Window(), []
    rate, now = 1, 0
    for _ in range(500):
        if random.random() < 0.05:
            rate = random.choice([1, 2, 3, 8, 50])
        now += random.choice([0, 1, 30, 200])
        leaves = [each + 1_001 for each in starts[-rate:]] if len(starts) >= rate else [0]
        wait_ms = max(0, leaves[0] - now)
        assert window.rate_wait_ms(rate, 1_000, now) == wait_ms
        if not wait_ms:
            window.start(Limit("api", rates=((rate, 1_000),)), now)
            starts.append(now)


@pytest.mark.parametrize("rest", [0, 1, 60, 124])
def test_a_large_rate_that_is_raised_is_open_at_once(rest):
    window, limit = Window(), Limit("api", rates=((5_000, 1_000),))
    for at, starts in ((0, 5_000), (1_001, 5_000), (2_002, 5_000), (3_003, rest), (4_004, 5_000)):
        for _ in range(starts):
            window.start(limit, at)
    assert window.rate_wait_ms(5_000, 1_000, 4_100) > 0
    assert window.rate_wait_ms(10_000, 1_000, 4_100) == 0
    assert len(window.log) < 1_000 + 40
