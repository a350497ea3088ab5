"""A task that ends before its body begins gives its starts back: in the model and the scripts."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.scheduler.types import Verdict

RATE = Limit("mail", rates=((1, 4_000),))
SPACED = Limit("mail", throttle=(1, 4_000))
#: The position of a task that ends without having begun, of five that run (`Both.settles`).
LAST = 4


def hold(pair, number=LAST):
    """Let so many run whose limits are others."""
    pair.put("held", Limit("other"), times=number)
    assert len(pair.claim(number)[0]) == number


@pytest.mark.parametrize("limit", [RATE, SPACED])
@pytest.mark.parametrize("verdict", [Verdict.DONE, Verdict.HEAD, Verdict.TAIL])
def test_the_next_task_starts_at_once(pair, limit, verdict):
    hold(pair)
    pair.put("a", limit, times=2)
    (first,), _ = pair.claim(1)
    assert pair.claim(1)[0] == []
    pair.end_one(LAST, verdict)
    (again,), _ = pair.claim(1)
    assert (again == first) is (verdict is Verdict.HEAD)
    assert pair.claim(1)[0] == []


@pytest.mark.parametrize("limit", [RATE, SPACED])
def test_a_body_that_began_counts_whatever_is_said_later(pair, limit):
    hold(pair)
    pair.put("a", limit, times=2)
    pair.claim(1)
    pair.end_one(LAST, Verdict.BEGUN)
    pair.end_one(LAST)
    assert pair.claim(1)[0] == []


def test_later_starts_of_the_key_stay_counted(pair):
    hold(pair)
    pair.put("a", RATE._replace(rates=((2, 4_000),)), times=4)
    assert len(pair.claim(1)[0]) == 1
    pair.at(1_000)
    assert len(pair.claim(1)[0]) == 1
    # The first of the two has not begun: one more may start now, and the next when the second
    # leaves the window.
    pair.end_one(LAST)
    assert len(pair.claim(1)[0]) == 1
    assert pair.claim(1)[0] == []
    pair.at(4_900)
    assert pair.claim(1)[0] == []


def test_a_throttle_demands_what_the_last_begun_start_does(pair):
    hold(pair)
    pair.put("a", SPACED, times=3)
    assert len(pair.claim(1)[0]) == 1
    pair.end_one(LAST)
    assert len(pair.claim(1)[0]) == 1
    pair.at(3_500)
    assert pair.claim(1)[0] == []
