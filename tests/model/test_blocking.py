"""Tasks that are refused are told once, and once when they start: in the model and the scripts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.scheduler.types import Verdict

ONE = Limit("api", 1)
SECOND = 1_000


@pytest.fixture
def told(pair):
    """A function that returns what was told of blocked tasks since it was called last."""
    seen = 0

    def news():
        nonlocal seen
        events = pair.model.happenings.told[seen:]
        seen += len(events)
        return [
            (what.rpartition(".")[2], fields.get("strategy", ""), number_of(fields))
            for what, fields in events
            if what.startswith("rate_limit.") or what == "fairness.cancelled"
        ]

    def number_of(fields):
        return int("".join(filter(str.isdigit, fields.get("job_id", "0"))))

    return news


def of_tier(pair, limit):
    """From now on a tenant may run so many."""
    pair.both.scene = replace(
        pair.both.scene, rules=replace(pair.both.scene.rules, default_limit=limit)
    )


def test_the_first_of_a_lane_is_told_once_and_those_behind_it_in_their_turn(pair, told):
    pair.put("a", ONE, times=3)
    for _ in range(3):
        pair.claim()
    assert told() == [("exceeded", "concurrency", 2)]
    pair.end()
    for _ in range(3):
        pair.claim()
    assert told() == [("released", "concurrency", 2), ("exceeded", "concurrency", 3)]
    pair.end()
    pair.claim()
    assert told() == [("released", "concurrency", 3)]


def test_what_starts_at_once_is_told_of_nothing(pair, told):
    pair.put("a", ONE)
    pair.put("b")
    assert pair.claim()[0] == [1, 2]
    assert told() == []


def test_an_event_says_whose_limit_it_was_and_how_much_is_used(pair):
    pair.put("b", times=1)
    pair.put("a", Limit("api", 2), times=3)
    pair.claim()
    ((what, fields),) = pair.model.happenings.told
    assert what == "rate_limit.exceeded"
    assert fields == {
        "job_id": "id-4",
        "job_type": "shop.send",
        "queue": "q",
        "key": "api",
        "strategy": "concurrency",
        "limit": "2",
        "current": "2",
    }


@pytest.mark.parametrize(
    ("limit", "strategy", "number", "until"),
    [
        (Limit("api", rates=((9, 100), (2, SECOND))), "rate", "2", SECOND + 1),
        (Limit("api", throttle=(1, SECOND)), "throttle", "1", SECOND),
    ],
)
def test_rates_and_throttles_say_their_number(pair, told, limit, strategy, number, until):
    pair.put("a", limit, times=3)
    started = len(pair.claim()[0])
    ((_, fields),) = pair.model.happenings.told
    assert (fields["strategy"], fields["limit"], fields["current"]) == (strategy, number, number)
    pair.at(until)
    pair.claim(want=1)
    assert told()[1] == ("released", strategy, started + 1)


@pytest.mark.parametrize(
    ("how", "ends", "strategy"), [("pause", "resume", "paused"), ("cool", "clear", "cool-down")]
)
def test_a_key_that_is_stopped_blocks_too(pair, told, how, ends, strategy):
    pair.both.run(("stop", how, "api", SECOND, "on"))
    pair.put("a", ONE)
    pair.claim()
    assert told()[-1] == ("exceeded", strategy, 1)
    assert pair.model.happenings.told[-1][1]["limit"] == "0"
    pair.both.run(("stop", ends, "api", 0, "on"))
    pair.claim()
    assert told()[-1] == ("released", strategy, 1)


def test_a_tenant_at_its_tiers_limit_is_told_as_one_task(pair, told):
    of_tier(pair, 1)
    pair.put("a", times=5)
    for _ in range(4):
        pair.claim()
    assert told() == [("exceeded", "concurrency", 2)]
    assert pair.model.happenings.told[-1][1]["key"] == "tenant:a"
    pair.end()
    pair.claim()
    assert told() == [("released", "concurrency", 2), ("exceeded", "concurrency", 3)]


def test_a_tenant_that_may_run_nothing_is_paused(pair, told):
    of_tier(pair, 0)
    pair.put("a")
    pair.claim()
    assert told() == [("exceeded", "paused", 1)]


def test_a_tenant_is_told_once_over_two_limits(pair, told):
    """It waits for its key, then for its tier: what it was told of first is what releases it."""
    of_tier(pair, 1)
    pair.put("b", ONE)
    pair.claim()
    pair.put("a")
    pair.put("a", ONE, rank=5)
    pair.claim()
    pair.end_one(0)
    pair.claim()
    pair.end()
    pair.claim()
    events = told()
    assert events.count(("exceeded", "concurrency", 3)) == 1
    assert events.count(("released", "concurrency", 3)) == 1


@pytest.mark.parametrize("verdict", [Verdict.HEAD, Verdict.TAIL, Verdict.DIED])
def test_a_task_that_comes_back_is_told_of_nothing_more(pair, told, verdict):
    pair.put("a", ONE, times=2)
    pair.claim()
    pair.end()
    assert pair.claim()[0] == [2]
    assert told() == [("exceeded", "concurrency", 2), ("released", "concurrency", 2)]
    pair.end(verdict)
    pair.both.run(("stop", "pause", "api", 0, "on"))
    pair.claim()
    pair.both.run(("stop", "resume", "api", 0, "on"))
    assert pair.claim()[0] == [2]
    assert told() == []


def test_a_head_that_came_back_is_told_for_the_first_time(pair, told):
    pair.put("a", ONE)
    assert pair.claim()[0] == [1]
    pair.end(Verdict.HEAD)
    pair.both.run(("stop", "pause", "api", 0, "on"))
    pair.claim()
    assert told() == [("exceeded", "paused", 1)]
    pair.both.run(("stop", "resume", "api", 0, "on"))
    pair.claim()
    assert told() == [("released", "paused", 1)]


def test_one_that_is_cancelled_while_it_is_blocked_never_starts(pair, told):
    pair.put("a", ONE, times=3)
    pair.claim()
    assert told() == [("exceeded", "concurrency", 2)]
    pair.both.run(("cancel", "q", (0,)))
    assert told() == [("cancelled", "", 2)]
    pair.end()
    assert pair.claim()[0] == [3]
    assert told() == []


def test_one_that_is_tried_again_is_blocked_and_one_that_is_dropped_is_not(pair, told):
    pair.put("a", ONE._replace(on_limit="reschedule"), times=2)
    pair.claim()
    assert told() == [("exceeded", "concurrency", 2)]
    pair.at(10 * SECOND)
    pair.claim()
    assert told() == []
    pair.end()
    pair.at(20 * SECOND)
    assert pair.claim()[0] == [2]
    assert told() == [("released", "concurrency", 2)]
    pair.put("b", ONE._replace(on_limit="drop"))
    pair.claim()
    assert told() == [("dropped", "", 3)]


@pytest.mark.parametrize("enforcement", ["off", "observe"])
def test_who_enforces_nothing_blocks_nothing(pair, told, enforcement):
    of_tier(pair, 1)
    pair.put("a", ONE, times=3)
    assert pair.claim(enforcement=enforcement)[0] == [1, 2, 3]
    assert told() == []


def test_nothing_is_left_of_what_was_told(pair):
    of_tier(pair, 1)
    pair.put("a", ONE, times=3)
    pair.put("b", ONE, times=3)
    pair.claim()
    pair.both.drain()
    assert not pair.model.known
