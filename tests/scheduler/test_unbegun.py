"""A task that ends before its body begins gives its starts back."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.scheduler.types import Verdict
from tests.support.limits import changed

RATE = Limit("mail", rate=((1, 4_000),))
SPACED = Limit("mail", throttle=((1, 4_000),))


@pytest.mark.parametrize("limit", [RATE, SPACED])
@pytest.mark.parametrize("verdict", [Verdict.DONE, Verdict.HEAD, Verdict.TAIL])
def test_the_next_task_starts_at_once(shop, limit, verdict):
    shop.put("a", limit, times=2)
    (first,), _ = shop.claim(1)
    assert shop.claim(1)[0] == []
    shop.end_one(0, verdict, begun=False)
    (again,), _ = shop.claim(1)
    assert (again == first) is (verdict is Verdict.HEAD)
    assert shop.claim(1)[0] == []


@pytest.mark.parametrize("limit", [RATE, SPACED])
def test_a_body_that_began_counts_whatever_is_said_later(shop, limit):
    shop.put("a", limit, times=2)
    shop.claim(1)
    shop.end_one(0, Verdict.BEGUN)
    shop.end_one(0, begun=False)
    assert shop.claim(1)[0] == []


def test_later_starts_of_the_key_stay_counted(shop):
    shop.put("a", changed(RATE, rate=((2, 4_000),)), times=4)
    assert len(shop.claim(1)[0]) == 1
    shop.at(1_000)
    assert len(shop.claim(1)[0]) == 1
    # The first of the two has not begun: one more may start now, and the next when the second
    # leaves the window.
    shop.end_one(0, begun=False)
    assert len(shop.claim(1)[0]) == 1
    assert shop.claim(1)[0] == []
    shop.at(4_900)
    assert shop.claim(1)[0] == []


def test_a_throttle_demands_what_the_last_begun_start_does(shop):
    shop.put("a", SPACED, times=3)
    assert len(shop.claim(1)[0]) == 1
    shop.end_one(0, begun=False)
    assert len(shop.claim(1)[0]) == 1
    shop.at(3_500)
    assert shop.claim(1)[0] == []
