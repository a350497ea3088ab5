"""Reports of an API about its own limit: how many starts it leaves free, and until when."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Verdict
from tests.scheduler.shop import RULES, START_MS

SECOND = 1_000
API = Limit("api", concurrency=9)


@pytest.fixture
def shop(make_shop):
    """A worker whose clock may go on by twenty seconds in a call: a third of its lease."""
    return make_shop(rules=replace(RULES, lease_ms=60 * SECOND))


def report(shop, left=None, seconds=10, cool=None):
    """Report, and return for how long the key cools down, and what is left."""
    cool_ms = None if cool is None else cool * SECOND
    args = calls.report_args("api", cool_ms, left, seconds * SECOND, 60 * SECOND, str(shop.now))
    answer = json.loads(shop.run(calls.REPORT, args))
    return answer["cool_ms"], answer.get("reported")


def test_so_many_more_tasks_start_until_the_time(shop):
    shop.put("a", API, times=5)
    assert report(shop, 2) == (0, [2, START_MS + 10 * SECOND])
    assert shop.claim()[0] == [1, 2]
    assert shop.claim() == ([], 1_000)
    shop.at(9_500)
    assert shop.claim() == ([], 500)
    shop.at(10 * SECOND)
    assert shop.claim()[0] == [3, 4, 5]


def test_nothing_starts_if_none_is_left(shop):
    shop.put("a", API)
    assert report(shop, 0) == (10 * SECOND, [0, START_MS + 10 * SECOND])
    assert shop.claim()[0] == []
    shop.at(10 * SECOND)
    assert shop.claim()[0] == [1]


def test_a_report_of_the_same_window_only_lowers_the_number(shop):
    shop.put("a", API, times=5)
    report(shop, 3)
    assert report(shop, 7, 11)[1] == [3, START_MS + 10 * SECOND]
    assert report(shop, 1, 9)[1] == [1, START_MS + 10 * SECOND]
    assert shop.claim()[0] == [1]


def test_a_report_of_a_later_window_replaces_it_and_of_an_earlier_one_is_late(shop):
    report(shop, 1)
    assert report(shop, 5, 20)[1] == [5, START_MS + 20 * SECOND]
    assert report(shop, 0, 10) == (0, [5, START_MS + 20 * SECOND])


def test_ends_that_are_at_most_two_seconds_apart_are_of_one_window(shop):
    report(shop, 3)
    assert report(shop, 9, 12)[1] == [3, START_MS + 10 * SECOND]
    assert report(shop, 1, 8)[1] == [1, START_MS + 10 * SECOND]
    assert report(shop, 5, 12.001)[1] == [5, START_MS + 12_001]


def test_a_report_that_is_over_lowers_no_later_one(shop):
    report(shop, 3)
    shop.at(10 * SECOND)
    assert report(shop, 9, 1)[1] == [9, START_MS + 11 * SECOND]


def test_a_start_of_a_task_without_a_body_is_given_back(shop):
    shop.put("a", API, times=3)
    report(shop, 1)
    shop.at(1)
    assert shop.claim()[0] == [1]
    assert shop.claim()[0] == []
    shop.end_one(0, Verdict.HEAD, begun=False)
    assert shop.claim()[0] == [1]
    shop.end()
    assert shop.claim()[0] == []


def test_a_start_from_before_the_report_gives_nothing_back(shop):
    shop.put("a", API, times=3)
    assert shop.claim(1)[0] == [1]
    report(shop, 1)
    shop.end_one(0, Verdict.HEAD, begun=False)
    assert shop.claim()[0] == [1]
    assert shop.claim()[0] == []


@pytest.mark.parametrize("cool", [15, 9.999])
def test_a_start_that_is_given_back_ends_no_other_cool_down(shop, cool):
    """Another cool-down may end when the report does."""
    left = 1 if cool == 15 else 2
    shop.put("a", API, times=3)
    report(shop, left)
    shop.at(1)
    assert shop.claim(1)[0] == [1]
    report(shop, cool=cool)
    shop.end_one(0, Verdict.HEAD, begun=False)
    assert shop.claim()[0] == []
    shop.at(1 + round(cool * SECOND))
    assert shop.claim()[0] == [1, 2, 3]


def test_a_report_ends_at_its_time(shop):
    shop.put("a", API)
    report(shop, 1)
    assert shown(shop) == [1, START_MS + 10 * SECOND]
    shop.at(10 * SECOND)
    assert shown(shop) is None
    assert shop.claim()[0] == [1]
    # The start is none of those that were free, so the key does not cool down.
    assert not [kind for kind, _ in shop.events() if kind == "rate_limit.dynamic_adjusted"]
    assert not shop.client.hexists(f"{shop.prefix}window:api", "left")


def shown(shop):
    """Return the free starts of the report, and until when, as people see them."""
    rules = {"lease_ms": 60 * SECOND, "default_tier": "free", "tiers": {}, "enforcement": "on"}
    wanted = {"key": "api", "tenant_key": "", "tier": "", "app": "", "first": 0}
    args = calls.json_args(**rules, **wanted, frozen_ms=str(shop.now))
    return json.loads(shop.run(calls.INSPECT, args)).get("reported")


def test_a_cool_down_that_is_over_is_deleted_though_no_task_has_a_limit(shop):
    report(shop, 0)
    shop.at(10 * SECOND)
    shop.put("a")
    assert shop.claim()[0] == [1]
    assert not shop.client.keys(f"{shop.prefix}cool_downs")


def test_the_end_of_a_cool_down_by_a_person_ends_the_report(shop):
    shop.put("a", API, times=3)
    report(shop, 1)
    assert shop.claim()[0] == [1]
    shop.stop("clear", "api")
    assert shop.claim()[0] == [2, 3]
    # So it lowers no later report of its window.
    assert report(shop, 5) == (0, [5, START_MS + 10 * SECOND])


def test_an_override_does_not_lift_a_report(shop):
    shop.put("a", API, times=3)
    report(shop, 1)
    shop.override("api", concurrency=None)
    assert shop.claim()[0] == [1]


def test_a_rate_holds_beside_a_report_and_other_keys_do_not_care(shop):
    shop.put("a", Limit("api", rate=((2, 60 * SECOND),)), times=3)
    shop.put("b", Limit("other", concurrency=9), times=2)
    report(shop, 9)
    assert sorted(shop.claim()[0]) == [1, 2, 4, 5]
    report(shop, 0)
    shop.put("b", Limit("other", concurrency=9))
    assert shop.claim()[0] == [6]


def test_a_retry_after_beside_it_holds_for_its_own_time(shop):
    assert report(shop, 5, 10, cool=3) == (3 * SECOND, [5, START_MS + 10 * SECOND])
    shop.put("a", API)
    assert shop.claim()[0] == []
    shop.at(3 * SECOND)
    assert shop.claim()[0] == [1]


def test_a_report_shortens_no_cool_down(shop):
    report(shop, cool=15)
    assert report(shop, 0, 10) == (15 * SECOND, [0, START_MS + 10 * SECOND])


def test_a_report_leaves_nothing_behind(shop):
    report(shop, 5)
    for _ in range(5):
        shop.now += 20 * SECOND
        shop.renew()
        shop.check()
    assert not shop.client.keys(f"{shop.prefix}window:*")


def test_an_event_names_the_time(shop):
    report(shop, 0)
    ((kind, fields),) = shop.events()
    assert kind == "rate_limit.dynamic_adjusted"
    assert fields == {"key": "api", "until": str(START_MS + 10 * SECOND), "reason": "reported"}


def most_in(starts, period_ms):
    """Return the most starts in any window of a period."""
    return max(sum(at <= each < at + period_ms for each in starts) for at in starts)


@pytest.mark.parametrize(
    ("limits", "at_once", "in_a_second"),
    [
        ([Limit("burst", rate=((20, 12 * SECOND),))], 20, 20),
        ([Limit("quota", rate=((100, 60 * SECOND), (20, SECOND)))], 20, 20),
        ([Limit("even", throttle=((100, 60 * SECOND),))], 1, 2),
        ([Limit("window", rate=((100, 60 * SECOND),))], 100, 100),
    ],
)
def test_the_table_of_forms_holds_for_a_hundred_in_a_minute(shop, limits, at_once, in_a_second):
    """docs/reference/limits.md says how many start in a moment, and in any minute."""
    starts = []
    shop.put("a", *limits, times=260)
    for now in range(0, 150 * SECOND, 100):
        shop.at(now)
        if now % SECOND == 0 or len(starts) < 240:
            starts += [now] * len(shop.claim(256)[0])
            shop.settle(shop.answer.tasks)
    assert most_in(starts, 1) == at_once
    assert most_in(starts, SECOND) <= in_a_second
    # A throttle makes up for a late start by a tenth of its spacing.
    assert most_in(starts, 60 * SECOND) in (100, 101)
    assert len(starts) >= 240
