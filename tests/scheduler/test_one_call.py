"""A call uses the facts that it has read until its end, and they stay true."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import WHOLE, Limit
from celery_fairness.scheduler.types import Settled

pytestmark = pytest.mark.redis


def test_what_a_tenant_starts_itself_counts_for_others_with_its_key(shop):
    shop.put("a", Limit("tenant:b", concurrency=2), times=3)
    shop.put("b", times=3)
    assert shop.claim(6)[0] == [1, 4, 5, 6]
    assert shop.held("tenant:b") == 4


def test_a_lease_that_was_entered_again_and_is_over_counts_when_it_begins_once_more(shop):
    two = Limit("api", concurrency=2)
    for tenant in "abc":
        shop.put(tenant, two)
    shop.renew()
    shop.save()
    assert shop.claim(1)[0] == [1]
    shop.renew(shop.granted[0], epoch=shop.epoch)
    shop.restore()
    shop.renew(shop.granted[0], epoch=1)
    for step in (5_001, 10_002, 15_003, 20_004):
        shop.at(step)
        shop.renew()
    assert len(shop.claim(3)[0]) == 2
    assert shop.held("api") == 2


def test_limits_of_two_queues_whose_names_read_alike_together_are_two(shop):
    for name, queue in (("qx", "q"), ("x", "qq")):
        for tenant in "ab":
            shop.put(tenant, Limit(name, concurrency=1), queue=queue, times=3)
    assert len(shop.claim(10, ("q", "qq"))[0]) == 2
    shop.at(7)
    shop.end()
    shop.at(20)
    assert len(shop.claim(2, ("q", "qq"))[0]) == 2
    assert (shop.held("qx"), shop.held("x")) == (1, 1)


def test_a_key_that_a_task_has_twice_is_checked_by_its_numbers_once(shop):
    shop.override("x", rate=((9, 3_000),), throttle=((2, 1_000),))
    shop.put("a", Limit("x", concurrency=1), Limit("x", concurrency=3))
    assert shop.claim()[0] == [1]


def test_more_keys_end_at_once_than_one_command_may_name(shop):
    tasks, keys = 50, 170
    for task in range(tasks):
        shop.put("a", *(Limit(f"k{task}.{key}") for key in range(keys)))
    while shop.claim(tasks)[0]:
        pass
    assert len(shop.granted) == tasks
    assert shop.settle(shop.granted) == [Settled.SETTLED] * tasks
    assert shop.exists() == []


def test_the_verdict_on_one_task_says_nothing_of_the_next(shop):
    api, mail = Limit("api", concurrency=1), Limit("mail", concurrency=1, on_limit="reschedule")
    shop.put("a", api, mail)
    assert shop.claim()[0] == [1]
    shop.put("b", api, mail)
    shop.put("c", api)
    assert shop.claim(5)[0] == []
    assert len(shop.later()) == 1
    shop.end()
    assert shop.claim(5)[0] == [3]


def test_limits_with_one_key_are_counted_together_and_asked_apart(shop):
    of_queue = Limit("x", rate=((2, 500),), of=WHOLE)
    shop.put("a", Limit("x", rate=((3, 1_000),)), of_queue, times=3)
    assert shop.claim(5)[0] == [1, 2]
