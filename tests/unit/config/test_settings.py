"""Every setting with values that are taken and values that are rejected, each with its message."""

from __future__ import annotations

import math

import pytest
from pydantic import SecretStr, ValidationError

from celery_fairness.config.settings import Enforcement, Settings, build_settings, expected
from celery_fairness.config.tiers import DEFAULT_TIERS, Tier
from celery_fairness.errors import SettingsError
from tests.support.numbers import listed

URL = (
    "redis://, rediss://, sentinel://, cluster://, clusters://, redis+socket:// or unix:// and an "
    "address"
)
WHOLE = "a whole number from 0 (pause) to 1000000, or None (unlimited)"
WEIGHT = "a number above 0, up to 1000000"
NAME = "1 to 100 letters, digits, '_' or '-'"
NAMESPACE = "1 to 64 letters, digits, '_', '.' or '-'"
SNOOZE = "seconds above 0, up to 86400"
DAY = "seconds from 0 to 86400"
LEASE = "seconds from 1 to 3600"


def resolver(tenant):
    return "pro"


def problem(**values):
    with pytest.raises(SettingsError) as caught:
        build_settings(values)
    return str(caught.value)


def test_the_defaults_are_those_of_the_decision_records():
    assert dict(build_settings({})) == {
        "enabled": True,
        "redis_url": None,
        "namespace": "fairness",
        "tiers": dict(DEFAULT_TIERS),
        "default_tier": "free",
        "tier_resolver": None,
        "tier_cache_seconds": 60.0,
        "tier_scope": "global",
        "tier_on_limit": "reschedule",
        "no_tenant": "bypass",
        "tenant_header": (),
        "redis_lost": "defer",
        "snooze_seconds": 30.0,
        "snooze_jitter_seconds": 10.0,
        "lease_seconds": 15.0,
        "max_deliveries": 5,
        "fairness_by": "tasks",
        "priority_scope": "tenant",
        "priority_aging": None,
        "priority_order": "high_first",
        "partitions": 1,
        "lending_spare": 0,
        "services": {},
        "queues": {},
        "metric_tenants": 0,
    }


ACCEPTED = [
    ("enabled", True),
    ("enabled", False),
    ("enabled", "observe"),
    ("namespace", "a"),
    ("namespace", "Shop_1.eu-west"),
    ("namespace", "n" * 64),
    ("default_tier", "enterprise"),
    ("tier_resolver", None),
    ("tier_resolver", resolver),
    ("tier_resolver", "shop.plans:tier_of"),
    ("tier_cache_seconds", 0),
    ("tier_cache_seconds", 86400),
    ("tier_scope", "global"),
    ("tier_scope", "service"),
    ("tier_on_limit", "wait"),
    ("no_tenant", "bypass"),
    ("no_tenant", "shared"),
    ("no_tenant", "error"),
    ("tenant_header", ("x-tenant-id", "MessageGroupId")),
    ("redis_lost", "defer"),
    ("redis_lost", "open"),
    ("redis_lost", "closed"),
    ("snooze_seconds", 0.001),
    ("snooze_seconds", 86400),
    ("snooze_jitter_seconds", 0),
    ("snooze_jitter_seconds", 86400.0),
    ("lease_seconds", 1),
    ("lease_seconds", 3600),
]


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_a_value_inside_its_range_is_taken(name, value):
    assert getattr(build_settings({name: value}), name) == value


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://:secret@localhost:6379/1",
        "rediss://cache.example:6380/0?ssl_cert_reqs=required",
        "sentinel://a:26379;sentinel://b:26379/0?master_name=main",
        "unix:///run/redis.sock",
        "redis+socket:///run/redis.sock?virtual_host=2",
    ],
)
def test_an_address_of_a_redis_is_taken(url):
    assert build_settings({"redis_url": url}).redis_url.get_secret_value() == url
    assert build_settings({"redis_url": SecretStr(url)}).redis_url.get_secret_value() == url


REJECTED = [
    ("enabled", "yes", "true, false or 'observe'"),
    ("enabled", 1, "true, false or 'observe'"),
    ("enabled", 0, "true, false or 'observe'"),
    ("enabled", None, "true, false or 'observe'"),
    ("namespace", "", NAMESPACE),
    ("namespace", "n" * 65, NAMESPACE),
    ("namespace", "a{b}", NAMESPACE),
    ("namespace", "a b", NAMESPACE),
    ("namespace", "a\n", NAMESPACE),
    ("namespace", "ü", NAMESPACE),
    ("namespace", None, NAMESPACE),
    ("tiers", None, "a mapping of tier names to their fields, or 'unlimited'"),
    ("tiers", [("free", 1)], "a mapping of tier names to their fields, or 'unlimited'"),
    ("default_tier", None, "the name of a tier"),
    ("default_tier", 1, "the name of a tier"),
    ("tier_resolver", "plans", "a callable, or 'module:name'"),
    ("tier_resolver", "shop plans:tier", "a callable, or 'module:name'"),
    ("tier_resolver", 3, "a callable, or 'module:name'"),
    ("tier_cache_seconds", -0.1, DAY),
    ("tier_cache_seconds", 86400.5, DAY),
    ("tier_cache_seconds", "60", DAY),
    ("tier_cache_seconds", True, DAY),
    ("tier_cache_seconds", math.nan, DAY),
    ("tier_scope", "tenant", "'global' or 'service'"),
    ("tier_scope", "\ud800", "'global' or 'service'"),
    ("tier_on_limit", "drop", "'reschedule' or 'wait'"),
    ("no_tenant", "ignore", "'bypass', 'shared' or 'error'"),
    ("no_tenant", None, "'bypass', 'shared' or 'error'"),
    ("tenant_header", "x-tenant-id", "a list of names of headers or properties"),
    ("tenant_header", ["x-tenant-id", ""], "a list of names of headers or properties"),
    ("tenant_header", [7], "a list of names of headers or properties"),
    ("tenant_header", None, "a list of names of headers or properties"),
    ("redis_lost", "closed ", "'defer', 'open' or 'closed'"),
    ("snooze_seconds", 0, SNOOZE),
    ("snooze_seconds", -1, SNOOZE),
    ("snooze_seconds", 86400.1, SNOOZE),
    ("snooze_seconds", "30s", SNOOZE),
    ("snooze_seconds", True, SNOOZE),
    ("snooze_seconds", math.inf, SNOOZE),
    ("snooze_jitter_seconds", -0.001, DAY),
    ("snooze_jitter_seconds", 86401, DAY),
    ("snooze_jitter_seconds", None, DAY),
    ("lease_seconds", 0.999, LEASE),
    ("lease_seconds", 3600.5, LEASE),
    ("lease_seconds", False, LEASE),
    ("lease_seconds", math.nan, LEASE),
]


@pytest.mark.parametrize(("name", "value", "wanted"), REJECTED)
def test_a_value_outside_its_range_is_rejected_by_name(name, value, wanted):
    assert problem(**{name: value}) == f"fairness.{name}: expected {wanted}, got: {value!r}"


@pytest.mark.parametrize(
    "url", ["http://:secret@h", "redis://", "secret@localhost", "", 5, "amqp://u:secret@h//"]
)
def test_an_address_of_something_else_is_rejected_and_not_shown(url):
    assert problem(redis_url=url) == f"fairness.redis_url: expected {URL}, got: '(hidden)'"


TIERS_REJECTED = [
    ({"free": 1}, "free: expected a mapping of fields, or None, got: 1"),
    ({"free": "unlimited"}, "free: expected a mapping of fields, or None, got: 'unlimited'"),
    ({"free": {"concurrency": -1}}, f"free: concurrency: expected {WHOLE}, got: -1"),
    ({"free": {"concurrency": 1_000_001}}, f"free: concurrency: expected {WHOLE}, got: 1000001"),
    ({"free": {"concurrency": 1.0}}, f"free: concurrency: expected {WHOLE}, got: 1.0"),
    ({"free": {"concurrency": True}}, f"free: concurrency: expected {WHOLE}, got: True"),
    ({"free": {"concurrency": "3"}}, f"free: concurrency: expected {WHOLE}, got: '3'"),
    (
        {"free": {"concurrency": "unlimited"}},
        f"free: concurrency: expected {WHOLE}, got: 'unlimited'",
    ),
    ({"pro": {"weight": 0}}, f"pro: weight: expected {WEIGHT}, got: 0"),
    ({"pro": {"weight": -2.5}}, f"pro: weight: expected {WEIGHT}, got: -2.5"),
    ({"pro": {"weight": 1_000_000.5}}, f"pro: weight: expected {WEIGHT}, got: 1000000.5"),
    ({"pro": {"weight": math.inf}}, f"pro: weight: expected {WEIGHT}, got: inf"),
    ({"pro": {"weight": math.nan}}, f"pro: weight: expected {WEIGHT}, got: nan"),
    ({"pro": {"weight": True}}, f"pro: weight: expected {WEIGHT}, got: True"),
    ({"pro": {"weight": None}}, f"pro: weight: expected {WEIGHT}, got: None"),
    ({"pro": {"weight": "2"}}, f"pro: weight: expected {WEIGHT}, got: '2'"),
    (
        {"pro": {"queue_class": "fast"}},
        "pro: queue_class: expected 'priority' or 'default', got: 'fast'",
    ),
    (
        {"pro": {"queue_class": None}},
        "pro: queue_class: expected 'priority' or 'default', got: None",
    ),
    (
        {"pro": {"limit": 3}},
        f"pro: expected one of {listed('tier')}, queue_class, got: 'limit'",
    ),
    ({"gold": {}}, "gold: expected a concurrency, as for every new tier, got: none"),
    (
        {"gold": {"weight": 2}},
        "gold: expected a concurrency, as for every new tier, got: none",
    ),
    ({"a b": {"concurrency": 1}}, f"a b: tier name: expected {NAME}, got: 'a b'"),
    ({"": {"concurrency": 1}}, f"tier name: expected {NAME}, got: ''"),
    ({7: {"concurrency": 1}}, f"7: tier name: expected {NAME}, got: 7"),
    (
        {"t" * 101: {"concurrency": 1}},
        f"{'t' * 101}: tier name: expected {NAME}, got: '{'t' * 78}…",
    ),
]


@pytest.mark.parametrize(("tiers", "wanted"), TIERS_REJECTED)
def test_a_tier_that_cannot_be_meant_is_rejected(tiers, wanted):
    assert problem(tiers=tiers) == f"fairness.tiers: {wanted}"


def test_every_problem_is_named_at_once():
    text = problem(tier_scope="x", tiers={"free": 1, "pro": 2}, qqqq=3)
    assert text.split("; ") == [
        "fairness.tiers: free: expected a mapping of fields, or None, got: 1",
        "fairness.tiers: pro: expected a mapping of fields, or None, got: 2",
        "fairness.tier_scope: expected 'global' or 'service', got: 'x'",
        "fairness.qqqq: expected a known setting, got: 'qqqq'",
    ]


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("snooze_second", "snooze_seconds"),
        ("tier", "tiers"),
        ("defaultTier", "default_tier"),
        ("redis_uri", "redis_url"),
        ("lease_secs", "lease_seconds"),
    ],
)
def test_an_unknown_key_is_rejected_with_a_suggestion(key, near):
    assert problem(**{key: 1}) == (
        f"fairness.{key}: expected a known setting, got: {key!r}, did you mean {near!r}?"
    )


@pytest.mark.parametrize("values", [[], "free", 3, True])
def test_settings_that_are_no_mapping_are_rejected(values):
    with pytest.raises(SettingsError, match=r"^fairness: expected a mapping of settings, got: "):
        build_settings(values)


def test_tiers_are_merged_by_name_and_field():
    tiers = build_settings(
        {
            "tiers": {
                "free": {"concurrency": 2},
                "enterprise": {"weight": 4},
                "gold": {"concurrency": None, "queue_class": "priority"},
            }
        }
    ).tiers
    assert tiers == {
        "free": Tier("free", 2),
        "pro": Tier("pro", 3, 1.0, "priority"),
        "pro_plus": Tier("pro_plus", 3, 1.0, "priority"),
        "enterprise": Tier("enterprise", 5, 4, "priority"),
        "gold": Tier("gold", None, 1.0, "priority"),
    }


def test_a_change_of_one_tier_leaves_every_other():
    changed = build_settings({"tiers": {"pro": {"concurrency": 8}}}).tiers
    assert {name: changed[name].concurrency for name in changed} == {
        "free": 1,
        "pro": 8,
        "pro_plus": 3,
        "enterprise": 5,
    }


def test_none_removes_a_tier():
    tiers = build_settings({"tiers": {"pro_plus": None, "enterprise": None, "nobody": None}}).tiers
    assert set(tiers) == {"free", "pro"}


@pytest.mark.parametrize(
    ("values", "names", "got"),
    [
        ({"default_tier": "gold"}, "enterprise, free, pro, pro_plus", "gold"),
        ({"tiers": {"free": None}}, "enterprise, pro, pro_plus", "free"),
    ],
)
def test_the_default_tier_is_one_that_there_is(values, names, got):
    assert problem(**values).endswith(f"default_tier: expected one of {names}, got: {got!r}")


@pytest.mark.parametrize("concurrency", [0, 1, 1_000_000, None])
@pytest.mark.parametrize("weight", [1e-9, 1, 1_000_000])
def test_numbers_at_their_bounds_are_taken(concurrency, weight):
    tiers = {"free": {"concurrency": concurrency, "weight": weight}}
    assert build_settings({"tiers": tiers}).tiers["free"] == Tier("free", concurrency, weight)


@pytest.mark.parametrize(
    ("enabled", "enforcement"),
    [(True, Enforcement.ON), (False, Enforcement.OFF), ("observe", Enforcement.OBSERVE)],
)
def test_enabled_says_what_is_enforced(enabled, enforcement):
    assert build_settings({"enabled": enabled}).enforcement is enforcement


def test_settings_do_not_change():
    settings = build_settings({})
    with pytest.raises(ValidationError, match="frozen"):
        settings.snooze_seconds = 1.0


def test_every_setting_says_what_it_takes_and_does():
    for name, field in Settings.model_fields.items():
        assert expected(name), name
        assert field.description.endswith("."), name


def test_no_form_of_the_settings_shows_the_password():
    settings = build_settings({"redis_url": "redis://user:hunter2@localhost:6379/0"})
    forms = (
        repr(settings),
        str(settings),
        f"{settings}",
        repr(settings.model_dump()),
        str(settings.model_dump(mode="json")),
        settings.model_dump_json(),
    )
    assert [form for form in forms if "hunter2" in form] == []


def test_no_error_about_the_settings_shows_the_password():
    with pytest.raises(SettingsError) as caught:
        build_settings({"redis_url": "http://user:hunter2@localhost", "namespace": ""})
    error = caught.value
    assert "hunter2" not in f"{error} {error!r} {error.problems} {error.__cause__!r}"
    # Nothing hangs behind the error that would be printed with a traceback.
    assert error.__context__ is None


def test_several_partitions_have_no_burst():
    with pytest.raises(
        SettingsError, match="partitions: expected 1, because tier 'free' has a burst"
    ):
        build_settings({"partitions": 4, "tiers": {"free": {"burst": 3}}})
    assert build_settings({"partitions": 4, "tiers": {"free": {"burst": None}}}).partitions == 4


def test_the_limit_of_a_queue_holds_over_partitions_or_is_an_error():
    policy = {
        "global_limit": 3,
        "local_limit": 2,
        "rate": "1000/h",
        "throttle": "5/s",
        "max_waiting": 9,
        "by_args": ["customer"],
        "partition": {"rate": "5/m"},
    }
    assert build_settings({"partitions": 4, "queues": {"emails": policy}}).partitions == 4
    policy["on_limit"] = "drop"
    problem = "on_limit: expected 'wait', because fairness.partitions is 4 .*, got: 'drop'"
    with pytest.raises(SettingsError, match=f"fairness.queues: emails: {problem}"):
        build_settings({"partitions": 4, "queues": {"emails": policy}})
    assert build_settings({"queues": {"emails": policy}}).queues["emails"].global_limit == 3
