"""Tasks that are rejected are reported once, and once when they start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.scheduler.types import Verdict
from tests.support.limits import changed

ONE = Limit("api", concurrency=1)
SECOND = 1_000


@pytest.fixture
def emitted(shop):
    """A function that returns the events of blocked tasks since it was called last."""

    def news():
        return [
            (what.rpartition(".")[2], fields.get("strategy", ""), number_of(fields))
            for what, fields in shop.events()
            if what.startswith("rate_limit.") or what == "fairness.cancelled"
        ]

    def number_of(fields):
        return int("".join(filter(str.isdigit, fields.get("job_id", "0"))))

    return news


def of_tier(shop, limit):
    """From now on a tenant may run so many."""
    shop.rules = replace(shop.rules, default_limit=limit)


def test_the_first_of_a_lane_is_reported_once_and_those_behind_it_in_their_turn(shop, emitted):
    shop.put("a", ONE, times=3)
    for _ in range(3):
        shop.claim()
    assert emitted() == [("exceeded", "concurrency", 2)]
    shop.end()
    for _ in range(3):
        shop.claim()
    assert emitted() == [("released", "concurrency", 2), ("exceeded", "concurrency", 3)]
    shop.end()
    shop.claim()
    assert emitted() == [("released", "concurrency", 3)]


def test_a_task_that_starts_at_once_emits_nothing(shop, emitted):
    shop.put("a", ONE)
    shop.put("b")
    assert shop.claim()[0] == [1, 2]
    assert emitted() == []


def test_an_event_says_whose_limit_it_was_and_how_much_is_used(shop):
    shop.put("b", times=1)
    shop.put("a", Limit("api", concurrency=2), times=3)
    shop.claim()
    ((what, fields),) = shop.events()
    assert what == "rate_limit.exceeded"
    assert fields == {
        "job_id": "id-4",
        "job_type": "x",
        "queue": "q",
        "key": "api",
        "strategy": "concurrency",
        "limit": "2",
        "current": "2",
    }


@pytest.mark.parametrize(
    ("limit", "strategy", "number", "until"),
    [
        (Limit("api", rate=((9, 100), (2, SECOND))), "rate", "2", SECOND + 1),
        (Limit("api", throttle=((1, SECOND),)), "throttle", "1", SECOND),
    ],
)
def test_rates_and_throttles_say_their_number(shop, emitted, limit, strategy, number, until):
    shop.put("a", limit, times=3)
    started = len(shop.claim()[0])
    ((_, fields),) = shop.events()
    assert (fields["strategy"], fields["limit"], fields["current"]) == (strategy, number, number)
    shop.at(until)
    shop.claim(want=1)
    assert emitted()[0] == ("released", strategy, started + 1)


@pytest.mark.parametrize(
    ("how", "ends", "strategy"), [("pause", "resume", "paused"), ("cool", "clear", "cool-down")]
)
def test_a_key_that_is_stopped_blocks_too(shop, emitted, how, ends, strategy):
    shop.stop(how, "api", SECOND)
    shop.put("a", ONE)
    shop.claim()
    what, fields = shop.events()[-1]
    assert (what, fields["strategy"], fields["limit"]) == ("rate_limit.exceeded", strategy, "0")
    shop.stop(ends, "api")
    shop.claim()
    assert emitted()[-1] == ("released", strategy, 1)


def test_a_tenant_at_its_tiers_limit_is_reported_as_one_task(shop, emitted):
    of_tier(shop, 1)
    shop.put("a", times=5)
    for _ in range(4):
        shop.claim()
    ((what, fields),) = shop.events()
    assert (what, fields["job_id"]) == ("rate_limit.exceeded", "id-2")
    assert (fields["strategy"], fields["key"]) == ("concurrency", "tenant:a")
    shop.end()
    shop.claim()
    assert emitted() == [("released", "concurrency", 2), ("exceeded", "concurrency", 3)]


def test_a_tenant_that_may_run_nothing_is_paused(shop, emitted):
    of_tier(shop, 0)
    shop.put("a")
    shop.claim()
    assert emitted() == [("exceeded", "paused", 1)]


def test_a_tenant_is_reported_once_over_two_limits(shop, emitted):
    """It waits for its key, then for its tier: what was reported first is what releases it."""
    of_tier(shop, 1)
    shop.put("b", ONE)
    shop.claim()
    shop.put("a")
    shop.put("a", ONE, rank=5)
    shop.claim()
    shop.end_one(0)
    shop.claim()
    shop.end()
    shop.claim()
    events = emitted()
    assert events.count(("exceeded", "concurrency", 3)) == 1
    assert events.count(("released", "concurrency", 3)) == 1


@pytest.mark.parametrize("verdict", [Verdict.HEAD, Verdict.TAIL, Verdict.DIED])
def test_a_task_that_comes_back_emits_nothing_more(shop, emitted, verdict):
    shop.put("a", ONE, times=2)
    shop.claim()
    shop.end()
    assert shop.claim()[0] == [2]
    assert emitted() == [("exceeded", "concurrency", 2), ("released", "concurrency", 2)]
    shop.end(verdict)
    shop.stop("pause", "api")
    shop.claim()
    shop.stop("resume", "api")
    assert shop.claim()[0] == [2]
    assert emitted() == []


def test_a_head_that_came_back_is_reported_for_the_first_time(shop, emitted):
    shop.put("a", ONE)
    assert shop.claim()[0] == [1]
    shop.end(Verdict.HEAD)
    shop.stop("pause", "api")
    shop.claim()
    assert emitted() == [("exceeded", "paused", 1)]
    shop.stop("resume", "api")
    shop.claim()
    assert emitted() == [("released", "paused", 1)]


def test_one_that_is_cancelled_while_it_is_blocked_never_starts(shop, emitted):
    shop.put("a", ONE, times=3)
    shop.claim()
    assert emitted() == [("exceeded", "concurrency", 2)]
    shop.cancel(2)
    assert emitted() == [("cancelled", "", 2)]
    shop.end()
    assert shop.claim()[0] == [3]
    assert emitted() == []


def test_one_that_is_tried_again_is_blocked_and_one_that_is_dropped_is_not(shop, emitted):
    shop.put("a", changed(ONE, on_limit="reschedule"), times=2)
    shop.claim()
    assert emitted() == [("exceeded", "concurrency", 2)]
    shop.at(10 * SECOND)
    shop.claim()
    assert emitted() == []
    shop.end()
    shop.at(20 * SECOND)
    assert shop.claim()[0] == [2]
    assert emitted() == [("released", "concurrency", 2)]
    shop.put("b", changed(ONE, on_limit="drop"))
    shop.claim()
    assert emitted() == [("dropped", "", 3)]


@pytest.mark.parametrize("enforcement", ["off", "observe"])
def test_who_enforces_nothing_blocks_nothing(shop, emitted, enforcement):
    of_tier(shop, 1)
    shop.put("a", ONE, times=3)
    assert shop.claim(enforcement=enforcement)[0] == [1, 2, 3]
    assert emitted() == []
