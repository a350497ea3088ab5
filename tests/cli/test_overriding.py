"""``override``, and ``pause`` and ``resume`` of tenants."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from celery_fairness.config.tenants import key_part
from celery_fairness.errors import NotFound, PolicyInvalid, TenantInvalid
from tests.cli.conftest import Installation

KEY = "api.stripe.com"
HOSTILE = "a b\n}|,"


def test_an_override_is_set_shown_and_cleared(run, fairness):
    done = run("override", KEY, "--concurrency", "5", "--rate", "100/1m", "--reason", "a sale")
    said = "concurrency 5, rate 100/PT1M until it is cleared; reason: a sale; by: ada"
    assert (done.exit_code, done.stdout) == (0, f"{KEY}: {said}\n")
    told = run("inspect", KEY).output
    assert f"override of {KEY}: {said}" in told
    assert "limit 5: override until it is cleared, by ada: a sale\n" in told
    assert "rate 100/PT1M, 0 counted, resets " in told
    done = run("override", KEY, "--clear")
    assert (done.exit_code, done.output) == (0, f"{KEY}: its numbers are its own again\n")
    done = run("override", KEY, "--clear")
    assert (done.exit_code, done.output) == (1, f"{KEY}: has no override\n")
    with pytest.raises(NotFound):
        fairness.inspect(KEY)


def test_an_override_in_json_has_the_same_facts(run):
    told = json.loads(
        run(
            "override", KEY, "--throttle", "2/PT1S", "--for", "60", "--author", "x", "--json"
        ).stdout
    )
    ends = datetime.fromisoformat(told["override"].pop("expires_at"))
    assert 0 < ends.timestamp() - time.time() <= 60
    assert told["override"] == {"throttle": {"limit": 2, "period": "PT1S"}, "author": "x"}
    assert (told["key"], told["throttle"]["limit"]) == (KEY, 2)


def test_unlimited_is_a_number_and_what_is_not_said_is_none(fairness):
    made = fairness.override(KEY, concurrency=None, rate=None).override
    said = {"concurrency": None, "rate": None, "expires_at": None}
    assert made.model_dump(mode="json") == said
    assert fairness.inspect(KEY).override == made


def test_an_override_ends_at_a_time(fairness):
    ends = datetime.now(UTC) + timedelta(hours=1)
    made = fairness.override(KEY, concurrency=1, expires_at=ends)
    assert abs(made.override.expires_at - ends) <= timedelta(milliseconds=1)
    assert fairness.override(KEY, concurrency=1).override.expires_at is None
    with pytest.raises(ValueError, match="expected a time to come, got: one that is past"):
        fairness.override(KEY, concurrency=0, expires_at=time.time() - 60)
    assert fairness.inspect(KEY).override.model_fields_set == {"concurrency", "expires_at"}
    assert fairness.inspect(KEY).limit == 1


def test_a_tenant_s_override_is_its_limit(client, fairness, run):
    Installation(client).put("42", "t1", tier="enterprise")
    fairness.override("tenant:42", concurrency=1)
    assert fairness.inspect("tenant:42").limit == 1
    assert "tier enterprise, limit 1" in run("inspect", "tenant:42").output
    assert fairness.clear_override("tenant:42")
    assert fairness.inspect("tenant:42").limit == 5


def test_a_hostile_tenant_is_paused_under_its_own_key_and_no_other(fairness, client, run):
    stops = fairness.pause(HOSTILE)
    assert stops.key == f"tenant:{key_part(HOSTILE)}"
    assert fairness.inspect(f"tenant:{HOSTILE}").limit == 0
    assert not fairness.inspect("tenant:a").stops.paused
    assert not fairness.resume(HOSTILE).paused
    # By key as well, as people type it.
    assert fairness.pause(key=f"tenant:{HOSTILE}").key == stops.key


def test_a_pause_says_how_long_it_lasts(run):
    done = run("pause", "tenant:42", "--for", "60")
    assert done.stdout.startswith("tenant:42: paused until 2")
    assert run("pause", "tenant:42").stdout.startswith("tenant:42: paused until it is resumed, by ")
    assert run("resume", "tenant:42").output == "tenant:42: nothing stops it\n"


def test_what_waits_for_a_pause_and_an_override_is_no_finding(client, fairness, run):
    made = Installation(client)
    for tenant in ("a", "b", "c"):
        made.put(tenant, f"t{tenant}", limits=f"{KEY}|5|||w")
    fairness.pause("a", expires_in=60)
    fairness.override("tenant:b", concurrency=0)
    fairness.override(KEY, concurrency=0, expires_in=60)
    assert made.claim() == []
    assert not fairness.audit().findings
    fairness.clear_override(KEY)
    assert [task.key for task in made.claim()] == ["tenant:c," + KEY]
    assert not fairness.audit().findings


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"key": KEY}, "override: expected any of concurrency, rate, throttle, got: none"),
        ({"key": "a b", "concurrency": 1}, "key: expected the key of a limit such as"),
        ({"key": 7, "concurrency": 1}, "got: 7"),
        ({"key": "tenant:", "concurrency": 1}, "key: expected tenant:{tenant}, got: 'tenant:'"),
        ({"key": "tenant:a", "rate": "1/PT1S"}, "rate: a tenant's key has a concurrency alone"),
        (
            {"key": KEY, "concurrency": 1, "expires_in": 0},
            "expires_in: expected seconds from 0.001 to 31622400, got: 0",
        ),
        ({"key": KEY, "concurrency": 1, "expires_in": True}, "expires_in: expected seconds"),
        (
            {"key": KEY, "concurrency": 1, "expires_at": datetime.fromisoformat("2030-01-01")},
            "expires_at: expected a datetime with a time zone or Unix seconds",
        ),
        (
            {"key": KEY, "concurrency": 1, "expires_in": 1, "expires_at": 2e9},
            "expected expires_in or expires_at, got: both",
        ),
    ],
)
def test_what_cannot_be_said_is_an_error_that_names_it(
    fairness, client, installation, said, problem
):
    with pytest.raises(ValueError) as told:
        fairness.override(**said)
    assert problem in str(told.value)
    assert not client.exists(installation.key("overrides"))


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
        fairness.override(KEY, **numbers)
    assert problem in str(told.value)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (("a", "b"), "expected a tenant or a key, got: both"),
        ((None, None), "expected a tenant or a key, got: none"),
        (("", None), "tenant: expected a tenant, got: ''"),
    ],
)
def test_a_pause_is_of_a_tenant_or_of_a_key(fairness, said, problem):
    tenant, key = said
    with pytest.raises(ValueError) as told:
        fairness.pause(tenant, key=key)
    assert problem in str(told.value)
    with pytest.raises(TenantInvalid):
        fairness.pause(["a"])


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ((KEY,), "override: expected any of concurrency, rate, throttle, got: none"),
        ((KEY, "--concurrency", "many"), "concurrency: expected"),
        ((KEY, "--clear", "--rate", "1/PT1S"), "expected --clear alone, or numbers"),
        ((KEY, "--rate", "soon"), "rate: expected 'LIMIT/PERIOD'"),
    ],
)
def test_wrong_usage_names_what_is_expected(run, args, problem):
    done = run("override", *args)
    assert done.exit_code == 2
    assert problem in " ".join(done.output.split())
