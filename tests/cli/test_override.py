"""``override``, and ``pause`` and ``resume`` of tenants."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from celery_fairness.config.tenants import key_part
from celery_fairness.errors import NotFound, PolicyInvalid, TenantInvalid
from tests.cli.conftest import Installation
from tests.support.numbers import listed

KEY = "api.stripe.com"
HOSTILE = "a b\n}|,"


def test_an_override_is_set_shown_and_cleared(run, fairness):
    done = run(
        "limit", "override", KEY, "--concurrency", "5", "--rate", "100/1m", "--reason", "a sale"
    )
    said = "concurrency 5, rate 100/PT1M until it is cleared; reason: a sale; by: ada"
    assert (done.exit_code, done.stdout) == (0, f"{KEY}: {said}\n")
    told = run("limit", "show", KEY).output
    assert f"override of {KEY}: {said}" in told
    assert "limit 5: override until it is cleared, by ada: a sale\n" in told
    assert "rate 100/PT1M, 0 counted, resets " in told
    done = run("limit", "override", KEY, "--clear")
    assert (done.exit_code, done.output) == (0, f"{KEY}: its numbers are its own again\n")
    done = run("limit", "override", KEY, "--clear")
    assert (done.exit_code, done.output) == (1, f"{KEY}: has no override\n")
    with pytest.raises(NotFound):
        fairness.limits.inspect(KEY)


def test_an_override_in_json_has_the_same_facts(run):
    told = json.loads(
        run(
            "limit",
            "override",
            KEY,
            "--throttle",
            "2/PT1S",
            "--for",
            "60",
            "--by",
            "x",
            "--json",
        ).stdout
    )
    ends = datetime.fromisoformat(told["override"].pop("expires_at"))
    assert 0 < ends.timestamp() - time.time() <= 60
    assert told["override"] == {"throttle": {"limit": 2, "period": "PT1S"}, "by": "x"}
    assert (told["key"], told["throttle"]["limit"]) == (KEY, 2)


def test_unlimited_is_a_number_and_what_is_not_said_is_none(fairness):
    made = fairness.limits.override(KEY, concurrency=None, rate=None).override
    said = {"concurrency": None, "rate": None, "expires_at": None}
    assert made.model_dump(mode="json") == said
    assert fairness.limits.inspect(KEY).override == made


def test_an_override_ends_at_a_time(fairness):
    ends = datetime.now(UTC) + timedelta(hours=1)
    made = fairness.limits.override(KEY, concurrency=1, until=ends)
    assert abs(made.override.expires_at - ends) <= timedelta(milliseconds=1)
    assert fairness.limits.override(KEY, concurrency=1).override.expires_at is None
    with pytest.raises(ValueError, match="expected a time to come, got: one that is past"):
        fairness.limits.override(KEY, concurrency=0, until=time.time() - 60)
    assert fairness.limits.inspect(KEY).override.model_fields_set == {"concurrency", "expires_at"}
    assert fairness.limits.inspect(KEY).limit == 1


def test_a_tenant_s_override_is_its_limit(client, fairness, run):
    Installation(client).put("42", "t1", tier="enterprise")
    fairness.limits.override("tenant:42", concurrency=1)
    assert fairness.limits.inspect("tenant:42").limit == 1
    assert "tier enterprise, limit 1" in run("limit", "show", "tenant:42").output
    assert fairness.limits.clear_override("tenant:42")
    assert fairness.limits.inspect("tenant:42").limit == 5


def test_a_hostile_tenant_is_paused_under_its_own_key_and_no_other(fairness, client, run):
    holds = fairness.tenants.pause(HOSTILE)
    assert holds.key == f"tenant:{key_part(HOSTILE)}"
    assert fairness.limits.inspect(f"tenant:{HOSTILE}").limit == 0
    assert not fairness.limits.inspect("tenant:a").holds.paused
    assert not fairness.tenants.resume(HOSTILE).paused
    # By key as well, as people type it.
    assert fairness.limits.pause(f"tenant:{HOSTILE}").key == holds.key


def test_a_pause_says_how_long_it_lasts(run):
    done = run("limit", "pause", "tenant:42", "--for", "60")
    assert done.stdout.startswith("tenant:42: paused until 2")
    assert run("limit", "pause", "tenant:42").stdout.startswith(
        "tenant:42: paused until it is resumed, by "
    )
    assert (
        run("limit", "resume", "tenant:42").output
        == "tenant:42: not stopped: tasks start as its limits allow\n"
    )


def test_what_waits_for_a_pause_and_an_override_is_no_finding(client, fairness, run):
    made = Installation(client)
    for tenant in ("a", "b", "c"):
        made.put(tenant, f"t{tenant}", limits=f"{KEY}|C5|w")
    fairness.tenants.pause("a", for_seconds=60)
    fairness.limits.override("tenant:b", concurrency=0)
    fairness.limits.override(KEY, concurrency=0, for_seconds=60)
    assert made.claim() == []
    assert not fairness.check().findings
    fairness.limits.clear_override(KEY)
    assert [task.key for task in made.claim()] == ["tenant:c," + KEY]
    assert not fairness.check().findings


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"key": KEY}, f"override: expected any of {listed('override')}, got: none"),
        ({"key": "a b", "concurrency": 1}, "key: expected the key of a limit such as"),
        ({"key": 7, "concurrency": 1}, "got: 7"),
        ({"key": "tenant:", "concurrency": 1}, "key: expected tenant:{tenant}, got: 'tenant:'"),
        (
            {"key": KEY, "concurrency": 1, "for_seconds": 0},
            "for_seconds: expected seconds from 0.001 to 31622400, got: 0",
        ),
        ({"key": KEY, "concurrency": 1, "for_seconds": True}, "for_seconds: expected seconds"),
        (
            {"key": KEY, "concurrency": 1, "until": datetime.fromisoformat("2030-01-01")},
            "until: expected a datetime with a time zone or Unix seconds",
        ),
        (
            {"key": KEY, "concurrency": 1, "for_seconds": 1, "until": 2e9},
            "expected for_seconds or until, got: both",
        ),
    ],
)
def test_what_cannot_be_said_is_an_error_that_names_it(
    fairness, client, installation, said, problem
):
    with pytest.raises(ValueError) as told:
        fairness.limits.override(**said)
    assert problem in str(told.value)
    assert not client.exists(installation.key("changes"))


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ({"concurrency": -1}, "concurrency: expected"),
        ({"concurrency": True}, "concurrency: expected"),
        ({"rate": "0/PT1S"}, "rate.limit: expected"),
        ({"throttle": "5"}, "throttle: expected 'LIMIT/PERIOD'"),
    ],
)
def test_a_number_that_cannot_be_meant_is_an_error(fairness, numbers, problem):
    with pytest.raises(PolicyInvalid) as told:
        fairness.limits.override(KEY, **numbers)
    assert problem in str(told.value)


@pytest.mark.parametrize("tenant", ["", None])
def test_a_pause_names_its_tenant(fairness, tenant):
    with pytest.raises(ValueError, match="tenant: expected a tenant"):
        fairness.tenants.pause(tenant)


def test_a_tenant_is_a_text_or_a_number(fairness):
    with pytest.raises(TenantInvalid):
        fairness.tenants.pause(["a"])


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ((KEY,), f"override: expected any of {listed('override')}, got: none"),
        ((KEY, "--concurrency", "many"), "concurrency: expected"),
        ((KEY, "--clear", "--rate", "1/PT1S"), "expected --clear alone, or numbers"),
        ((KEY, "--clear", "--rate", "unlimited"), "expected --clear alone, or numbers"),
        ((KEY, "--rate", "soon"), "rate: expected 'LIMIT/PERIOD'"),
    ],
)
def test_wrong_usage_names_what_is_expected(run, args, problem):
    done = run("limit", "override", *args)
    assert done.exit_code == 2
    assert problem in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ((), "expected numbers, or --clear alone"),
        (("--burst", "5"), "No such option '--burst'"),
        (("--clear", "--concurrency", "unlimited"), "expected --clear alone, or numbers"),
        (("--clear", "--reason", "import"), "expected --clear alone, or numbers"),
    ],
)
def test_wrong_usage_for_a_tenant_changes_nothing(run, fairness, args, problem):
    fairness.tenants.override("42", concurrency=7)
    done = run("tenant", "override", "42", *args)
    assert done.exit_code == 2
    assert problem in " ".join(done.output.split())
    assert fairness.tenants.inspect("42").limit == 7
