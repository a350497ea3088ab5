"""Overrides, and tenants that are paused."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit
from tests.support.limits import changed

ONE = Limit("api", concurrency=1)
FREE = Limit("api")
RATE = Limit("rate", rate=((1, 1_000),))
SECOND = 1_000
TENANT = "tenant:a"


def override(shop, key, lasts_ms=None, **numbers):
    """Set numbers of a key; without any, clear them."""
    shop.override(key, lasts_ms, **numbers)


def pause(shop, key=TENANT, wait_ms=0, how="pause"):
    shop.stop(how, key, wait_ms)


def test_a_raised_number_acts_on_what_waits_at_the_next_claim(shop):
    shop.put("a", ONE, times=3)
    assert shop.claim()[0] == [1]
    assert shop.claim()[0] == []
    override(shop, "api", concurrency=2)
    assert shop.is_woken()
    assert shop.claim()[0] == [2]


@pytest.mark.parametrize("number", [None, 5])
def test_a_lowered_number_lets_what_runs_run_on(shop, number):
    shop.put("a", changed(FREE, concurrency=number), times=4)
    assert shop.claim(want=2)[0] == [1, 2]
    override(shop, "api", concurrency=1)
    assert shop.claim()[0] == []
    shop.end_one(0)
    assert shop.claim()[0] == []
    shop.end_one(0)
    assert shop.claim()[0] == [3]


def test_a_cleared_override_leaves_the_numbers_of_the_tasks(shop):
    shop.put("a", ONE, times=3)
    override(shop, "api", concurrency=2)
    assert shop.claim()[0] == [1, 2]
    override(shop, "api")
    shop.end_one(0)
    assert shop.claim()[0] == []
    shop.end()
    assert shop.claim()[0] == [3]


def test_an_override_of_0_pauses_until_its_end_and_not_a_moment_longer(shop):
    shop.put("a", FREE)
    override(shop, "api", 700, concurrency=0)
    assert shop.claim() == ([], 700)
    shop.at(699)
    assert shop.claim() == ([], 1)
    shop.at(700)
    assert shop.claim()[0] == [1]


def test_an_override_of_0_holds_whatever_is_enforced(shop):
    shop.put("a", FREE)
    override(shop, "api", concurrency=0)
    assert shop.claim(enforcement="off")[0] == []
    override(shop, "api")
    assert shop.claim(enforcement="off")[0] == [1]


def test_another_number_is_enforced_only_where_limits_are(shop):
    shop.put("a", FREE, times=2)
    override(shop, "api", concurrency=1)
    assert shop.claim(enforcement="off")[0] == [1, 2]


def test_what_is_not_said_is_as_the_tasks_have_it(shop):
    shop.put("a", Limit("api", concurrency=1, rate=((2, SECOND),)), times=3)
    override(shop, "api", concurrency=None)
    assert shop.claim()[0] == [1, 2]
    assert shop.claim()[0] == []
    shop.at(SECOND + 1)
    assert shop.claim()[0] == [3]


def test_a_rate_that_is_lifted_lets_all_start_and_one_that_is_set_counts_from_now(shop):
    shop.put("a", RATE, times=3)
    assert shop.claim()[0] == [1]
    override(shop, "rate", rate=None)
    assert shop.claim()[0] == [2, 3]
    shop.put("b", Limit("slow"), times=3)
    override(shop, "slow", rate=((2, SECOND),))
    assert shop.claim()[0] == [4, 5]


def test_a_rate_that_is_raised_acts_at_once_on_a_key_with_a_history(shop):
    shop.put("a", Limit("rate", rate=((2, SECOND),)), times=20)
    for number, now in enumerate((0, 1_001, 2_002, 3_003)):
        shop.at(now)
        assert shop.claim()[0] == [2 * number + 1, 2 * number + 2]
    shop.at(3_300)
    override(shop, "rate", rate=((5, SECOND),))
    assert shop.claim(want=9)[0] == [9, 10, 11]
    assert shop.claim() == ([], 704)
    shop.at(4_004)
    assert shop.claim()[0] == [12, 13]


def test_a_throttle_that_is_set_spaces_the_starts(shop):
    shop.put("a", FREE, times=2)
    override(shop, "api", throttle=((2, SECOND),))
    assert shop.claim() == ([1], 0)
    # The first may be late by a tenth of its interval.
    assert shop.claim() == ([], 450)


@pytest.mark.parametrize("enforcement", ["observe", "off"])
def test_what_started_while_nothing_was_enforced_leaves_a_throttle_no_debt(shop, enforcement):
    shop.put("a", Limit("slow", throttle=((1, SECOND),)), times=20)
    assert len(shop.claim(want=10, enforcement=enforcement)[0]) == 10
    shop.at(300)
    assert shop.claim(want=1, enforcement=enforcement)[0] == [11]
    seen = []
    for now in range(350, 4_500, 50):
        shop.at(now)
        seen += [now] * len(shop.claim()[0])
    assert seen == [1_300, 2_300, 3_300, 4_300]


def test_a_later_override_stands_in_the_place_of_the_one_before(shop):
    shop.put("a", ONE, times=2)
    override(shop, "api", 5_000, concurrency=0)
    override(shop, "api", rate=((1, SECOND),))
    assert shop.claim()[0] == [1]
    shop.end()
    shop.at(5_000)
    assert shop.claim()[0] == [2]
    shop.end()
    shop.put("a", Limit("api"), times=2)
    assert shop.claim()[0] == [], "the later one has no end"


def test_an_end_that_is_past_changes_nothing(shop):
    shop.put("a", ONE, times=2)
    override(shop, "api", concurrency=2)
    override(shop, "api", -1, concurrency=0)
    assert shop.claim()[0] == [1, 2]


def test_after_an_outage_an_override_ends_by_the_server_s_time(shop):
    shop.put("a", FREE)
    override(shop, "api", 600_000, concurrency=0)
    assert shop.claim()[0] == []
    # The logical clock has moved by five seconds.
    shop.at(3_600_000)
    assert shop.claim()[0] == [1]


# -- tenants ----------------------------------------------------------------------------------


def test_a_tenant_s_number_is_another_for_a_time(shop):
    shop.put("a", times=3)
    override(shop, TENANT, 700, concurrency=1)
    assert shop.claim()[0] == [1]
    assert shop.claim() == ([], 700)
    shop.at(700)
    assert shop.claim()[0] == [2, 3]


def test_a_tenant_that_is_paused_waits_and_others_go_on(shop):
    shop.put("a", times=2)
    shop.put("b")
    pause(shop)
    assert shop.claim() == ([3], 0)
    assert shop.claim(enforcement="off") == ([], SECOND)
    pause(shop, how="resume")
    assert shop.claim()[0] == [1, 2]


def test_a_pause_with_a_time_ends_by_itself(shop):
    shop.put("a")
    pause(shop, wait_ms=700)
    assert shop.claim() == ([], 700)
    shop.at(700)
    assert shop.claim()[0] == [1]


def test_a_later_pause_stands_in_the_place_of_the_one_before(shop):
    shop.put("a")
    pause(shop)
    assert shop.claim()[0] == []
    pause(shop, wait_ms=700)
    shop.at(700)
    assert shop.claim()[0] == [1]


def test_a_key_of_limits_is_paused_for_a_time(shop):
    shop.put("a", FREE)
    pause(shop, "api", 700)
    assert shop.claim() == ([], 700)
    shop.at(700)
    assert shop.claim()[0] == [1]


def test_a_paused_tenant_is_paused_in_each_of_its_services(shop):
    for service in ("s", "t"):
        shop.put("a", service=service)
    pause(shop)
    assert shop.claim()[0] == []
    pause(shop, how="resume")
    pause(shop, f"{TENANT}:s")
    assert shop.claim()[0] == [2]
