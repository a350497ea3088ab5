"""How often each limit rejected a start, by key and number."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.control.health.views import KeyRejections

#: Keys and strategies that are counted. Rejections of more keys are counted as those of one.
EXCEEDED_AT_MOST = 1000


def limited(*limits):
    return write_limits(tuple(limits))


def test_every_rejection_of_the_head_of_a_lane_is_counted_by_key_and_strategy(shop, fairness):
    shop.put("42", "t1")
    shop.put("42", "t2")
    shop.put(
        "1",
        "a1",
        limits=limited(Limit("api", concurrency=1), Limit("mail", rate=((1, 3_600_000),))),
    )
    shop.put("2", "a2", limits=limited(Limit("mail", rate=((1, 3_600_000),))))
    shop.put("3", "a3", limits=limited(Limit("api", concurrency=1)))
    assert len(shop.claim()) == 2
    assert fairness.stats.rejections().keys == (
        KeyRejections(key="api", strategy="concurrency", total=1),
        KeyRejections(key="tenant:42", strategy="concurrency", total=1),
        KeyRejections(key="mail", strategy="rate", total=1),
    )
    # Who was told of it is rejected again.
    fairness.limits.resume("api")
    shop.claim()
    assert (
        KeyRejections(key="api", strategy="concurrency", total=1)
        in fairness.stats.rejections().keys
    )


@pytest.mark.parametrize("on_limit", ["drop", "reschedule"])
def test_what_is_not_let_wait_is_counted_too(shop, fairness, on_limit):
    for number in range(3):
        shop.put(
            str(number),
            f"t{number}",
            limits=limited(Limit("api", concurrency=1, on_limit=on_limit)),
        )
    assert len(shop.claim()) == 1
    assert fairness.stats.rejections().keys == (
        KeyRejections(key="api", strategy="concurrency", total=2),
    )


def test_a_key_that_is_stopped_rejects_by_that(shop, fairness):
    shop.put("1", "t1", limits=limited(Limit("api", concurrency=1)))
    fairness.limits.pause("api")
    fairness.limits.cool_down("mail", for_seconds=60)
    shop.put("2", "t2", limits=limited(Limit("mail", concurrency=1)))
    assert not shop.claim()
    assert fairness.stats.rejections().keys == (
        KeyRejections(key="mail", strategy="cool-down", total=1),
        KeyRejections(key="api", strategy="paused", total=1),
    )


def test_tenants_leave_room_for_the_keys_of_others(shop, fairness, client):
    fields = {f"rejections concurrency tenant:{number}": 1 for number in range(EXCEEDED_AT_MOST)}
    client.hset(shop.key("counters"), mapping=fields)
    fairness.limits.pause("api")
    shop.put("1", "t1", limits=limited(Limit("api", concurrency=1)))
    assert not shop.claim()
    assert KeyRejections(key="api", strategy="paused", total=1) in fairness.stats.rejections().keys


@pytest.mark.parametrize(("others", "counted"), [(-1, "api"), (0, "_other")])
def test_keys_of_limits_have_a_bound_too(shop, fairness, client, others, counted):
    number = 2 * EXCEEDED_AT_MOST + others
    client.hset(shop.key("counters"), mapping={f"rejections paused k{n}": 1 for n in range(number)})
    fairness.limits.pause("api")
    shop.put("1", "t1", limits=limited(Limit("api", concurrency=1)))
    assert not shop.claim()
    assert client.hget(shop.key("counters"), f"rejections paused {counted}") == "1"


def test_of_too_many_keys_the_others_are_one(shop, fairness, client):
    fields = {f"rejections concurrency k{number}": 1 for number in range(EXCEEDED_AT_MOST - 2)}
    client.hset(shop.key("counters"), mapping=fields)
    for tenant in ("1", "2", "3"):
        for number in range(2):
            shop.put(tenant, f"{tenant}-{number}")
    shop.claim()
    found = {each.key: each.total for each in fairness.stats.rejections().keys}
    assert len(found) == EXCEEDED_AT_MOST, "and the rejections by the tier are a field too"
    assert {key: found.get(key) for key in ("tenant:1", "tenant:2", "_other")} == {
        "tenant:1": 1,
        "tenant:2": None,
        "_other": 2,
    }


def test_nothing_is_counted_where_nothing_rejects(shop, fairness):
    shop.put("42", "t1", limits=limited(Limit("api", concurrency=1)))
    assert len(shop.claim()) == 1
    assert fairness.stats.rejections().keys == ()
