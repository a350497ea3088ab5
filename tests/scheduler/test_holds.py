"""Keys that are paused or cool down."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit
from tests.support.limits import changed

FREE = Limit("api")
ONE = Limit("api", concurrency=1)
OTHER = Limit("other", concurrency=1)
RATE = Limit("rate", rate=((1, 1_000),))
SECOND = 1_000


def stop(shop, how, key="api", wait_ms=0, enforcement="on"):
    """Change a key's holds; returns whether it is paused, and how long it cools down."""
    # Pauses with a time are those of `test_overrides`.
    return shop.stop(how, key, 0 if how == "pause" else wait_ms, enforcement)


def test_nothing_starts_under_a_key_that_is_paused_until_it_is_resumed(shop):
    shop.put("a", FREE, times=2)
    assert stop(shop, "pause") == (True, 0)
    shop.put("b")
    assert shop.claim() == ([3], 0)
    shop.at(3_600_000)
    assert shop.claim()[0] == []
    assert stop(shop, "resume") == (False, 0)
    assert shop.claim()[0] == [1, 2]


def test_a_pause_and_a_cool_down_do_not_know_of_each_other(shop):
    shop.put("a", FREE)
    assert stop(shop, "pause") == (True, 0)
    assert stop(shop, "cool", wait_ms=SECOND) == (True, SECOND)
    assert stop(shop, "resume") == (False, SECOND)
    assert shop.claim()[0] == []
    assert stop(shop, "pause") == (True, SECOND)
    assert stop(shop, "clear") == (True, 0)
    assert shop.claim()[0] == []
    assert stop(shop, "resume") == (False, 0)
    assert shop.claim()[0] == [1]


def test_a_key_that_cools_down_is_open_at_its_time_and_not_before(shop):
    shop.put("a", FREE)
    stop(shop, "cool", wait_ms=SECOND)
    assert shop.claim() == ([], SECOND)
    shop.at(SECOND - 1)
    assert shop.claim() == ([], 1)
    shop.at(SECOND)
    assert shop.claim()[0] == [1]


@pytest.mark.parametrize(
    ("first", "then", "left"), [(500, 2_000, 2_000), (2_000, 500, 2_000), (500, 500, 500)]
)
def test_a_later_word_makes_a_cool_down_longer_and_never_shorter(shop, first, then, left):
    stop(shop, "cool", wait_ms=first)
    assert stop(shop, "cool", wait_ms=then) == (False, left)


def test_a_cool_down_that_was_made_longer_while_somebody_waited_holds_to_its_end(shop):
    shop.put("a", FREE)
    stop(shop, "cool", wait_ms=SECOND)
    assert shop.claim() == ([], SECOND)
    stop(shop, "cool", wait_ms=2 * SECOND)
    shop.at(SECOND)
    assert shop.claim() == ([], SECOND)
    shop.at(2 * SECOND)
    assert shop.claim()[0] == [1]


def test_a_cool_down_that_is_ended_lets_the_next_claim_start_what_waits(shop):
    shop.put("a", FREE)
    stop(shop, "cool", wait_ms=3_600_000)
    assert shop.claim()[0] == []
    stop(shop, "clear")
    assert shop.is_woken()
    assert shop.claim()[0] == [1]


def test_other_keys_go_on(shop):
    shop.put("a", FREE)
    shop.put("a", OTHER, rank=1)
    shop.put("b", OTHER)
    stop(shop, "pause")
    stop(shop, "cool", "more", 5)
    assert shop.claim()[0] == [2]
    shop.end()
    assert shop.claim()[0] == [3]


def test_all_of_a_task_s_limits_must_be_open(shop):
    shop.put("a", OTHER, FREE)
    shop.put("b", OTHER)
    stop(shop, "pause")
    assert shop.claim()[0] == [2]
    stop(shop, "resume")
    assert shop.claim()[0] == []
    shop.end()
    assert shop.claim()[0] == [1]


def test_what_runs_runs_on_and_its_end_opens_nothing(shop):
    shop.put("a", ONE, times=2)
    assert shop.claim()[0] == [1]
    stop(shop, "pause")
    shop.end()
    assert shop.claim()[0] == []
    stop(shop, "resume")
    assert shop.claim()[0] == [2]


@pytest.mark.parametrize("enforcement", ["observe", "off"])
@pytest.mark.parametrize("how", ["pause", "cool"])
def test_a_stop_holds_whatever_is_enforced(shop, enforcement, how):
    shop.put("a", ONE, times=2)
    assert stop(shop, how, wait_ms=SECOND, enforcement=enforcement)[0] == (how == "pause")
    for _ in range(2):
        assert shop.claim(enforcement=enforcement)[0] == []
    stop(shop, "resume" if how == "pause" else "clear", enforcement=enforcement)
    assert shop.claim(enforcement=enforcement)[0] == [1, 2]


def test_what_is_stopped_waits_for_its_rate_after_that(shop):
    shop.put("a", RATE)
    assert shop.claim()[0] == [1]
    stop(shop, "pause", "rate")
    shop.put("a", RATE)
    assert shop.claim()[0] == []
    stop(shop, "resume", "rate")
    assert shop.claim()[0] == []
    shop.at(SECOND + 1)
    assert shop.claim()[0] == [2]


@pytest.mark.parametrize("action", ["drop", "reschedule"])
@pytest.mark.parametrize("how", ["pause", "cool"])
def test_a_stop_waits_whatever_its_limit_says(shop, action, how):
    shop.put("a", changed(FREE, on_limit=action))
    stop(shop, how, wait_ms=SECOND)
    assert shop.claim()[0] == []
    assert (shop.dropped(), shop.later()) == ([], [])
    assert shop.size() == (1, 0)


@pytest.mark.parametrize(("how", "again_ms"), [("pause", 1_000), ("cool", 8_000)])
def test_another_limit_that_is_full_says_what_becomes_of_it(shop, how, again_ms):
    again = changed(OTHER, on_limit="reschedule")
    shop.put("b", OTHER)
    assert shop.claim()[0] == [1]
    stop(shop, how, wait_ms=8_000)
    shop.put("a", FREE, again)
    assert shop.claim()[0] == []
    (due,) = shop.later()
    assert again_ms <= due <= again_ms + 1_000


@pytest.mark.parametrize(("begins", "ends"), [("pause", "resume"), ("cool", "clear")])
def test_a_key_of_more_limits_than_one_look_is_open_whole(shop, begins, ends):
    queues = [f"q{number}" for number in range(1, 70)]
    for queue in queues:
        shop.put("a", Limit("api", concurrency=1), queue=queue)
    stop(shop, begins, wait_ms=SECOND)
    for _ in range(3):
        shop.claim(queues=queues)
    stop(shop, ends)
    # Another word begins anew, and does not go on with what that one left.
    stop(shop, begins, wait_ms=SECOND)
    stop(shop, ends)
    given = []
    for _ in range(80):
        given += shop.claim(queues=queues)[0]
        shop.end()
    assert sorted(given) == list(range(1, 70))
