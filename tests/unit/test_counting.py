"""Starts as inspection counts them, against the rule."""

from __future__ import annotations

import math
import random

import pytest

from celery_fairness.control.counting import Starts


class Book:
    """Every start of a key, and the time that each would have with perfect spacing."""

    def __init__(self, interval_ms=0.0):
        self.interval_ms = interval_ms
        self.times, self.ideal_ms = [], 0.0

    def start(self, at):
        self.times.append(at)
        late_ms = max(1.0, self.interval_ms / 10)
        self.ideal_ms = min(at, max(self.ideal_ms + self.interval_ms, at - late_ms))

    def seen(self, most):
        log = tuple(enumerate(self.times, 1))
        return Starts(len(self.times), self.ideal_ms, most, None, log)


@pytest.mark.parametrize("seed", range(20))
def test_a_window_is_full_exactly_where_the_rule_closes_it_and_for_as_long(seed):
    chance = random.Random(seed)
    starts, period_ms = chance.choice([(1, 10), (5, 1000), (250, 4000), (7, 60_000)])
    book, logical = Book(1000 / 3), 1_000_000
    for _ in range(1000):
        logical += chance.choice([0, 0, 1, 7, 40])
        # A start leaves its window a millisecond after the period.
        leaves = sorted(at + period_ms + 1 for at in book.times if at + period_ms + 1 > logical)
        is_full = len(leaves) >= starts
        if not is_full or chance.random() < 0.01:
            book.start(logical)
            leaves.append(logical + period_ms + 1)
        found = book.seen(starts).rate(starts, period_ms, logical)
        assert found.count == len(leaves)
        if len(leaves) >= starts:
            assert found.wait_ms == leaves[len(leaves) - starts] - logical
        spaced = book.seen(starts).throttle(3, 1000, logical)
        assert spaced.wait_ms == max(0, math.ceil(book.ideal_ms + 1000 / 3 - logical))


def test_where_nothing_is_remembered_nothing_is_in_the_way():
    assert Starts().rate(5, 1000, 9e9).count == 0
    assert Starts().rate(5, 1000, 9e9).wait_ms == 0
    assert Starts().throttle(5, 1000, 9e9).wait_ms == 0


def test_a_window_that_is_not_full_tells_when_its_first_start_leaves():
    book = Book()
    for at in (1000, 1400, 1600):
        book.start(at)
    found = book.seen(5).rate(5, 1000, 2100)
    assert (found.count, found.wait_ms) == (2, 301)
    # Of a lowered limit as many must leave as are too many.
    assert book.seen(5).rate(1, 1000, 2100).wait_ms == 501
