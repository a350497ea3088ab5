"""Log lines that may come with every task: once a minute for each kind, nothing hidden."""

from __future__ import annotations

import logging

import pytest

from celery_fairness.util.throttled_log import EVERY_SECONDS, KINDS, Notices


@pytest.fixture
def frozen(clock, caplog):
    caplog.set_level(logging.INFO, "celery_fairness")
    return Notices(logging.getLogger("celery_fairness"), clock)


def lines(caplog):
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_kind_is_logged_once_a_minute_and_says_what_it_held_back(frozen, clock, caplog):
    for _ in range(5):
        frozen.warning("away", "no answer from %s", "redis")
    clock.advance(EVERY_SECONDS - 0.001)
    frozen.warning("away", "no answer from %s", "redis")
    assert lines(caplog) == [("WARNING", "no answer from redis")]
    clock.advance(0.001)
    frozen.warning("away", "no answer from %s", "redis")
    assert lines(caplog)[1:] == [("WARNING", "no answer from redis (and 5 more like it)")]
    clock.advance(EVERY_SECONDS)
    frozen.warning("away", "no answer from %s", "redis")
    assert lines(caplog)[2:] == [("WARNING", "no answer from redis")]


def test_kinds_do_not_hold_each_other_back(frozen, caplog):
    frozen.warning("one", "first")
    frozen.error("two", "second")
    frozen.error("one", "held back")
    assert lines(caplog) == [("WARNING", "first"), ("ERROR", "second")]


def test_the_first_line_is_logged_whatever_the_clock_says(caplog):
    Notices(logging.getLogger("celery_fairness"), lambda: 0.0).warning("kind", "said")
    assert lines(caplog) == [("WARNING", "said")]


def test_kinds_without_end_are_forgotten_oldest_first(frozen, caplog):
    for number in range(KINDS + 1):
        frozen.warning(f"kind{number}", "said")
    caplog.clear()
    frozen.warning(f"kind{KINDS}", "still known")
    frozen.warning("kind1", "still known")
    frozen.warning("kind0", "forgotten, so said again")
    assert lines(caplog) == [("WARNING", "forgotten, so said again")]
    assert len(frozen._logged) == KINDS


def test_a_percent_sign_in_a_value_is_harmless(frozen, caplog):
    frozen.warning("kind", "%s", "100 % of it")
    assert lines(caplog) == [("WARNING", "100 % of it")]


def test_a_line_has_its_fields_and_a_level_that_asks_for_nothing(frozen, caplog):
    frozen.info("waits", "task %s waits", "a", extra={"task_name": "a"})
    (record,) = caplog.records
    assert (record.levelname, record.task_name) == ("INFO", "a")
