"""The windows of rates: how many starts they have, whatever period a person asks for meanwhile."""

from __future__ import annotations

import random

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.scheduler.types import Verdict
from tests.support.services import examples

SECOND = 1_000


def rate(*windows):
    return Limit("rate", rate=windows)


def starts_of(shop, *times):
    """Return how many tasks start at each of these times, in ms."""
    numbers = []
    for now in times:
        shop.at(now)
        numbers.append(len(shop.claim(99)[0]))
        assert shop.claim()[0] == []
    return numbers


@pytest.mark.parametrize(
    ("starts", "period_ms"), [(3, 100), (20, 1000), (100, 700), (101, 700), (300, 1000)]
)
@pytest.mark.parametrize("seed", range(examples(10)))
def test_no_window_has_more_starts_than_its_rate(shop, starts, period_ms, seed):
    chance, waiting, now = random.Random(seed), 2 * starts + 50, 0
    shop.put("a", rate((starts, period_ms)), times=waiting)
    counted, running = [], []
    # Above a rate of a hundred, starts of a hundredth of the period leave the window together.
    late_ms = 0 if starts <= 100 else 2 * period_ms / 100
    for _ in range(150):
        now += chance.choice((0, 0, 1, 3, period_ms // 50, period_ms // 7))
        shop.at(now)
        # A third of the tasks give their start back, and some of them wait again.
        for each in [each for each in running if chance.random() < 0.7]:
            running.remove(each)
            begun, again = chance.random() < 0.67, chance.random() < 0.5
            verdict = Verdict.HEAD if again and not begun else Verdict.DONE
            shop.settle([each[0]], verdict, begun)
            waiting += verdict is Verdict.HEAD
            if not begun:
                counted.remove(each[1])
        want = min(waiting, chance.choice((1, 1, 2, max(1, starts // 9))))
        got = len(shop.claim(want)[0])
        waiting -= got
        counted += [now] * got
        running += [(task, now) for task in shop.answer.tasks]
        assert sum(at + period_ms + 1 > now for at in counted) <= starts
        sure = sum(at + period_ms + 1 + late_ms > now for at in counted)
        assert got == want or sure >= starts


@pytest.mark.parametrize("place", [0, 50, 99])
def test_a_task_that_did_not_begin_gives_its_start_back_however_many_started_later(shop, place):
    shop.put("a", rate((100, 10_000)), times=101)
    for number in range(100):
        shop.at(number)
        assert len(shop.claim(1)[0]) == 1
    assert shop.claim(1)[0] == []
    shop.end_one(place, begun=False)
    assert shop.claim(1)[0] == [101]


def test_a_longer_period_counts_what_started_before_it(shop):
    shop.put("a", rate((2, SECOND)), times=9)
    assert starts_of(shop, 0) == [2]
    shop.override("rate", rate=((3, 4 * SECOND),))
    assert starts_of(shop, 500, 4_000, 4_001) == [1, 0, 2]


def test_an_override_with_a_shorter_period_leaves_the_longer_one_its_starts(shop):
    shop.put("a", rate((3, 4 * SECOND)), times=20)
    assert starts_of(shop, 0) == [3]
    shop.override("rate", rate=((2, SECOND),))
    assert starts_of(shop, 1_500, 2_500, 2_501) == [2, 0, 2]
    shop.override("rate")
    # Seven have started within 4 s. Four of them are left when those of the first moment leave.
    assert starts_of(shop, 4_001, 5_500, 5_501, 6_502) == [0, 0, 1, 2]


def test_a_start_under_the_same_key_without_a_rate_counts(shop):
    shop.put("a", rate((2, SECOND), (3, 5 * SECOND)), times=5)
    shop.put("b", Limit("rate", concurrency=9), kind="y")
    assert shop.claim(1, never=("y",))[0] == [1]
    shop.at(100)
    assert shop.claim(1, never=("x",))[0] == [6]
    assert starts_of(shop, 101, 1_000, 1_001, 5_000, 5_001) == [0, 0, 1, 0, 1]


def test_a_throttle_that_becomes_a_rate_counts_what_started_before_it(shop):
    shop.put("a", Limit("rate", throttle=((10, 4 * SECOND),)), times=9)
    assert starts_of(shop, 0, 400, 800) == [1, 1, 1]
    shop.override("rate", rate=((4, 4 * SECOND),), throttle=None)
    assert starts_of(shop, 1_600, 4_000, 4_001) == [1, 0, 1]


def test_a_throttle_keeps_its_distance_when_tasks_between_did_not_begin(shop):
    shop.put("a", Limit("rate", throttle=((1, 4_000),)), times=9)
    assert starts_of(shop, 0, 4_000, 8_000) == [1, 1, 1]
    # The last start is that at 4 s, so the next one may come at once.
    shop.end_one(2, begun=False)
    assert starts_of(shop, 8_100) == [1]
    # The last start is still that at 8.1 s.
    shop.end_one(1, begun=False)
    assert starts_of(shop, 8_200, 11_000, 12_100) == [0, 0, 1]


def test_a_window_counts_a_later_start_after_the_clock_has_gone_back(shop):
    """The logical clock notes no step below 50 ms, so it goes back with the server's."""
    shop.put("a", rate((3, 100)), times=9)
    for now in (1_000, 1_040, 1_010):
        shop.at(now)
        assert len(shop.claim(1)[0]) == 1
    assert starts_of(shop, 1_112) == [2]
