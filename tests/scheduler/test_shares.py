"""Shares of tenants, in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from celery_fairness.config.tiers import Tier
from celery_fairness.scheduler.types import Rules

UNLIMITED = Rules(default_limit=None)


@pytest.fixture
def make(make_shop):
    return lambda rules=UNLIMITED: Installation(make_shop(rules=rules))


class Installation:
    """One worker with one place, and as many producers as you like."""

    def __init__(self, shop):
        self.shop = shop

    def put(self, tenant, amount=1, **fields):
        self.shop.put(tenant, times=amount, **fields)

    def start(self):
        self.shop.claim(1)
        return self.shop.answer.tasks[0] if self.shop.answer.tasks else None

    def end(self, task):
        self.shop.settle([task])

    def run(self):
        task = self.start()
        self.end(task)
        return task.key.removeprefix("tenant:")


def test_who_puts_its_next_task_when_the_last_one_started_gets_no_more_than_its_share(make):
    here = make()
    for tenant in range(20):
        here.put(f"t{tenant}", 200)
    here.put("chain")
    started = Counter()
    for _ in range(2_100):
        tenant = here.run()
        started[tenant] += 1
        if tenant == "chain":
            here.put("chain")
    assert started["chain"] == 100


def test_a_tenant_that_was_paused_gets_no_more_than_its_share_when_it_opens(make):
    here = make()
    for tenant in "abc":
        here.put(tenant, 1_000)
    here.shop.tenant("a", "free", 0)
    assert Counter(here.run() for _ in range(600)) == {"b": 300, "c": 300}
    here.shop.tenant("a", "free")
    assert Counter(here.run() for _ in range(600)) == pytest.approx(
        {"a": 200, "b": 200, "c": 200}, abs=1
    )


def test_weights_share_the_starts_and_new_weights_act_on_what_waits(make):
    here = make()
    tiers = ("one", "two", "five")
    here.shop.tiers(*(Tier(n, None, w) for n, w in zip(tiers, (1, 2, 5), strict=True)))
    for tier in tiers:
        here.put(tier, 1_000, tier=tier)
    assert Counter(here.run() for _ in range(800)) == pytest.approx(
        {"one": 100, "two": 200, "five": 500}, abs=1
    )
    here.shop.tiers(*(Tier(n, None, w) for n, w in zip(tiers, (5, 2, 1), strict=True)))
    assert Counter(here.run() for _ in range(800)) == pytest.approx(
        {"one": 500, "two": 200, "five": 100}, abs=2
    )


@pytest.mark.parametrize("quiet", [9, 99])
def test_each_quiet_tenant_starts_once_before_the_noisy_one_starts_twice_more(make, quiet):
    here = make()
    here.put("noisy", 500)
    for _ in range(50):
        here.run()
    for tenant in range(quiet):
        here.put(f"t{tenant}")
    started = [here.run() for _ in range(quiet + 2)]
    assert set(started) == {"noisy", *(f"t{n}" for n in range(quiet))}
    assert started.count("noisy") <= 2


def test_what_a_task_costs_is_charged(make):
    here = make(replace(UNLIMITED, fairness_by="cost"))
    here.put("dear", 100, cost=3.0)
    here.put("cheap", 300)
    assert Counter(here.run() for _ in range(200)) == {"dear": 50, "cheap": 150}


def test_a_limit_is_never_exceeded_and_the_freed_place_is_taken_at_once(make):
    here = make(Rules(default_limit=2))
    here.put("a", 5)
    first, second = here.start(), here.start()
    assert here.start() is None
    here.end(first)
    third = here.start()
    assert (third.lease, here.start()) == ("tag.3.1.w", None)
    here.end(second)
    here.end(third)
    assert [here.start().lease, here.start().lease] == ["tag.4.1.w", "tag.5.1.w"]
