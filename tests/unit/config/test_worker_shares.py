"""A worker's places, shared out among the queues of a service."""

from __future__ import annotations

import pytest

from celery_fairness.config.settings import build_settings
from celery_fairness.config.worker_shares import (
    MOST_SLOTS,
    PARTS,
    Service,
    Shares,
    part,
    shares_of,
    variables_of,
)
from celery_fairness.errors import SettingsError

THREE = (
    "ANALYSIS_QUEUE_PRIORITY_WORKERS",
    "ANALYSIS_QUEUE_DEFAULT_WORKERS",
    "ANALYSIS_QUEUE_SCHEDULED_WORKERS",
)


def share(*numbers, pool=None, cpus=8, **service):
    """Share out with variables of these numbers, None for one that is not there."""
    said = {name: text for name, text in zip(THREE, numbers, strict=False) if text is not None}
    return shares_of("analysis", Service(**service), said, pool, cpus)


def numbers(shares):
    return list(shares.slots.values())


@pytest.mark.parametrize(
    ("pool", "parts"),
    [
        (3, [1, 1, 1]),
        (4, [2, 1, 1]),
        (5, [3, 1, 1]),
        (6, [3, 2, 1]),
        (8, [4, 2, 2]),
        (10, [5, 3, 2]),
        (100, [50, 30, 20]),
    ],
)
def test_s34_a_pool_is_parted_50_30_20_by_largest_remainder(pool, parts):
    shares = share(pool=pool)
    assert numbers(shares) == parts
    assert shares == Shares(pool, shares.slots, False)
    assert list(shares.slots) == ["analysis_priority", "analysis_default", "analysis_scheduled"]
    assert shares.queues == tuple(shares.slots)


def test_every_pool_is_parted_whole_and_everybody_has_a_place():
    for pool in range(3, 1000):
        parts = part(pool, PARTS)
        assert sum(parts.values()) == pool
        assert min(parts.values()) >= 1
        assert all(abs(parts[name] - pool * PARTS[name] / 100) < 1 for name in PARTS)


def test_without_numbers_and_a_pool_there_are_as_many_places_as_processors():
    assert numbers(share(cpus=10)) == [5, 3, 2]


def test_the_pool_is_the_sum_of_the_variables():
    assert share("5", " 3 ", "2") == share("5", "3", "2", pool=10)
    assert share("5", "3", "2").pool == 10


def test_a_number_wins_over_the_settings_and_an_empty_one_says_nothing():
    assert numbers(share("7", "", priority=1, default=2, scheduled=3)) == [7, 2, 3]


def test_numbers_that_are_not_said_share_what_the_others_leave():
    assert numbers(share("4", pool=9)) == [4, 3, 2]
    assert numbers(share(None, "3", pool=10)) == [5, 3, 2]


def test_of_a_queue_without_places_nothing_is_taken_unless_it_borrows():
    strict = share("0", "1", "0")
    assert (strict.pool, strict.queues) == (1, ("analysis_default",))
    lent = share("0", "1", "0", shares="borrow")
    assert lent.queues == tuple(lent.slots)


@pytest.mark.parametrize(("pool", "parts"), [(1, [1, 0, 0]), (2, [1, 1, 0])])
def test_s34_a_pool_under_three_may_borrow_only(pool, parts):
    assert numbers(share(pool=pool, shares="borrow")) == parts
    with pytest.raises(SettingsError) as caught:
        share(pool=pool)
    assert str(caught.value) == (
        "service analysis: expected a pool with a slot for each queue, 3 or more "
        f"(--concurrency 3), got: {pool}; or let queues borrow: "
        "fairness.services = {'analysis': {'shares': 'borrow'}}"
    )


def test_places_that_are_no_queues_are_a_warning_unless_they_are_lent():
    assert share("1", "1", "1", pool=5).warnings == (
        "service analysis: 2 of the pool's 5 slots belong to no queue and stay idle",
    )
    assert share("1", "1", "1", pool=5, shares="borrow").warnings == ()
    assert share("1", "1", "1").warnings == ()


@pytest.mark.parametrize(
    ("said", "pool", "problem"),
    [
        (("5", "3", "3"), 10, "of the pool (--concurrency), got: 11"),
        (("11",), 10, "ANALYSIS_QUEUE_PRIORITY_WORKERS: expected at most the 10 slots"),
        (("9",), 10, "expected a pool with a slot for each queue, 11 or more"),
        (("5", None, "2"), None, "ANALYSIS_QUEUE_DEFAULT_WORKERS: expected a number"),
        (("0", "0", "0"), None, "expected a slot for at least one queue, got: 0"),
        (("-1",), 10, "ANALYSIS_QUEUE_PRIORITY_WORKERS: expected a whole number from 0"),
        (("five",), 10, "to 1000000, got: 'five'"),
        (("1000001",), 10, "got: '1000001'"),
        (("1.5",), 10, "got: '1.5'"),
    ],
)
def test_numbers_that_cannot_be_meant_are_errors(said, pool, problem):
    with pytest.raises(SettingsError) as caught:
        share(*said, pool=pool)
    assert problem in str(caught.value)


def test_every_wrong_variable_is_named():
    with pytest.raises(SettingsError) as caught:
        share("x", "y", "1")
    assert len(caught.value.problems) == 2


def test_a_service_may_name_what_its_variables_begin_with():
    assert tuple(variables_of("analysis", Service()).values()) == THREE
    named = variables_of("specview", Service(env_prefix="SPECGEN"))
    assert named["default"] == "SPECGEN_QUEUE_DEFAULT_WORKERS"
    assert variables_of("my-app", Service())["priority"] == "MY_APP_QUEUE_PRIORITY_WORKERS"


def test_the_settings_say_what_a_service_has():
    said = {"env_prefix": "AN", "priority": 0, "default": MOST_SLOTS, "shares": "borrow"}
    service = build_settings({"services": {"analysis": said}}).services["analysis"]
    assert service == Service(
        env_prefix="AN", priority=0, default=MOST_SLOTS, scheduled=None, shares="borrow"
    )
    assert build_settings({"services": {"analysis": service}}).services["analysis"] == service


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ([], "fairness.services: expected a mapping of service names"),
        ({"a b": {}}, "service name: expected"),
        ({3: {}}, "service name: expected"),
        ({"a": 3}, "a: expected a mapping of fields, got: 3"),
        ({"a": {"prioity": 3}}, "got: 'prioity', did you mean 'priority'?"),
        ({"a": {4: 3}}, "scheduled, shares, got: 4"),
        ({"a": {"priority": -1}}, "a: priority: expected a whole number from 0"),
        ({"a": {"default": MOST_SLOTS + 1}}, "a: default: expected a whole number from 0"),
        ({"a": {"scheduled": True}}, "a: scheduled: expected a whole number from 0"),
        ({"a": {"priority": "5"}}, "got: '5'"),
        ({"a": {"env_prefix": "9A"}}, "a: env_prefix: expected 1 to 64 letters"),
        ({"a": {"env_prefix": "A-B"}}, "got: 'A-B'"),
        ({"a": {"env_prefix": ""}}, "env_prefix"),
        ({"a": {"shares": "lend"}}, "a: shares: expected 'strict' or 'borrow', got: 'lend'"),
        ({"a": {"shares": None}}, "got: None"),
        ({"a": {"shares": []}}, "got: []"),
    ],
)
def test_settings_that_cannot_be_meant_are_errors(said, problem):
    with pytest.raises(SettingsError) as caught:
        build_settings({"services": said})
    assert problem in str(caught.value)
