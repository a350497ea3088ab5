"""Variables of the environment: what each takes, what it rejects, and what it wins over."""

from __future__ import annotations

import pytest

from celery_fairness.config.environment import (
    load_settings,
    tier_limit_variables,
    unknown_variables,
)
from celery_fairness.config.rates import Rate
from celery_fairness.config.tiers import Tier
from celery_fairness.errors import SettingsError

WHOLE = "a whole number from 0 (pause) to 1000000, or 'unlimited'"
FORMS = "a duration such as 30, 30s, 1m30s, 500ms or PT30S"
WORDS = "true/false, 1/0, yes/no, on/off or observe"


def settings(environ, configured=None):
    return load_settings(configured or {}, environ)


@pytest.mark.parametrize(
    ("text", "enabled"),
    [
        ("true", True),
        ("1", True),
        ("YES", True),
        ("on", True),
        ("False", False),
        ("0", False),
        ("no", False),
        ("off", False),
        (" observe ", "observe"),
        ("Observe", "observe"),
    ],
)
def test_enabled_is_a_word(text, enabled):
    assert settings({"FAIRNESS_ENABLED": text}).enabled == enabled


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("45", 45.0),
        ("0.5", 0.5),
        ("45s", 45.0),
        ("1m30s", 90.0),
        ("500ms", 0.5),
        ("PT45S", 45.0),
        ("PT1M30S", 90.0),
        ("PT0.5S", 0.5),
        (" 2m ", 120.0),
        ("1h", 3600.0),
    ],
)
@pytest.mark.parametrize(
    ("variable", "setting"),
    [
        ("FAIRNESS_SNOOZE_DURATION", "snooze_seconds"),
        ("FAIRNESS_SNOOZE_JITTER", "snooze_jitter_seconds"),
    ],
)
def test_a_duration_has_many_forms(variable, setting, text, seconds):
    assert getattr(settings({variable: text}), setting) == seconds


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("0", 0),
        ("1", 1),
        (" 17 ", 17),
        ("1000000", 1_000_000),
        ("unlimited", None),
        ("UNLIMITED", None),
    ],
)
@pytest.mark.parametrize("tier", ["free", "pro", "pro_plus", "enterprise"])
def test_a_limit_is_a_whole_number_or_unlimited(tier, text, limit):
    tiers = settings({f"FAIRNESS_{tier.upper()}_LIMIT": text}).tiers
    assert tiers[tier].concurrency == limit
    assert tiers[tier].queue_class == ("default" if tier == "free" else "priority")


@pytest.mark.parametrize("tier", ["free", "pro", "pro_plus", "enterprise"])
@pytest.mark.parametrize("number", ["rate", "throttle"])
def test_a_rate_of_a_tier_is_laid_over_its_other_numbers(tier, number):
    name = f"FAIRNESS_{tier.upper()}_{number.upper()}"
    configured = {"tiers": {tier: {"concurrency": 7, "rate": "1/s", "throttle": "1/s"}}}
    found = settings({name: " 100/h ", "PATH": "/"}, configured).tiers[tier]
    assert (found.concurrency, getattr(found, number)) == (7, Rate(100, 3600))
    assert getattr(settings({name: "unlimited"}, configured).tiers[tier], number) is None
    with pytest.raises(SettingsError, match=f"^{name}: expected a rate such as 100/m"):
        settings({name: "often"})


def test_the_redis_is_an_address():
    loaded = settings({"FAIRNESS_REDIS_URL": "rediss://:pw@cache:6380/2"})
    assert loaded.redis_url.get_secret_value() == "rediss://:pw@cache:6380/2"


REJECTED = [
    ("FAIRNESS_ENABLED", "maybe", WORDS),
    ("FAIRNESS_ENABLED", "2", WORDS),
    ("FAIRNESS_ENABLED", "truе", WORDS),  # the last letter is Cyrillic
    ("FAIRNESS_FREE_LIMIT", "-1", WHOLE),
    ("FAIRNESS_FREE_LIMIT", "1000001", WHOLE),
    ("FAIRNESS_FREE_LIMIT", "1.5", WHOLE),
    ("FAIRNESS_FREE_LIMIT", "none", WHOLE),
    ("FAIRNESS_PRO_LIMIT", "three", WHOLE),
    ("FAIRNESS_PRO_LIMIT", "true", WHOLE),
    ("FAIRNESS_PRO_PLUS_LIMIT", "1e3", WHOLE),
    ("FAIRNESS_PRO_PLUS_LIMIT", "٣", WHOLE),  # three, in Arabic digits
    ("FAIRNESS_ENTERPRISE_LIMIT", "inf", WHOLE),
    ("FAIRNESS_ENTERPRISE_LIMIT", "infinite", WHOLE),
    ("FAIRNESS_SNOOZE_DURATION", "soon", FORMS),
    ("FAIRNESS_SNOOZE_DURATION", "-30", FORMS),
    ("FAIRNESS_SNOOZE_DURATION", "30 s", FORMS),
    ("FAIRNESS_SNOOZE_DURATION", "P1Y", FORMS),
    ("FAIRNESS_SNOOZE_DURATION", "P1M", FORMS),
    ("FAIRNESS_SNOOZE_DURATION", "1e3", FORMS),
    ("FAIRNESS_SNOOZE_JITTER", "nan", FORMS),
    ("FAIRNESS_SNOOZE_JITTER", "10sec", FORMS),
]


@pytest.mark.parametrize(("variable", "text", "wanted"), REJECTED)
def test_a_value_that_cannot_be_read_is_rejected_by_the_variables_name(variable, text, wanted):
    with pytest.raises(SettingsError) as caught:
        settings({variable: text})
    assert str(caught.value) == f"{variable}: expected {wanted}, got: {text!r}"


OUT_OF_RANGE = [
    ("FAIRNESS_SNOOZE_DURATION", "0", "seconds above 0, up to 86400, got: 0.0"),
    ("FAIRNESS_SNOOZE_DURATION", "25h", "seconds above 0, up to 86400, got: 90000.0"),
    ("FAIRNESS_SNOOZE_JITTER", "P2D", "seconds from 0 to 86400, got: 172800.0"),
    (
        "FAIRNESS_REDIS_URL",
        "https://:hunter2@cache",
        (
            "redis://, rediss://, sentinel://, cluster://, clusters://, redis+socket:// or "
            "unix:// and an address, got: '(hidden)'"
        ),
    ),
]


@pytest.mark.parametrize(("variable", "text", "wanted"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_rejected_by_the_variables_name(variable, text, wanted):
    with pytest.raises(SettingsError) as caught:
        settings({variable: text})
    assert str(caught.value) == f"{variable}: expected {wanted}"
    assert "hunter2" not in repr(caught.value)


def test_every_variable_that_cannot_be_read_is_named_at_once():
    with pytest.raises(SettingsError) as caught:
        settings({"FAIRNESS_FREE_LIMIT": "x", "FAIRNESS_PRO_LIMIT": "y"})
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "FAIRNESS_FREE_LIMIT",
        "FAIRNESS_PRO_LIMIT",
    ]


@pytest.mark.parametrize(
    ("configured", "environ", "snooze"),
    [
        ({}, {}, 30.0),
        ({"snooze_seconds": 5}, {}, 5.0),
        ({}, {"FAIRNESS_SNOOZE_DURATION": "7"}, 7.0),
        ({"snooze_seconds": 5}, {"FAIRNESS_SNOOZE_DURATION": "7"}, 7.0),
        ({"snooze_seconds": 5}, {"FAIRNESS_SNOOZE_DURATION": ""}, 5.0),
        ({"snooze_seconds": 5}, {"FAIRNESS_SNOOZE_DURATION": "  "}, 5.0),
        # What is overruled need not be usable.
        ({"snooze_seconds": "soon"}, {"FAIRNESS_SNOOZE_DURATION": "7"}, 7.0),
    ],
)
def test_variables_win_over_the_configuration_and_that_over_the_defaults(
    configured, environ, snooze
):
    assert settings(environ, configured).snooze_seconds == snooze


def test_a_limit_of_a_variable_leaves_the_tiers_other_fields():
    configured = {"tiers": {"free": {"concurrency": 2, "weight": 3}}}
    assert settings({"FAIRNESS_FREE_LIMIT": "9"}, configured).tiers["free"] == Tier("free", 9, 3)


def test_a_limit_of_a_variable_is_laid_over_unlimited_tiers():
    tiers = settings({"FAIRNESS_PRO_LIMIT": "9"}, {"tiers": "unlimited"}).tiers
    assert [tiers[name].concurrency for name in ("free", "pro", "enterprise")] == [None, 9, None]


def test_the_variable_of_a_tier_leaves_a_tier_with_a_longer_name():
    tiers = settings({"FAIRNESS_PRO_LIMIT": "9"}).tiers
    assert (tiers["pro"].concurrency, tiers["pro_plus"].concurrency) == (9, 3)
    tiers = settings({"FAIRNESS_PRO_LIMIT": "9", "FAIRNESS_PRO_PLUS_LIMIT": "4"}).tiers
    assert (tiers["pro"].concurrency, tiers["pro_plus"].concurrency) == (9, 4)


def test_a_variable_does_not_bring_back_a_tier_that_was_removed():
    configured = {"tiers": {"enterprise": None}}
    loaded = settings({"FAIRNESS_ENTERPRISE_LIMIT": "9"}, configured)
    assert "enterprise" not in loaded.tiers


@pytest.mark.parametrize("tiers", [None, 3, {"free": 3}])
def test_a_variable_does_not_hide_tiers_that_cannot_be_meant(tiers):
    with pytest.raises(SettingsError, match=r"^fairness\.tiers: "):
        settings({"FAIRNESS_FREE_LIMIT": "9"}, {"tiers": tiers})


@pytest.mark.parametrize(
    ("variable", "fix"),
    [
        ("FAIRNESS_FREE_LIMITS", "write FAIRNESS_FREE_LIMIT"),
        ("FAIRNESS_SNOOZE", "write FAIRNESS_SNOOZE_JITTER"),
        ("FAIRNESS_LEASE_SECONDS", "set lease_seconds in app.conf.fairness"),
        ("FAIRNESS_WHATEVER", "unset it"),
    ],
)
def test_an_unknown_variable_is_found_with_what_to_do(variable, fix):
    assert unknown_variables({variable: "1"}) == [(variable, fix)]


def test_other_peoples_variables_are_nobodys_business():
    assert unknown_variables({"FAIRNES_ENABLED": "x", "PATH": "/", "XFAIRNESS_": "1"}) == []


def test_nothing_is_written_into_what_was_configured():
    configured = {"tiers": {"free": {"concurrency": 2}}, "snooze_seconds": 5}
    settings({"FAIRNESS_FREE_LIMIT": "9", "FAIRNESS_SNOOZE_DURATION": "1"}, configured)
    assert configured == {"tiers": {"free": {"concurrency": 2}}, "snooze_seconds": 5}


def test_the_limits_that_variables_say_are_told_with_their_variables():
    environ = {"FAIRNESS_PRO_LIMIT": " 7 ", "FAIRNESS_FREE_LIMIT": "unlimited", "PATH": "/"}
    assert tier_limit_variables(environ) == {
        "free": ("FAIRNESS_FREE_LIMIT", None),
        "pro": ("FAIRNESS_PRO_LIMIT", 7),
    }
