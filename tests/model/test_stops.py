"""Keys that are paused or cool down: in the model and the scripts."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.control.keys import CLOSED, PAUSED

FREE = Limit("api")
ONE = Limit("api", 1)
OTHER = Limit("other", 1)
RATE = Limit("rate", rates=((1, 1_000),))
SECOND = 1_000


def stop(pair, how, key="api", wait_ms=0, enforcement="on"):
    """Change a key's stops; returns whether it is paused, and how long it cools down."""
    # Pauses with a time are those of `test_overrides`.
    pair.both.run(("stop", how, key, 0 if how == "pause" else wait_ms, enforcement))
    stops, logical = pair.model.stops, pair.model.clock.logical
    return bool(stops.paused_ms(key, pair.both.now)), max(0, stops.cooled.get(key, 0) - logical)


def test_nothing_starts_under_a_key_that_is_paused_until_it_is_resumed(pair):
    pair.put("a", FREE, times=2)
    assert stop(pair, "pause") == (True, 0)
    pair.put("b")
    assert pair.claim() == ([3], 0)
    pair.at(3_600_000)
    assert pair.claim()[0] == []
    assert stop(pair, "resume") == (False, 0)
    assert pair.claim()[0] == [1, 2]


def test_a_pause_and_a_cool_down_do_not_know_of_each_other(pair):
    pair.put("a", FREE)
    assert stop(pair, "pause") == (True, 0)
    assert stop(pair, "cool", wait_ms=SECOND) == (True, SECOND)
    assert stop(pair, "resume") == (False, SECOND)
    assert pair.claim()[0] == []
    assert stop(pair, "pause") == (True, SECOND)
    assert stop(pair, "clear") == (True, 0)
    assert pair.claim()[0] == []
    assert stop(pair, "resume") == (False, 0)
    assert pair.claim()[0] == [1]


def test_a_key_that_cools_down_is_open_at_its_time_and_not_before(pair):
    pair.put("a", FREE)
    stop(pair, "cool", wait_ms=SECOND)
    assert pair.claim() == ([], SECOND)
    pair.at(SECOND - 1)
    assert pair.claim() == ([], 1)
    pair.at(SECOND)
    assert pair.claim()[0] == [1]
    assert not pair.model.stops.cooled


@pytest.mark.parametrize(
    ("first", "then", "left"), [(500, 2_000, 2_000), (2_000, 500, 2_000), (500, 500, 500)]
)
def test_a_later_word_makes_a_cool_down_longer_and_never_shorter(pair, first, then, left):
    stop(pair, "cool", wait_ms=first)
    assert stop(pair, "cool", wait_ms=then) == (False, left)


def test_a_cool_down_that_was_made_longer_while_somebody_waited_holds_to_its_end(pair):
    pair.put("a", FREE)
    stop(pair, "cool", wait_ms=SECOND)
    assert pair.claim() == ([], SECOND)
    stop(pair, "cool", wait_ms=2 * SECOND)
    pair.at(SECOND)
    assert pair.claim() == ([], SECOND)
    pair.at(2 * SECOND)
    assert pair.claim()[0] == [1]


def test_a_cool_down_that_is_ended_lets_the_next_claim_start_what_waits(pair):
    pair.put("a", FREE)
    stop(pair, "cool", wait_ms=3_600_000)
    assert pair.claim()[0] == []
    stop(pair, "clear")
    assert pair.model.rings["q"].bell
    assert pair.claim()[0] == [1]


def test_other_keys_go_on(pair):
    pair.put("a", FREE)
    pair.put("a", OTHER, rank=1)
    pair.put("b", OTHER)
    stop(pair, "pause")
    stop(pair, "cool", "more", 5)
    assert pair.claim()[0] == [2]
    pair.end()
    assert pair.claim()[0] == [3]


def test_all_of_a_task_s_limits_must_be_open(pair):
    pair.put("a", OTHER, FREE)
    pair.put("b", OTHER)
    stop(pair, "pause")
    assert pair.claim()[0] == [2]
    stop(pair, "resume")
    assert pair.claim()[0] == []
    pair.end()
    assert pair.claim()[0] == [1]


def test_what_runs_runs_on_and_its_end_opens_nothing(pair):
    pair.put("a", ONE, times=2)
    assert pair.claim()[0] == [1]
    stop(pair, "pause")
    pair.end()
    assert pair.claim()[0] == []
    stop(pair, "resume")
    assert pair.claim()[0] == [2]


@pytest.mark.parametrize("enforcement", ["observe", "off"])
@pytest.mark.parametrize("how", ["pause", "cool"])
def test_a_stop_holds_whatever_is_enforced(pair, enforcement, how):
    pair.put("a", ONE, times=2)
    assert stop(pair, how, wait_ms=SECOND, enforcement=enforcement)[0] == (how == "pause")
    for _ in range(2):
        assert pair.claim(enforcement=enforcement)[0] == []
    assert list(pair.model.parking.candidates["q"].values()) == [PAUSED]
    stop(pair, "resume" if how == "pause" else "clear", enforcement=enforcement)
    assert pair.claim(enforcement=enforcement)[0] == [1, 2]


def test_what_is_stopped_waits_for_its_rate_after_that(pair):
    pair.put("a", RATE)
    assert pair.claim()[0] == [1]
    stop(pair, "pause", "rate")
    pair.put("a", RATE)
    assert pair.claim()[0] == []
    assert list(pair.model.parking.candidates["q"].values()) == [PAUSED]
    stop(pair, "resume", "rate")
    assert list(pair.model.parking.candidates["q"].values()) == [CLOSED]
    pair.at(SECOND + 1)
    assert pair.claim()[0] == [2]


@pytest.mark.parametrize("action", ["drop", "reschedule"])
@pytest.mark.parametrize("how", ["pause", "cool"])
def test_a_stop_waits_whatever_its_limit_says(pair, action, how):
    pair.put("a", FREE._replace(on_limit=action))
    stop(pair, how, wait_ms=SECOND)
    assert pair.claim()[0] == []
    assert (pair.dropped(), pair.later()) == ([], [])
    assert pair.model.parking.waited["api"]


@pytest.mark.parametrize(("how", "again_ms"), [("pause", 1_000), ("cool", 8_000)])
def test_another_limit_that_is_full_says_what_becomes_of_it(pair, how, again_ms):
    again = OTHER._replace(on_limit="reschedule")
    pair.put("b", OTHER)
    assert pair.claim()[0] == [1]
    stop(pair, how, wait_ms=8_000)
    pair.put("a", FREE, again)
    assert pair.claim()[0] == []
    (due,) = pair.later()
    assert again_ms <= due <= again_ms + 1_000


def test_many_cool_downs_that_are_over_are_forgotten_some_in_each_claim(pair):
    for number in range(40):
        stop(pair, "cool", f"k{number}", 100 + number)
    left = []
    for _ in range(3):
        pair.at(SECOND)
        pair.claim()
        left.append(len(pair.model.stops.cooled))
    assert left == [24, 8, 0]


@pytest.mark.parametrize(("begins", "ends"), [("pause", "resume"), ("cool", "clear")])
def test_a_key_of_more_limits_than_one_look_is_open_whole(pair, begins, ends):
    queues = [f"q{number}" for number in range(1, 70)]
    for queue in queues:
        pair.put("a", Limit("api", 1), queue=queue)
    stop(pair, begins, wait_ms=SECOND)
    for _ in range(3):
        pair.claim(queues=queues)
    stop(pair, ends)
    left = pair.model.parking.left["api"]
    # Another word begins anew, and does not go on with what that one left.
    stop(pair, begins, wait_ms=SECOND)
    stop(pair, ends)
    assert pair.model.parking.left["api"] == left
    given = []
    for _ in range(80):
        given += pair.claim(queues=queues)[0]
        pair.end()
    assert sorted(given) == list(range(1, 70))
