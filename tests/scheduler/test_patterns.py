"""Overrides whose key ends in ``*``: which of them holds for a limit, and what a change wakes."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import OF_QUEUE, Limit
from tests.scheduler.shop import Shop

STRIPE, PAYPAL = Limit("api.stripe", concurrency=9), Limit("api.paypal", concurrency=9)


def everything(shop):
    """Claim until nothing starts any more. Return what started."""
    return [number for _ in range(9) for number in shop.claim(want=64)[0]]


def test_each_key_of_a_pattern_has_its_numbers_for_itself(shop):
    shop.override("api.*", concurrency=1)
    for limit in (STRIPE, PAYPAL, Limit("db", concurrency=9)):
        shop.put("a", limit, times=3)
    assert sorted(shop.claim()[0]) == [1, 4, 7, 8, 9]


@pytest.mark.parametrize(
    ("overrides", "starts"),
    [
        ({"api.stripe": 3, "api.*": 1}, 3),
        ({"api.stripe.*": 2, "api.*": 1}, 1),
        ({"a*": 1}, 9),
        ({"api.s*": 1}, 9),
        ({"*": 1}, 9),
        ({"*": 1, "api.*": 2}, 2),
    ],
)
def test_the_key_itself_goes_before_its_patterns_and_those_before_its_tasks(
    shop, overrides, starts
):
    for key, concurrency in overrides.items():
        shop.override(key, concurrency=concurrency)
    shop.put("a", STRIPE, times=9)
    assert len(shop.claim()[0]) == starts


def test_a_longer_pattern_goes_before_a_shorter_one_and_has_all_its_numbers(shop):
    shop.override("a.*", concurrency=1, rate=((1, 60_000),))
    shop.override("a.b:*", concurrency=3)
    shop.put("a", Limit("a.b:c", concurrency=9, rate=((5, 60_000),)), times=9)
    assert len(shop.claim()[0]) == 3


def test_behind_its_seventh_separator_a_key_has_no_pattern(shop):
    shop.override("a.a.a.a.a.a.a.a.*", concurrency=1)
    shop.put("a", Limit("a.a.a.a.a.a.a.a.a", concurrency=9), times=3)
    assert len(shop.claim()[0]) == 3
    shop.override("a.a.a.a.a.a.a.*", concurrency=4)
    shop.put("a", Limit("a.a.a.a.a.a.a.a.a", concurrency=9), times=3)
    assert len(shop.claim()[0]) == 1


def test_the_pattern_of_everything_holds_for_limits_whose_tasks_bring_no_number(shop):
    shop.override("*", concurrency=1)
    for limit in (Limit("bare"), Limit("api.bare"), Limit("api", concurrency=3)):
        shop.put("a", limit, times=4)
    assert len(shop.claim()[0]) == 1 + 1 + 3


def test_the_pattern_of_everything_holds_for_no_queue_and_no_tenant(shop):
    shop.limit_queue(how="declare", part={})
    shop.override("*", concurrency=1)
    shop.put("a", Limit("queue:q:1", of=OF_QUEUE), times=3)
    shop.put("b", Limit("tenant:other"), times=3)
    assert len(shop.claim()[0]) == 6


def test_a_concurrency_of_0_is_a_number_of_its_task(shop):
    shop.override("*", concurrency=1)
    shop.put("a", Limit("stopped", concurrency=0))
    assert shop.claim()[0] == []


def test_each_partition_of_a_queue_may_have_the_numbers_of_a_pattern(shop):
    shop.limit_queue(how="declare", part={"concurrency": 1})
    shop.override("queue:q:*", concurrency=2)
    for customer in "111222":
        shop.put("a", Limit(f"queue:q:{customer}", of=OF_QUEUE))
    assert len(shop.claim()[0]) == 4


def test_a_tenant_has_the_number_of_no_pattern(shop):
    shop.override("*", concurrency=0)
    shop.put("a", times=2)
    assert len(shop.claim()[0]) == 2


CHANGES = {
    "set": lambda shop: shop.override("api.*", concurrency=5),
    "cleared": lambda shop: shop.override("api.*"),
    "ended": lambda shop: None,
}


@pytest.mark.parametrize("least", [0, 1], ids=["stopped", "full"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_opens_every_limit_that_the_numbers_before_have_closed(shop, change, least):
    shop.at(0)
    if change != "set":
        shop.override("api.*", 1_000 if change == "ended" else None, concurrency=least)
    for number in range(40):
        limit = Limit(f"api.{number}", concurrency=least if change == "set" else 5)
        shop.put("a", limit, times=3)
    assert len(everything(shop)) == 40 * least
    shop.hear()
    CHANGES[change](shop)
    shop.at(1_000)
    if change != "ended":
        assert shop.is_woken()
    assert len(everything(shop)) == 40 * (3 - least)


def test_a_change_wakes_each_queue_with_a_closed_limit_and_no_other(shop):
    for queue in ("q", "p"):
        shop.put("a", Limit("api.x", concurrency=1), queue=queue, times=2)
    shop.put("a", queue="r")
    assert len(shop.claim(queues=("q", "p"))[0]) == 1
    shop.claim(queues=("q", "p"))
    for queue in ("q", "p", "r"):
        shop.hear(queue)
    shop.override("api.*", concurrency=9)
    assert [shop.is_woken(queue) for queue in ("q", "p", "r")] == [True, True, False]
    assert len(shop.claim(queues=("p",))[0]) == 2
    assert len(shop.claim(queues=("q",))[0]) == 1


def test_when_claims_have_looked_at_all_that_was_closed_nothing_is_left_of_a_change(shop):
    for number in range(40):
        shop.put("a", Limit(f"api.{number}", concurrency=1), times=2)
    everything(shop)
    shop.override("api.*", concurrency=1)
    assert shop.client.hexists(f"{shop.prefix}queue_limits", "look q")
    for _ in range(4):
        assert shop.claim()[0] == []
    assert not shop.client.exists(f"{shop.prefix}queue_limits")
    assert not shop.client.hexists(f"{shop.prefix}clock", "looks_again")


LEFT = {
    "cancelled": lambda shop: shop.cancel(2),
    "purged": Shop.purge,
    "moved": lambda shop: shop.move({2: ""}, "other"),
    "replaced": lambda shop: shop.put("a", unique="r|0|key"),
}


@pytest.mark.parametrize("how", LEFT)
def test_the_last_task_that_waits_at_a_limit_takes_the_note_of_a_change_along(shop, how):
    """No worker of the queue may come any more, and each claim reads the notes."""
    shop.put("a", Limit("api.x", concurrency=1))
    shop.put("a", Limit("api.x", concurrency=1), unique="r|0|key")
    for _ in range(2):
        shop.claim()
    shop.override("api.*", concurrency=1)
    assert shop.client.hexists(f"{shop.prefix}queue_limits", "look q")
    LEFT[how](shop)
    assert not shop.client.exists(f"{shop.prefix}queue_limits")
    assert not shop.client.hexists(f"{shop.prefix}clock", "looks_again")


def test_the_note_of_another_queue_stays(shop):
    for queue in ("q", "p"):
        shop.put("a", Limit("api.x", concurrency=1), queue=queue, times=2)
    for _ in range(2):
        shop.claim(queues=("q", "p"))
    shop.override("api.*", concurrency=4)
    shop.purge("q")
    assert len(shop.claim(queues=("p",))[0]) == 2
    assert not shop.client.exists(f"{shop.prefix}queue_limits")


def test_a_limit_that_closes_between_two_changes_is_looked_at_once_for_each(shop):
    limit = Limit("api.x", concurrency=1)
    shop.put("a", limit, times=4)
    shop.claim()
    for concurrency in (2, 3, 4):
        shop.override("api.*", concurrency=concurrency)
        assert len(shop.claim()[0]) == 1


def test_while_no_override_is_left_no_pattern_is_read(shop):
    shop.override("api.*", concurrency=1)
    shop.override("db", concurrency=1)
    shop.override("api.*")
    assert shop.client.hget(f"{shop.prefix}clock", "has_patterns")
    shop.override("db")
    assert not shop.client.hget(f"{shop.prefix}clock", "has_patterns")


def test_a_rate_of_a_pattern_counts_the_starts_of_each_key(shop):
    shop.at(0)
    shop.override("api.*", rate=((2, 700),))
    for limit in (Limit("api.x", rate=((9, 1_000),)), Limit("api.y", rate=((9, 1_000),))):
        shop.put("a", limit, times=3)
    assert len(shop.claim()[0]) == 4
    assert shop.claim()[1] == 701
