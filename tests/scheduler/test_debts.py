"""How long debts are kept of tenants that have nothing waiting."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit
from tests.reference.budget import Budget

API = Limit("api", concurrency=1)


@pytest.fixture
def paused(shop):
    """One task waits for as long as a pause lasts."""
    shop.stop("pause", "tenant:paused")
    shop.put("paused", times=2)
    assert shop.claim()[0] == []
    return shop


def test_nobody_comes_back_with_less_than_the_others_once_a_claim_wants_more(paused):
    paused.put("a", times=3)
    assert paused.claim(want=4)[0] == [3, 4, 5]
    paused.stop("resume", "tenant:paused")
    assert paused.claim(queues=("other",))[0] == []
    paused.put("a", times=2)
    paused.put("b", times=2)
    first = paused.claim(want=3)[0]
    # One of each: nobody owes anything to the others.
    assert sorted(first) == [1, 6, 8]


def test_who_has_more_waiting_keeps_the_debts_of_the_others(paused):
    paused.put("a", times=3)
    paused.put("b", times=5)
    assert paused.claim(want=6)[0] == [3, 6, 4, 7, 5, 8]
    paused.put("b", times=2)
    paused.put("c", times=3)
    paused.put("a")
    # A tenant that is new has no debt and no claim to the past.
    given = paused.claim(want=3)[0]
    assert sorted(given) == [9, 13, 16]


@pytest.fixture
def waited(make_shop):
    """Somebody waits at a limit, in a queue whose workers are gone."""
    shop = make_shop(budget=Budget(tags=3))
    shop.put("first", API)
    assert shop.claim()[0] == [1]
    shop.put("gone", API, queue="other")
    assert shop.claim(queues=("other",))[0] == []
    shop.end()
    return shop


def test_who_waits_longer_at_a_limit_is_still_the_first_behind_many_debts(waited):
    for number in range(8):
        waited.put(f"t{number}", API)
        assert len(waited.claim(want=1)[0]) == 1
        waited.end()
    waited.put("last", API, times=2)
    assert waited.claim(want=1)[0] == [11]
    assert waited.claim(want=1)[0] == []
    waited.end()
    assert waited.claim(queues=("q", "other"))[0] == [2]
