"""What each tenant gets, by the model alone: the promises of the ring in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from celery_fairness.config.tiers import Tier
from celery_fairness.scheduler.types import Rules, Settle, Verdict, Waiting
from tests.model.model import Scheduler

UNLIMITED = Rules(default_limit=None)


class Installation:
    """One worker with one place, and as many producers as you like."""

    def __init__(self, rules=UNLIMITED):
        self.now = 1_000_000
        self.model = Scheduler(lambda: self.now)
        self.rules = rules
        self.number = 0

    def put(self, tenant, amount=1, **fields):
        for _ in range(amount):
            self.number += 1
            self.model.put(Waiting("q", f"t{self.number}", tenant, **fields))

    def start(self):
        self.number += 1
        answer = self.model.claim("w", self.number, 1, ["q"], self.rules)
        return answer.tasks[0] if answer.tasks else None

    def end(self, task):
        self.model.settle([Settle(task.lease, Verdict.DONE, task.lane)], self.rules)

    def run(self):
        task = self.start()
        self.end(task)
        return task.key.removeprefix("tenant:")


def test_who_puts_its_next_task_when_the_last_one_started_gets_no_more_than_its_share():
    here = Installation()
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


def test_a_tenant_that_was_paused_gets_no_more_than_its_share_when_it_opens():
    here = Installation()
    for tenant in "abc":
        here.put(tenant, 1_000)
    here.model.publish_tenant("a", "free", "0")
    assert Counter(here.run() for _ in range(600)) == {"b": 300, "c": 300}
    here.model.publish_tenant("a", "free", "")
    assert Counter(here.run() for _ in range(600)) == pytest.approx(
        {"a": 200, "b": 200, "c": 200}, abs=1
    )


def test_weights_share_the_starts_and_new_weights_act_on_what_waits():
    here = Installation()
    tiers = ("one", "two", "five")
    here.model.publish_tiers([Tier(n, None, w) for n, w in zip(tiers, (1, 2, 5), strict=True)])
    for tier in tiers:
        here.put(tier, 1_000, tier=tier)
    assert Counter(here.run() for _ in range(800)) == pytest.approx(
        {"one": 100, "two": 200, "five": 500}, abs=1
    )
    here.model.publish_tiers([Tier(n, None, w) for n, w in zip(tiers, (5, 2, 1), strict=True)])
    assert Counter(here.run() for _ in range(800)) == pytest.approx(
        {"one": 500, "two": 200, "five": 100}, abs=2
    )


@pytest.mark.parametrize("quiet", [9, 99])
def test_each_quiet_tenant_starts_once_before_the_noisy_one_starts_twice_more(quiet):
    here = Installation()
    here.put("noisy", 5_000)
    for _ in range(50):
        here.run()
    for tenant in range(quiet):
        here.put(f"t{tenant}")
    started = [here.run() for _ in range(quiet + 2)]
    assert set(started) == {"noisy", *(f"t{n}" for n in range(quiet))}
    assert started.count("noisy") <= 2


def test_what_a_task_costs_is_charged():
    here = Installation(replace(UNLIMITED, fairness_by="cost"))
    here.put("dear", 100, cost=3.0)
    here.put("cheap", 300)
    assert Counter(here.run() for _ in range(200)) == {"dear": 50, "cheap": 150}


def test_a_limit_is_never_exceeded_and_the_freed_place_is_taken_at_once():
    here = Installation(Rules(default_limit=2))
    here.put("a", 5)
    first, second = here.start(), here.start()
    assert here.start() is None
    here.end(first)
    third = here.start()
    assert (third.lease, here.start()) == ("t3.1.w", None)
    here.end(second)
    here.end(third)
    assert [here.start().lease, here.start().lease] == ["t4.1.w", "t5.1.w"]
