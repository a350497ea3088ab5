"""D-21: with `priority_aging` a task that has waited long goes as one of the highest priority."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.tiers import Tier
from celery_fairness.scheduler.types import Verdict
from tests.scheduler.shop import RULES
from tests.scheduler.test_units import commands_of

pytestmark = pytest.mark.redis

API = Limit("api", concurrency=1)
AGING_MS = 10_000
LONG_MS = 60_000


class Aging:
    """One worker of one slot. Time stands still unless a test sets it."""

    def __init__(self, shop):
        self.shop = shop

    def takes(self, times=1, **how):
        """Return the numbers of the tasks that single claims were given. Each ends at once."""
        taken = []
        for _ in range(times):
            for _ in range(20):
                given, sleep_ms = self.shop.claim(1, **{"scope": "queue", **how})
                if given or sleep_ms:
                    break
            taken += given
            self.shop.end()
        return taken


@pytest.fixture
def aged(make_shop):
    return make_shop(rules=replace(RULES, priority_aging_ms=AGING_MS))


@pytest.fixture
def worker(aged):
    return Aging(aged)


def test_a_task_that_has_waited_long_goes_before_higher_priorities_that_are_new(aged, worker):
    aged.put("slow")
    aged.put("urgent", rank=8)
    aged.at(AGING_MS - 1)
    assert worker.takes() == [2]
    aged.put("urgent", rank=8)
    aged.at(AGING_MS)
    assert worker.takes(2) == [1, 3]


def test_it_takes_turns_with_the_highest_priority(aged, worker):
    aged.put("b")
    aged.put("c")
    aged.at(AGING_MS)
    aged.put("a", rank=9, times=2)
    assert worker.takes(4) == [3, 1, 2, 4]


def test_one_of_a_tenant_and_priority_goes_early_in_that_time(aged, worker):
    aged.put("slow", times=5)
    aged.put("urgent", rank=8, times=9)
    aged.at(AGING_MS)
    assert worker.takes(3) == [1, 6, 7]
    aged.at(2 * AGING_MS)
    assert worker.takes(3) == [2, 8, 9]


def test_each_priority_of_a_tenant_has_its_own_time(aged, worker):
    aged.put("slow", times=2)
    aged.put("slow", rank=3, times=2)
    aged.at(AGING_MS)
    aged.put("slow", rank=9)
    aged.put("urgent", rank=8)
    assert worker.takes(6) == [1, 3, 5, 6, 4, 2]


def test_a_tenants_own_urgent_tasks_lose_one_start_in_that_time(aged, worker):
    aged.put("a", times=50)
    aged.at(AGING_MS)
    aged.put("a", rank=9, times=4)
    assert worker.takes(5) == [1, 51, 52, 53, 54]


def test_a_long_backlog_goes_before_no_new_task_of_the_same_priority(aged, worker):
    """Otherwise the tenant that sends the most would go first."""
    aged.put("many", rank=5, times=20)
    aged.at(LONG_MS)
    assert worker.takes(2) == [1, 2]
    aged.put("new", rank=5)
    assert worker.takes(2) == [21, 3]


def test_waiting_that_is_shorter_than_the_time_since_the_last_start_counts(aged, worker):
    aged.put("slow", times=2)
    assert worker.takes(2) == [1, 2]
    aged.at(AGING_MS - 1)
    aged.put("slow")
    aged.put("urgent", rank=8, times=9)
    aged.at(2 * AGING_MS - 2)
    assert worker.takes() == [4]
    aged.at(2 * AGING_MS - 1)
    assert worker.takes(2) == [3, 5]


def test_a_task_that_came_after_the_first_request_hides_no_older_one(aged, worker):
    aged.put("slow")
    assert aged.claim(1, ["other"], scope="queue")[0] == []
    aged.at(AGING_MS // 2)
    aged.put("slow")
    aged.at(AGING_MS)
    aged.put("urgent", rank=8)
    assert worker.takes(2) == [1, 3]


def test_a_delayed_task_waits_from_its_time_on(aged, worker):
    aged.put("slow", later=LONG_MS)
    aged.put("urgent", rank=8, times=9)
    aged.at(LONG_MS)
    assert worker.takes() == [2]
    aged.at(LONG_MS + AGING_MS)
    assert worker.takes() == [1]


def test_a_task_that_comes_back_has_waited_since_its_put(aged, worker):
    aged.put("slow")
    assert aged.claim(1, scope="queue")[0] == [1]
    aged.at(AGING_MS - 1)
    aged.end(Verdict.HEAD)
    aged.put("urgent", rank=8, times=2)
    assert worker.takes() == [2]
    aged.at(AGING_MS)
    assert worker.takes() == [1]


@pytest.mark.parametrize("tenant", ["", "a"])
def test_at_one_limit_it_goes_before_its_tenants_urgent_tasks(aged, worker, tenant):
    aged.put(tenant, API, rank=8)
    assert aged.claim(1, scope="queue")[0] == [1]
    aged.put(tenant, API, times=2)
    aged.put(tenant, API, rank=8, times=3)
    assert aged.claim(1, scope="queue")[0] == []
    aged.at(AGING_MS)
    aged.renew()
    assert worker.takes(0) == []
    aged.end()
    assert worker.takes(3) == [2, 4, 5]


def test_a_task_at_an_open_limit_goes_before_higher_priorities_without_one(aged, worker):
    aged.put("holds", API, rank=9)
    aged.put("slow", API)
    assert aged.claim(2, scope="queue")[0] == [1]
    aged.put("urgent", rank=8, times=3)
    aged.end()
    assert worker.takes() == [3]
    aged.at(AGING_MS)
    assert worker.takes(2) == [2, 4]


def test_the_wait_at_a_tiers_limit_counts(aged, worker):
    aged.tiers(Tier("free", 1))
    aged.put("a", times=2)
    aged.put("urgent", rank=8, times=3)
    assert aged.claim(4, scope="queue")[0] == [3, 1]
    aged.end_one(0)
    assert worker.takes(0) == []
    aged.at(AGING_MS)
    aged.end()
    assert worker.takes(3) == [2, 4, 5]


@pytest.mark.parametrize("waits_at", [(), (API,)])
def test_tasks_that_waited_before_claims_requested_it_have_waited_too(aged, worker, waits_at):
    aged.put("holds", *waits_at)
    assert aged.claim(1, scope="tenant")[0] == [1]
    aged.put("slow", *waits_at)
    aged.put("slow", *waits_at, rank=8)
    if waits_at:
        assert aged.claim(1, scope="tenant")[0] == []
    aged.at(AGING_MS)
    aged.end()
    assert worker.takes(2) == [2, 3]


def test_the_first_of_a_priority_goes_whatever_its_name(aged, worker):
    """A task that is cancelled gives nothing to a later one of its name."""
    aged.put("slow", kind="x")
    aged.put("slow", kind="y")
    aged.put("slow", kind="x")
    aged.at(AGING_MS)
    assert worker.takes() == [1]
    aged.put("urgent", rank=8, times=5)
    aged.at(2 * AGING_MS)
    # The claim raises the second task, and takes nothing of its name.
    assert worker.takes(never=("y",)) == [4]
    aged.put("slow", kind="y")
    assert aged.cancel(2) == [True]
    aged.at(2 * AGING_MS + 1)
    assert worker.takes(2) == [3, 5]


def test_a_process_that_skips_a_task_takes_the_next_ones_by_their_priority(aged, worker):
    aged.put("a", kind="x")
    aged.at(AGING_MS)
    aged.put("a", kind="y", rank=2)
    aged.put("b", kind="y", rank=5)
    aged.put("c", kind="y", rank=8)
    assert worker.takes(4, never=("x",)) == [4, 3, 2]
    assert worker.takes() == [1]


def test_a_clock_that_goes_back_delays_it_and_stops_nothing(aged, worker):
    aged.at(LONG_MS)
    aged.put("slow")
    aged.at(0)
    aged.put("urgent", rank=8, times=2)
    aged.at(AGING_MS)
    assert worker.takes() == [2]
    aged.at(LONG_MS + AGING_MS)
    assert worker.takes() == [1]


@pytest.mark.parametrize("aging_ms", [None, AGING_MS])
def test_no_tenant_and_priority_waits_for_ever(make_shop, aging_ms):
    """Random floods. Without aging some priority starts nothing in the second half."""
    longest = []
    for seed in range(3):
        shop = make_shop(rules=replace(RULES, priority_aging_ms=aging_ms))
        longest.append(longest_wait(shop, Random(seed)))
    # Each tenant has two priorities below the highest. One start a step is enough for all tenants.
    bound_ms = AGING_MS + 3 * 2 * STEP_MS
    assert max(longest) <= bound_ms if aging_ms else max(longest) > 5 * bound_ms


STEP_MS = 1_000


def longest_wait(shop, random):
    """Return how long a tenant and priority with waiting tasks started nothing, in ms."""
    limits = ((), (), (API,))
    places = [(tenant, rank) for tenant in ("", "a", "b") for rank in (0, 4, 9)]
    often = {place: random.choice([0.2, 0.6, 1]) for place in places}
    number_of, waiting, since, longest = {}, dict.fromkeys(places, 0), dict.fromkeys(places, 0), 0
    for step in range(120):
        now = step * STEP_MS
        shop.at(now)
        for place, chance in often.items():
            if random.random() < chance:
                tenant, rank = place
                shop.put(tenant, *random.choice(limits), rank=rank)
                number_of[shop.tags] = place
                since[place] = since[place] if waiting[place] else now
                waiting[place] += 1
        for number in Aging(shop).takes():
            place = number_of[number]
            waiting[place] -= 1
            longest, since[place] = max(longest, now - since[place]), now
    return max(longest, *(now - since[place] for place in places if waiting[place]))


def commands_of_first_look(shop, lanes):
    """Return the commands of the first claim that requests it, with so many lanes of a tenant."""
    for number in range(lanes):
        shop.put("a", kind=f"k{number}")
    shop.claim(1)
    shop.rules = replace(RULES, priority_aging_ms=AGING_MS)
    return commands_of(shop, lambda: shop.claim(1, scope="queue"))


def test_the_first_claim_that_requests_it_reads_at_most_64_lanes_of_a_tenant(make_shop):
    commands_of_first_look(make_shop(), 9)
    few, most, more = (commands_of_first_look(make_shop(), each) for each in (40, 65, 90))
    assert few < most == more


def commands_of_a_look(shop, limits):
    """Return the commands of a claim that raises what waits at so many limits."""
    keys = [Limit(f"k{number}", concurrency=1) for number in range(limits)]
    for key in keys:
        shop.put("holds", key)
    assert len(shop.claim(limits, scope="queue")[0]) == limits
    for key in keys:
        shop.put("a", key)
    while shop.claim(limits, scope="queue") != ([], 1_000):
        pass
    shop.at(AGING_MS)
    return commands_of(shop, lambda: shop.claim(1, scope="queue"))


def test_a_claim_raises_what_waits_in_at_most_8_orders_of_a_tenant(make_shop):
    rules = replace(RULES, priority_aging_ms=AGING_MS)
    few, most, more = (commands_of_a_look(make_shop(rules=rules), each) for each in (5, 7, 11))
    assert few < most == more
