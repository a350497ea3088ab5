"""Overrides, and tenants that are paused: in the model and the scripts."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit

ONE = Limit("api", 1)
FREE = Limit("api")
RATE = Limit("rate", rates=((1, 1_000),))
SECOND = 1_000
TENANT = "tenant:a"


def override(pair, key, lasts_ms=None, enforcement="on", **numbers):
    """Set numbers of a key; without any, clear them."""
    said = tuple(numbers.items()) if numbers else None
    pair.both.run(("override", key, said, lasts_ms, enforcement))


def pause(pair, key=TENANT, wait_ms=0, how="pause"):
    pair.both.run(("stop", how, key, wait_ms, "on"))


def test_a_raised_number_acts_on_what_waits_at_the_next_claim(pair):
    pair.put("a", ONE, times=3)
    assert pair.claim()[0] == [1]
    assert pair.claim()[0] == []
    override(pair, "api", concurrency=2)
    assert pair.model.rings["q"].bell
    assert pair.claim()[0] == [2]


@pytest.mark.parametrize("number", [None, 5])
def test_a_lowered_number_lets_what_runs_run_on(pair, number):
    pair.put("a", FREE._replace(concurrency=number), times=4)
    assert pair.claim(want=2)[0] == [1, 2]
    override(pair, "api", concurrency=1)
    assert pair.claim()[0] == []
    pair.end_one(0)
    assert pair.claim()[0] == []
    pair.end_one(0)
    assert pair.claim()[0] == [3]


def test_a_cleared_override_leaves_the_numbers_of_the_tasks(pair):
    pair.put("a", ONE, times=3)
    override(pair, "api", concurrency=2)
    assert pair.claim()[0] == [1, 2]
    override(pair, "api")
    pair.end_one(0)
    assert pair.claim()[0] == []
    pair.end()
    assert pair.claim()[0] == [3]


def test_an_override_of_0_pauses_until_its_end_and_not_a_moment_longer(pair):
    pair.put("a", FREE)
    override(pair, "api", 700, concurrency=0)
    assert pair.claim() == ([], 700)
    pair.at(699)
    assert pair.claim() == ([], 1)
    pair.at(700)
    assert pair.claim()[0] == [1]
    assert not pair.model.overrides.rows


def test_an_override_of_0_holds_whatever_is_enforced(pair):
    pair.put("a", FREE)
    override(pair, "api", concurrency=0)
    assert pair.claim(enforcement="off")[0] == []
    override(pair, "api")
    assert pair.claim(enforcement="off")[0] == [1]


def test_another_number_is_enforced_only_where_limits_are(pair):
    pair.put("a", FREE, times=2)
    override(pair, "api", concurrency=1)
    assert pair.claim(enforcement="off")[0] == [1, 2]


def test_what_is_not_said_is_as_the_tasks_have_it(pair):
    pair.put("a", Limit("api", 1, rates=((2, SECOND),)), times=3)
    override(pair, "api", concurrency=None)
    assert pair.claim()[0] == [1, 2]
    assert pair.claim()[0] == []
    pair.at(SECOND + 1)
    assert pair.claim()[0] == [3]


def test_a_rate_that_is_lifted_lets_all_start_and_one_that_is_set_counts_from_now(pair):
    pair.put("a", RATE, times=3)
    assert pair.claim()[0] == [1]
    override(pair, "rate", rates=())
    assert pair.claim()[0] == [2, 3]
    pair.put("b", Limit("slow"), times=3)
    override(pair, "slow", rates=((2, SECOND),))
    assert pair.claim()[0] == [4, 5]


def test_a_rate_that_is_raised_acts_at_once_on_a_key_with_a_history(pair):
    pair.put("a", Limit("rate", rates=((2, SECOND),)), times=20)
    for number, now in enumerate((0, 1_001, 2_002, 3_003)):
        pair.at(now)
        assert pair.claim()[0] == [2 * number + 1, 2 * number + 2]
    pair.at(3_300)
    override(pair, "rate", rates=((5, SECOND),))
    assert pair.claim(want=9)[0] == [9, 10, 11]
    assert pair.claim() == ([], 704)
    pair.at(4_004)
    assert pair.claim()[0] == [12, 13]


def test_a_throttle_that_is_set_spaces_the_starts(pair):
    pair.put("a", FREE, times=2)
    override(pair, "api", throttle=(2, SECOND))
    assert pair.claim() == ([1], 0)
    # The first may be late by a tenth of its interval.
    assert pair.claim() == ([], 450)


@pytest.mark.parametrize("enforcement", ["observe", "off"])
def test_what_started_while_nothing_was_enforced_leaves_a_throttle_no_debt(pair, enforcement):
    pair.put("a", Limit("slow", throttle=(1, SECOND)), times=20)
    assert len(pair.claim(want=10, enforcement=enforcement)[0]) == 10
    pair.at(300)
    assert pair.claim(want=1, enforcement=enforcement)[0] == [11]
    seen = []
    for now in range(350, 4_500, 50):
        pair.at(now)
        seen += [now] * len(pair.claim()[0])
    assert seen == [1_300, 2_300, 3_300, 4_300]


def test_a_later_override_stands_in_the_place_of_the_one_before(pair):
    pair.put("a", ONE, times=2)
    override(pair, "api", 5_000, concurrency=0)
    override(pair, "api", rates=((1, SECOND),))
    assert pair.claim()[0] == [1]
    pair.at(5_000)
    assert pair.model.overrides.rows["api"].ends_ms is None


def test_an_end_that_is_past_changes_nothing(pair):
    pair.put("a", ONE, times=2)
    override(pair, "api", concurrency=2)
    override(pair, "api", -1, concurrency=0)
    assert pair.claim()[0] == [1, 2]


def test_after_an_outage_an_override_ends_by_the_server_s_time(pair):
    pair.put("a", FREE)
    override(pair, "api", 600_000, concurrency=0)
    assert pair.claim()[0] == []
    # The logical clock has moved by five seconds.
    pair.at(3_600_000)
    assert pair.claim()[0] == [1]


# -- tenants ----------------------------------------------------------------------------------


def test_a_tenant_s_number_is_another_for_a_time(pair):
    pair.put("a", times=3)
    override(pair, TENANT, 700, concurrency=1)
    assert pair.claim()[0] == [1]
    assert pair.claim() == ([], 700)
    pair.at(700)
    assert pair.claim()[0] == [2, 3]


def test_a_tenant_that_is_paused_waits_and_others_go_on(pair):
    pair.put("a", times=2)
    pair.put("b")
    pause(pair)
    assert pair.claim() == ([3], 0)
    assert pair.claim(enforcement="off") == ([], SECOND)
    pause(pair, how="resume")
    assert pair.claim()[0] == [1, 2]


def test_a_pause_with_a_time_ends_by_itself(pair):
    pair.put("a")
    pause(pair, wait_ms=700)
    assert pair.claim() == ([], 700)
    pair.at(700)
    assert pair.claim()[0] == [1]
    assert not pair.model.stops.paused_until


def test_a_later_pause_stands_in_the_place_of_the_one_before(pair):
    pair.put("a")
    pause(pair)
    assert pair.claim()[0] == []
    pause(pair, wait_ms=700)
    pair.at(700)
    assert pair.claim()[0] == [1]


def test_a_key_of_limits_is_paused_for_a_time(pair):
    pair.put("a", FREE)
    pause(pair, "api", 700)
    assert pair.claim() == ([], 700)
    pair.at(700)
    assert pair.claim()[0] == [1]


def test_a_paused_tenant_is_paused_in_each_of_its_services(pair):
    for service in ("s", "t"):
        pair.both.run(("put", "q", None, "a", service, "", 0, 1.0, None, "x", ""))
    pause(pair)
    assert pair.claim()[0] == []
    pause(pair, how="resume")
    pause(pair, f"{TENANT}:s")
    assert pair.claim()[0] == [2]


def test_who_says_nothing_pays_nothing(pair):
    pair.put("a", times=2)
    pair.claim(want=1)
    pause(pair)
    pause(pair, how="resume")
    prefix, client = pair.both.scripts.prefix, pair.both.scripts.client
    assert client.hget(prefix + "clock", "steered") is None
    override(pair, "api", 700, concurrency=1)
    assert client.hget(prefix + "clock", "steered") == "1"
    pair.at(700)
    pair.claim(want=1)
    assert client.hget(prefix + "clock", "steered") is None
