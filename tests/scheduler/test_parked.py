"""Lanes that wait for limits, and what else happens to them."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.scheduler.types import Verdict

ONE = Limit("api", concurrency=1)
TWO = Limit("api", concurrency=2)


def test_what_one_queue_leaves_to_another_is_asked_for_once_more_by_the_same_claim(shop):
    shop.put("a", TWO, times=2)
    assert shop.claim()[0] == [1, 2]
    shop.put("b", TWO, queue="other")
    assert shop.claim(queues=("other",))[0] == []
    shop.put("a", TWO)
    assert shop.claim()[0] == []
    shop.end_one(0)
    # From now on b is due before a.
    assert shop.claim()[0] == [4]
    shop.put("a", TWO)
    assert shop.claim()[0] == []
    shop.end()
    assert shop.claim(queues=("q", "other"))[0] == [3, 5]


def test_what_came_back_is_withdrawn_from_the_group_in_which_it_waits(shop):
    shop.put("z", ONE)
    assert shop.claim()[0] == [1]
    shop.end(Verdict.HEAD)
    shop.put("b", ONE)
    assert shop.claim(want=1)[0] == [2]
    assert shop.claim()[0] == []
    assert shop.exists() == [1, 2]
    shop.end_late(0)
    assert shop.exists() == [2]
    shop.end()
    assert shop.claim() == ([], 1_000)


@pytest.mark.parametrize("moves", [False, True])
def test_what_a_late_end_takes_out_expires_no_more(shop, moves):
    shop.put("a", queue="s_default", expires=1_000)
    assert shop.claim(queues=("s_default",))[0] == [1]
    shop.end()
    shop.put("a", queue="s_default", number=1, expires=1_000)
    if moves:
        assert shop.move({1: ""}, "s_priority") == [True]
    shop.end_late(0)
    assert shop.exists() == []
    shop.at(2_000)
    assert shop.claim(queues=("s_default", "s_priority")) == ([], 1_000)
    assert shop.next_outcome() is None


def test_a_tenant_whose_last_ready_task_is_withdrawn_leaves_the_ring(shop):
    shop.put("b", ONE)
    assert shop.claim()[0] == [1]
    shop.put("a")
    assert shop.claim()[0] == [2]
    shop.put("a", ONE)
    assert shop.claim()[0] == []
    shop.end_one(1, Verdict.HEAD)
    shop.end_late(1)
    shop.end()
    assert shop.claim()[0] == [3]


def test_a_tenant_whose_ready_task_is_dropped_leaves_the_ring_whatever_is_passed_over(shop):
    drop = Limit("drop", concurrency=1, on_limit="drop")
    shop.put("b", ONE, drop)
    assert shop.claim()[0] == [1]
    shop.put("a", ONE)
    assert shop.claim()[0] == []
    shop.put("a", drop)
    assert shop.claim(never=("y",))[0] == []
    assert shop.dropped() == [(3, "drop")]
    shop.end()
    assert shop.claim(never=("y",))[0] == [2]


def test_a_worker_that_enforces_nothing_goes_on_at_once_where_it_opened_all_it_may(shop):
    limits = [Limit(f"k{number}", concurrency=1) for number in range(16)]
    for tenant in "ba":
        for limit in limits:
            shop.put(tenant, limit)
    given = shop.claim(want=16)[0]
    assert len(given) == 16
    shop.claim()
    shop.tenant("a", "held", 0)
    shop.tenant("b", "held", 0)
    assert shop.claim(enforcement="off") == ([], 0)
    assert shop.claim(enforcement="off") == ([], 1_000)


def test_what_was_entered_again_after_a_lost_memory_opens_all_that_it_frees(shop):
    shop.put("b", Limit("tenant:a", concurrency=1))
    assert shop.claim()[0] == [1]
    shop.renew(shop.granted[0])
    shop.lose()
    shop.at(100)
    shop.renew(shop.granted[0], epoch=shop.epoch)
    shop.tenant("a", "free", 1)
    shop.put("a")
    assert shop.claim()[0] == []
    shop.end_late(0)
    assert shop.claim()[0] == [2]
