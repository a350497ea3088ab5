"""A claim of several tasks of a group reads whose turn it is once: in the model and the scripts."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit

pytestmark = pytest.mark.redis

X, Y = Limit("x", 4), Limit("y", 4)


def _full(pair, *limits):
    for limit in limits:
        pair.put(f"holds-{limit.key}", limit, times=limit.concurrency)
    pair.claim(20)


def _opened(pair, milliseconds=50):
    assert pair.claim()[0] == []
    pair.end()
    pair.at(milliseconds)


def test_whose_turn_it_is_in_one_queue_says_nothing_of_another(pair):
    _full(pair, X)
    for tenant in "ab":
        pair.put(tenant, X, times=2)
    _opened(pair)
    for tenant in "cd":
        pair.put(tenant, queue="other", times=2)
    assert pair.claim(8, ("q", "other"))[0] == [5, 9, 7, 11, 6, 10, 8, 12]


def test_another_limit_that_is_open_has_its_turn(pair):
    _full(pair, X, Y)
    pair.put("a", X, times=4)
    pair.put("b", Y, times=4)
    _opened(pair)
    assert pair.claim(4)[0] == [9, 13, 10, 11]


def test_another_group_at_the_same_limit_has_its_turn(pair):
    _full(pair, X)
    pair.put("a", X, times=3)
    pair.put("b", X, Limit("w", 9), times=3)
    _opened(pair)
    assert pair.claim(4)[0] == [5, 8, 6, 9]


def test_a_tenant_that_stands_in_the_ring_too_was_charged_there(pair):
    _full(pair, X)
    pair.put("a", X, times=4)
    assert pair.claim()[0] == []
    pair.put("a", times=3)
    pair.put("c", times=3)
    pair.end()
    pair.at(50)
    assert pair.claim(7)[0] == [5, 12, 6, 13, 7, 14, 8]


def test_a_tenant_that_comes_into_the_ring_on_the_way_is_met_there(pair):
    pair.both.run(("tiers", (2, 1.0, None), (2, 1.0, None)))
    _full(pair, Limit("x", 2))
    for tenant in "ab":
        pair.put(tenant, Limit("x", 2), times=2)
    assert pair.claim()[0] == []
    pair.both.run(("gate", "b", "", "g1"))
    pair.both.run(("gate", "b", "", "g2"))
    pair.end()
    pair.at(50)
    pair.claim(2)
    assert "tenant:b" in pair.model.rings["q"].full


def test_the_time_of_a_key_that_goes_on_clears_what_it_has_passed(pair):
    _full(pair, Limit("x", 6))
    for tenant in "abc":
        pair.put(tenant, Limit("x", 6), times=3)
    _opened(pair)
    assert pair.claim(4)[0] == [7, 10, 13, 8]
    assert pair.claim(2)[0] == [11, 14]


def test_when_a_tenant_is_due_at_one_key_says_nothing_of_another(pair):
    one, two = Limit("x", 1), Limit("y", 2)
    _full(pair, one, two)
    pair.put("a", two)
    pair.put("z", two)
    assert pair.claim()[0] == []
    pair.end_one(1)
    assert pair.claim()[0] == [4]
    pair.put("a", one, two)
    assert pair.claim()[0] == []
    pair.end_one(0)
    pair.end_one(0)
    assert pair.claim(1)[0] == [6]
