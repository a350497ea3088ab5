"""ADR-16's routing table, the names of services and tiers, and the four tiers of ADR-10."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import pytest

from celery_fairness.config.rates import Rate
from celery_fairness.config.settings import build_settings
from celery_fairness.config.tiers import (
    DEFAULT_TIERS,
    NAME,
    Tier,
    by_name,
    merge_tiers,
    queues_of,
    read_tier,
    select_queue,
    write_tier,
)
from celery_fairness.errors import SettingsError

TABLE = [
    # tier, scheduled, queue class
    ("free", False, "default"),
    ("pro", False, "priority"),
    ("pro_plus", False, "priority"),
    ("enterprise", False, "priority"),
    (None, False, "default"),
    ("", False, "default"),
    ("gold", False, "default"),
    ("PRO", False, "default"),
    ("free", True, "scheduled"),
    ("pro", True, "scheduled"),
    ("enterprise", True, "scheduled"),
    (None, True, "scheduled"),
    ("gold", True, "scheduled"),
]


@pytest.mark.parametrize("service", ["analysis", "spec-view", "spec_view", "A1", "x" * 100])
@pytest.mark.parametrize(("tier", "scheduled", "queue"), TABLE)
def test_scheduled_wins_then_the_tier_and_everything_else_is_default(
    service, tier, scheduled, queue
):
    assert select_queue(service, tier, scheduled) == f"{service}_{queue}"


def test_the_tiers_in_force_decide_and_not_the_names():
    tiers = by_name([Tier("free", 1, queue_class="priority"), Tier("gold", 2), Tier("pro", 3)])
    assert select_queue("analysis", "free", tiers=tiers) == "analysis_priority"
    assert select_queue("analysis", "pro", tiers=tiers) == "analysis_default"
    assert select_queue("analysis", "gold", tiers=tiers) == "analysis_default"
    assert select_queue("analysis", "enterprise", tiers=tiers) == "analysis_default"


def test_a_service_has_three_queues():
    assert queues_of("analysis") == ("analysis_priority", "analysis_default", "analysis_scheduled")


@pytest.mark.parametrize("name", ["a", "A-b_c9", "_", "-", "9", "x" * 100])
def test_letters_digits_underscore_and_dash_name_a_service_and_a_tier(name):
    assert NAME.accepts(name)
    assert Tier(name, 1).name == name


@pytest.mark.parametrize(
    "name", ["", "x" * 101, "a b", "a.b", "a:b", "a/b", "ä", "a\n", "{a}", "a\x00", None, 3, b"a"]
)
def test_nothing_else_names_a_service_or_a_tier(name):
    assert not NAME.accepts(name)
    with pytest.raises(ValueError, match=r"^tier name: expected 1 to 100 letters, digits, '_' or"):
        Tier(name, 1)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"concurrency": -1}, "concurrency: expected a whole number from 0"),
        ({"concurrency": 1_000_001}, "concurrency: expected"),
        ({"concurrency": True}, "concurrency: expected"),
        ({"concurrency": 2.0}, "concurrency: expected"),
        ({"weight": 0}, "weight: expected a number above 0"),
        ({"weight": float("nan")}, "weight: expected"),
        ({"weight": float("inf")}, "weight: expected"),
        ({"queue_class": "scheduled"}, "queue_class: expected 'priority' or 'default'"),
    ],
)
def test_a_tier_that_cannot_be_meant_is_not_made(fields, problem):
    with pytest.raises(ValueError, match=problem):
        Tier(**{"name": "gold", "concurrency": 1, **fields})


def test_every_problem_of_a_tier_is_named():
    with pytest.raises(ValueError) as caught:
        Tier("", -1, 0, "fast")
    assert [text.partition(":")[0] for text in str(caught.value).split("; ")] == [
        "tier name",
        "concurrency",
        "weight",
        "queue_class",
    ]


def test_a_tier_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEFAULT_TIERS["free"].concurrency = 100


def test_the_four_tiers_are_those_of_the_decision_record():
    limits = {name: tier.concurrency for name, tier in DEFAULT_TIERS.items()}
    assert limits == {"free": 1, "pro": 3, "pro_plus": 3, "enterprise": 5}
    assert {tier.weight for tier in DEFAULT_TIERS.values()} == {1.0}


def test_unlimited_tiers_have_no_number_and_keep_their_queues():
    tiers = build_settings({"tiers": "unlimited"}).tiers
    assert tiers == {name: replace(tier, concurrency=None) for name, tier in DEFAULT_TIERS.items()}


@pytest.mark.parametrize("word", ["turns", "Unlimited", "", None])
def test_another_word_for_tiers_is_an_error_that_names_the_one_there_is(word):
    with pytest.raises(SettingsError, match=r"tiers: expected a mapping .*, or 'unlimited', got: "):
        build_settings({"tiers": word})


def test_a_merge_leaves_the_defaults_alone():
    merge_tiers({"free": {"concurrency": 9}, "pro": None})
    assert DEFAULT_TIERS["free"].concurrency == 1
    assert "pro" in DEFAULT_TIERS


def test_a_rate_of_a_tier_has_the_forms_of_a_policy():
    for rate in ("100/h", "100/PT1H", {"limit": 100, "period": "PT1H"}, Rate(100, 3600)):
        tier = Tier("a", 1, rate=rate, throttle=rate)
        assert (tier.rate, tier.throttle) == (Rate(100, 3600), Rate(100, 3600))
        assert tier == Tier("a", 1, rate="100/h", throttle="100/h")


def test_an_invalid_rate_of_a_tier_names_the_tier_and_the_number():
    with pytest.raises(SettingsError) as caught:
        build_settings({"tiers": {"gold": {"concurrency": 1, "rate": "often", "throttle": 5}}})
    rate = "expected LIMIT/PERIOD such as '100/m' or '100/PT1M', a mapping of limit and period, "
    rate += "a Rate, or None (unlimited), got: "
    assert caught.value.problems == (
        f"fairness.tiers: gold: rate: {rate}'often'",
        f"fairness.tiers: gold: throttle: {rate}5",
    )


@pytest.mark.parametrize(
    ("tier", "numbers"),
    [
        (Tier("a", None), "W1.0"),
        (Tier("a", 0, 2.5, "priority", 7), "C0;W2.5;M7"),
        (Tier("a", 3, rate="100/h", throttle="60/m"), "C3;R100/3600000;T60/60000;W1.0"),
    ],
)
def test_the_row_of_a_tier_in_redis_has_its_numbers_as_a_text(tier, numbers):
    row = write_tier(tier)
    assert json.loads(row) == {"numbers": numbers, "queue_class": tier.queue_class}
    assert read_tier("a", row) == tier
