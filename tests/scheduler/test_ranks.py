"""D-21: what a rank orders: the tasks of one tenant, or those of all tenants of a queue."""

from __future__ import annotations

from itertools import permutations

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.tiers import Tier
from tests.reference.budget import Budget

pytestmark = pytest.mark.redis

API = Limit("api", concurrency=1)


class ByScope:
    """One worker that claims by a scope, one task at a time."""

    def __init__(self, shop, scope):
        self.shop, self.scope = shop, scope

    def takes(self, times=1, **how):
        """Return the numbers of the tasks that single claims were given."""
        taken = []
        for _ in range(times):
            for _ in range(20):
                given, sleep_ms = self.shop.claim(1, scope=self.scope, **how)
                if given or sleep_ms:
                    break
            taken += given
        return taken


@pytest.fixture
def by_queue(shop):
    return ByScope(shop, "queue")


@pytest.fixture
def by_tenant(shop):
    return ByScope(shop, "tenant")


def test_s37_d21_by_tenant_a_rank_goes_before_its_tenants_tasks_alone(shop, by_tenant):
    shop.put("a", times=2)
    shop.put("b", rank=9, times=2)
    shop.put("a", rank=5)
    assert by_tenant.takes(5) == [5, 3, 1, 4, 2]


def test_s37_d21_by_queue_the_highest_rank_of_all_tenants_goes_first(shop, by_queue):
    shop.put("a", times=2)
    shop.put("b", rank=9, times=2)
    shop.put("a", rank=5)
    assert by_queue.takes(5) == [3, 4, 5, 1, 2]


@pytest.mark.parametrize("scope", ["tenant", "queue"])
def test_s37_what_its_limit_let_go_before_it_goes_behind_it_once_that_opens(shop, scope):
    by_scope = ByScope(shop, scope)
    shop.put("a", API, rank=9, times=2)
    shop.put("a", times=3)
    assert by_scope.takes(2) == [1, 3]
    shop.end_one(0)
    assert by_scope.takes(2) == [2, 4]


def test_s37_by_queue_a_limited_task_goes_before_lower_ranks_of_others_once_its_limit_opens(
    shop, by_queue
):
    shop.put("a", API, rank=9, times=2)
    shop.put("b", rank=5, times=3)
    assert by_queue.takes(2) == [1, 3]
    shop.end_one(0)
    assert by_queue.takes(2) == [2, 4]


def test_s37_by_queue_what_waited_for_a_limit_does_not_go_before_a_higher_rank(shop, by_queue):
    shop.put("a", API, rank=4, times=2)
    assert by_queue.takes(2) == [1]
    shop.put("b", rank=5)
    shop.put("c", rank=4)
    shop.end()
    # Of one rank the one with the lesser start goes first: the ring's time is where a's first was.
    assert by_queue.takes(3) == [3, 4, 2]


@pytest.mark.parametrize("ranks", sorted(permutations((0, 5, 7))))
def test_s37_by_queue_of_several_limits_that_open_the_highest_rank_goes_first(
    shop, by_queue, ranks
):
    limits = [Limit(name, concurrency=1) for name in "xyz"]
    for limit in limits:
        shop.put("holds", limit, rank=9)
    assert by_queue.takes(3) == [1, 2, 3]
    for limit, rank in zip(limits, ranks, strict=True):
        shop.put("ab"[rank > 5], limit, rank=rank)
    # Nobody is left in the ring: each waits at its limit.
    assert by_queue.takes() == []
    shop.put("c", rank=6)
    shop.end()
    number = dict(zip(ranks, (4, 5, 6), strict=True))
    assert by_queue.takes(4) == [number[7], 7, number[5], number[0]]


@pytest.mark.parametrize("scope", ["tenant", "queue"])
def test_s37_who_is_next_at_one_limit_its_own_time_says(shop, scope):
    """In both scopes: it is the time of all queues, whatever their claims ask for."""
    by_scope = ByScope(shop, scope)
    shop.put("a", API, times=3)
    assert by_scope.takes(2) == [1]
    shop.put("b", API, rank=9, times=2)
    shop.put("a", API, rank=5)
    order = []
    for _ in range(5):
        by_scope.takes(2)
        shop.end()
        order += by_scope.takes()
    # One tenant's go by rank there too.
    assert order == [6, 4, 2, 5, 3]


@pytest.mark.parametrize("scope", ["tenant", "queue"])
def test_s38_a_rank_that_is_at_its_limit_keeps_back_no_lower_one(shop, scope):
    by_scope = ByScope(shop, scope)
    shop.put("a", API, rank=9, times=3)
    shop.put("a", rank=1)
    shop.put("b", rank=0)
    assert by_scope.takes(3) == ([1, 5, 4] if scope == "tenant" else [1, 4, 5])


@pytest.mark.parametrize("scope", ["tenant", "queue"])
def test_s38_a_tenant_at_its_tiers_limit_keeps_back_no_lower_rank(shop, scope):
    by_scope = ByScope(shop, scope)
    shop.tiers(Tier("free", 1))
    shop.put("a", rank=9, times=2)
    shop.put("b")
    assert by_scope.takes(3) == [1, 3]
    shop.end_one(0)
    assert by_scope.takes(2) == [2]


def test_tenants_of_one_rank_are_served_fairly(shop, by_queue):
    shop.put("a", rank=5, times=4)
    shop.put("b", rank=5, times=2)
    shop.put("c", rank=0)
    assert by_queue.takes(7) == [1, 5, 2, 6, 3, 4, 7]


def test_a_tenant_goes_on_among_those_of_its_next_rank(shop, by_queue):
    shop.put("a", rank=9)
    shop.put("a", rank=2, times=2)
    shop.put("b", rank=2, times=2)
    # What its first task was charged stands against it.
    assert by_queue.takes(5) == [1, 4, 2, 5, 3]


def test_a_lower_rank_waits_as_long_as_a_higher_one_comes(shop, by_queue):
    """By design: whoever wants a share for each tenant leaves the scope at ``tenant``."""
    shop.put("slow")
    for number in range(2, 22):
        shop.put("urgent", rank=1)
        assert by_queue.takes() == [number]
    assert by_queue.takes() == [1]


def test_a_put_of_a_higher_rank_moves_its_tenant(shop, by_queue):
    shop.put("a", times=2)
    shop.put("b", rank=3, times=2)
    assert by_queue.takes() == [3]
    shop.put("a", rank=4)
    assert by_queue.takes(4) == [5, 4, 1, 2]


def test_a_task_that_comes_back_has_its_rank_again(shop, by_queue):
    shop.put("a", rank=7)
    shop.put("b", rank=6)
    assert by_queue.takes() == [1]
    shop.lapse()
    assert by_queue.takes(2) == [1, 2]


def test_of_whom_a_worker_takes_only_less_urgent_tasks_others_go_before(shop, by_queue):
    shop.put("a", kind="y", rank=9)
    shop.put("a", kind="x", rank=1)
    shop.put("b", kind="x", rank=5)
    assert by_queue.takes(3, never=("y",)) == [3, 2]
    assert by_queue.takes() == [1]


def test_more_of_whom_it_takes_less_than_it_may_pass_over_hide_nobody(make_shop):
    shop = make_shop(budget=Budget(passed=2))
    for tenant in "abcde":
        shop.put(tenant, kind="y", rank=9)
        shop.put(tenant, kind="x", rank=1)
    shop.put("f", kind="x", rank=5)
    places, ran = {}, []
    for _ in range(20):
        given, sleep_ms = shop.claim(1, never=("y",), scope="queue", places=places)
        places = {} if given or sleep_ms else shop.answer.passed
        ran += given
    assert sorted(ran) == [2, 4, 6, 8, 10, 11]


@pytest.mark.parametrize("moves", [1, 3, 64])
def test_a_scope_that_is_changed_orders_what_waits_already(make_shop, moves):
    shop = make_shop(budget=Budget(moves=moves))
    for number in range(8):
        shop.put(f"t{number}", rank=number)
    assert ByScope(shop, "tenant").takes(1) == [1]
    # As many claims as it takes to look at all who wait serve as before.
    by_queue = ByScope(shop, "queue")
    first = by_queue.takes(7)
    assert sorted(first) == [2, 3, 4, 5, 6, 7, 8]
    for number in range(8):
        shop.put(f"t{number}", rank=number)
    assert by_queue.takes(4) == [16, 15, 14, 13]
    assert ByScope(shop, "tenant").takes(4) == [9, 10, 11, 12]


def test_what_waited_before_the_change_is_in_order_at_once_where_few_tenants_wait(shop, by_queue):
    for number in range(8):
        shop.put(f"t{number}", rank=number)
    assert by_queue.takes(8) == [8, 7, 6, 5, 4, 3, 2, 1]


def test_claims_of_both_scopes_lose_and_starve_nobody(shop):
    for number in range(6):
        shop.put(f"t{number}", rank=number % 3, times=2)
    taken = []
    for turn in range(12):
        taken += ByScope(shop, ("tenant", "queue")[turn % 2]).takes()
    assert sorted(taken) == list(range(1, 13))
    assert ByScope(shop, "queue").takes() == []
