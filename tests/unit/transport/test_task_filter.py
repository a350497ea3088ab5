"""TaskFilter: what a process passes over now, and how often it takes what has a rate limit."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from kombu.utils import limits

from celery_fairness.scheduler.types import SkippedTasks
from celery_fairness.transport.task_filter import TaskFilter


class Clock:
    """Seconds, as the bucket of kombu asks for them."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(limits, "monotonic", clock)
    return clock


@pytest.fixture
def task_filter(clock):
    return TaskFilter()


def taken(task_filter, clock, every, seconds=3.0):
    """When a task is taken that waits always, asked for `every` so many seconds."""
    times, begin = [], clock.now
    for step in range(round(seconds / every)):
        clock.now = begin + step * every
        while task_filter.take("a"):
            times.append(clock.now)
    return times


def most_in_a_second(times):
    # A hair less: the sum of many steps is no exact second.
    return max(bisect_left(times, start + 0.999999) - at for at, start in enumerate(times))


def test_nothing_is_passed_over_where_everything_is_known_and_unlimited(task_filter):
    task_filter.limit("a", 0)
    assert task_filter.take("a")
    assert task_filter.skipped({"q": 3}) == SkippedTasks()
    assert not task_filter.skipped({"q": 3})
    assert task_filter.available_in(SkippedTasks()) == float("inf")


def test_an_unknown_kind_is_passed_over_until_it_is_known_and_is_news_once(task_filter):
    assert task_filter.skip("a")
    assert not task_filter.skip("a")
    assert task_filter.skip("b")
    assert task_filter.skipped({"q": 3}) == SkippedTasks(("a", "b"), (), {"q": 3})
    task_filter.take_again(["a", "c"])
    assert task_filter.skipped({}) == SkippedTasks(("b",), (), {})
    assert task_filter.skip("a")


def test_a_limited_kind_is_taken_once_and_then_passed_over_until_its_time(task_filter, clock):
    task_filter.limit("a", 0.5)
    assert task_filter.skipped({}) == SkippedTasks((), ("a",), {})
    assert task_filter.take("a")
    assert not task_filter.take("a")
    assert task_filter.skipped({}) == SkippedTasks(("a",), (), {})
    task_filter.skip("b")
    told = task_filter.skipped({})
    assert task_filter.available_in(told) == pytest.approx(2, abs=0.1)
    clock.now += 1.9
    assert not task_filter.take("a")
    clock.now += 0.2
    # It opened while the claim was on its way.
    assert task_filter.available_in(told) < 0.01
    task_filter.take_again("b")
    assert task_filter.skipped({}) == SkippedTasks((), ("a",), {})
    assert task_filter.take("a")
    assert task_filter.take("another")


@pytest.mark.parametrize("rate", [1, 5, 18, 100, 1000])
@pytest.mark.parametrize("every", [0.0001, 0.0037, 0.0113])
def test_no_second_has_more_than_the_limit_and_one(task_filter, clock, rate, every):
    task_filter.limit("a", rate)
    times = taken(task_filter, clock, every)
    assert most_in_a_second(times) <= rate + 1
    clock.now += 60
    # A time without tasks is not made up for.
    assert most_in_a_second(taken(task_filter, clock, every)) <= rate + 1


@pytest.mark.parametrize("late", [0.0, 0.001, 0.004])
def test_who_asks_a_little_late_loses_nothing_of_a_limit(task_filter, clock, late):
    task_filter.limit("a", 100)
    times = []
    while clock.now < 1003:
        if task_filter.take("a"):
            times.append(clock.now)
        else:
            clock.now += task_filter.available_in(task_filter.skipped({})) + late
    assert len(times) >= 0.98 * 300


def test_the_same_limit_again_gives_nothing_away(task_filter):
    task_filter.limit("a", 1)
    assert task_filter.take("a")
    task_filter.limit("a", 1)
    assert not task_filter.take("a")
    task_filter.limit("a", 2)
    assert task_filter.take("a")
    task_filter.limit("a", 0)
    assert task_filter.take("a")
    assert task_filter.take("a")
