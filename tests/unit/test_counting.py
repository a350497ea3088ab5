"""Starts as inspection counts them, against the rule."""

from __future__ import annotations

import math
import random

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.control.counting import Starts
from tests.model.window import Window


def seen(window: Window) -> Starts:
    log = tuple(sorted(window.log.items()))
    return Starts(window.count, window.ideal_ms, window.most, None, log)


@pytest.mark.parametrize("seed", range(20))
def test_a_window_is_full_exactly_where_the_rule_closes_it_and_for_as_long(seed):
    chance = random.Random(seed)
    starts, period_ms = chance.choice([(1, 10), (5, 1000), (2500, 40_000), (7, 60_000)])
    other = (chance.randint(1, 3000), chance.choice([10, 1000, 90_000]))
    limit = Limit("api", rates=((starts, period_ms), other), throttle=(3, 1000))
    window, logical, times = Window(), 1_000_000, []
    for _ in range(3000):
        logical += chance.choice([0, 0, 1, 7, 40])
        if not window.rate_wait_ms(starts, period_ms, logical) or chance.random() < 0.01:
            window.start(limit, logical)
            times.append(logical)
        found = seen(window).rate(starts, period_ms, logical)
        waits_ms = window.rate_wait_ms(starts, period_ms, logical)
        assert (found.count >= starts) == (waits_ms > 0)
        assert not waits_ms or found.wait_ms == waits_ms
        if starts < 1000:
            assert found.count == sum(at + period_ms + 1 > logical for at in times)
        spaced = seen(window).throttle(3, 1000, logical)
        assert spaced.wait_ms == math.ceil(window.throttle_wait_ms(3, 1000, logical))


def test_where_nothing_is_remembered_nothing_is_in_the_way():
    assert Starts().rate(5, 1000, 9e9).count == 0
    assert Starts().rate(5, 1000, 9e9).wait_ms == 0
    assert Starts().throttle(5, 1000, 9e9).wait_ms == 0


def test_a_window_that_is_not_full_tells_when_its_first_start_leaves():
    window = Window()
    for at in (1000, 1400, 1600):
        window.start(Limit("api", rates=((5, 1000),)), at)
    found = seen(window).rate(5, 1000, 2100)
    assert (found.count, found.wait_ms) == (2, 301)
    # Of a lowered limit as many must leave as are too many.
    assert seen(window).rate(1, 1000, 2100).wait_ms == 501
