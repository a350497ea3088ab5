"""What the commands say beside their answer: that nothing has a key, and what else stops it."""

from __future__ import annotations

import json
import re

import pytest

from celery_fairness.config.tiers import Tier
from celery_fairness.control.key.stops import person
from tests.cli.clearing import send

KEY = "api.stripe.com"


@pytest.fixture
def shop(installation, client):
    """The installation, with one task of the tenant 42 under one limit."""
    client.flushdb()
    send(installation, "42", "first", limits=f"{KEY}|C5|w")
    return installation


def note(text):
    return f"celery fairness: note: {text}\n"


CHANGES = (["pause"], ["cool-down", "--for", "60"], ["override", "--concurrency", "1"])
every_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[0])


@every_change
def test_a_key_that_nothing_has_is_noted_and_what_was_said_holds(run, shop, change):
    verb, *more = change
    done = run("limit", verb, "type:work", *more)
    assert (done.exit_code, done.stderr) == (0, note("nothing has the key type:work now"))
    assert "type:work" in done.stdout
    assert run("limit", verb, KEY, *more).stderr == ""


@every_change
def test_a_tenant_typed_as_a_key_is_proposed(run, shop, change):
    verb, *more = change
    proposed = note("nothing has the key 42 now; that of the tenant is tenant:42")
    assert run("limit", verb, "42", *more).stderr == proposed


def test_a_tenant_s_key_is_noted_where_nothing_is_known_of_the_tenant(run, shop):
    assert run("limit", "pause", "tenant:43").stderr == note("nothing has the key tenant:43 now")
    assert run("limit", "pause", "tenant:42").stderr == ""


def test_a_queue_s_key_is_noted_where_there_is_no_such_queue(run, shop):
    assert run("limit", "pause", "queue:celery").stderr == ""
    assert run("limit", "pause", "queue:celrey").stderr == note(
        "nothing has the key queue:celrey now, did you mean 'queue:celery'?"
    )


def test_a_note_is_no_part_of_what_programs_read(run, shop):
    done = run("limit", "pause", "42", "--json")
    assert json.loads(done.stdout)["paused"]
    assert done.stderr.startswith("celery fairness: note: ")


@pytest.mark.parametrize("verb", ["purge", "tier"])
def test_a_key_typed_as_a_tenant_is_noted(run, shop, verb):
    done = run("tenant", verb, "tenant:42")
    expected = "nothing is known of the tenant tenant:42 now; the tenant of the key tenant:42 is 42"
    assert (done.exit_code, done.stderr) == (0, note(expected))
    assert run("tenant", verb, "42").stderr == ""


def test_the_tier_of_a_tenant_to_come_is_published_without_a_note(run, shop):
    assert run("tenant", "tier", "43", "pro").stderr == ""
    meant = note("the tenant of the key tenant:43 is 43")
    for more in (("pro",), ("--clear",)):
        assert run("tenant", "tier", "tenant:43", *more).stderr == meant


def test_a_tier_is_shown_and_published_where_each_service_counts_apart(run, make_fairness):
    of = make_fairness(fairness={"tier_scope": "service"})
    done = run("tenant", "tier", "42", "pro", "--concurrency", "7", of=of)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (
        "tenant:42:_: tier pro, limit 7, held 0, weight 1\nlimit 7: own number of the tenant\n"
    )
    assert run("tenant", "tier", "42", of=of).stdout == done.stdout


def test_a_wrong_tenant_is_named_as_the_argument_that_it_is(run):
    for more in ((), ("pro",), ("--clear",)):
        done = run("tenant", "tier", "", *more)
        assert done.exit_code == 2
        assert "TENANT: expected a tenant such as 42, got: ''" in done.stderr


@pytest.mark.parametrize("key", [KEY, "tenant:42"])
@pytest.mark.parametrize("gate", [False, True])
def test_a_resumed_key_with_an_override_of_0_is_said_to_be_stopped_and_what_ends_it(
    run, shop, make_fairness, redis_url, gate, key
):
    of = make_fairness(redis_url) if gate else None
    run("limit", "override", key, "--concurrency", "0", of=of)
    run("limit", "pause", key, of=of)
    ends = f"celery -A APP fairness limit override {key} --clear"
    why = f"limit 0: override until it is cleared, by {person(None)}"
    stopped = f"{key}: not paused; nothing starts: {why}; to end it: {ends}\n"
    assert run("limit", "resume", key, of=of).stdout == stopped
    if key == KEY:
        assert run("limit", "cool-down", key, "--clear", of=of).stdout == stopped
    run("limit", "override", key, "--clear", of=of)
    assert (
        run("limit", "resume", key, of=of).stdout
        == f"{key}: not stopped: tasks start as its limits allow\n"
    )


def test_a_resumed_key_whose_own_limit_is_0_is_said_to_be_stopped(run, shop, fairness):
    fairness.tenants.set_tier("42", "free", concurrency=0)
    assert run("limit", "resume", "tenant:42").stdout == (
        "tenant:42: not paused; nothing starts: limit 0: own number of the tenant; to end it: "
        "celery -A APP fairness tenant tier 42 free\n"
    )
    fairness.tenants.clear_tier("42")
    fairness.tenants.publish_tiers([Tier("free", 0)])
    assert run("limit", "resume", "tenant:42").stdout == (
        "tenant:42: not paused; nothing starts: limit 0: tier free\n"
    )
    fairness.queues.set_limit("celery", global_limit=0)
    assert run("limit", "resume", "queue:celery").stdout == (
        "queue:celery: not paused; nothing starts: limit 0: set for the queue by a person; "
        "to end it: celery -A APP fairness queue limit celery --clear\n"
    )


@pytest.mark.parametrize("gate", [False, True])
def test_a_tenant_that_is_paused_in_all_its_services_is_resumed_with_the_tenant_command(
    run, make_fairness, redis_url, gate
):
    of = make_fairness(redis_url if gate else "", fairness={"tier_scope": "service"})
    of.tenants.pause("42")
    assert "tenant:42" in run("limit", "list", of=of).stdout
    shown = run("limit", "show", "tenant:42", of=of)
    assert (shown.exit_code, "paused until it is resumed" in shown.stdout) == (0, True)
    resumed = run("limit", "resume", "tenant:42:pdf", of=of).stdout
    why = "limit 0: paused with all services of its tenant (tenant:42) until it is resumed, by "
    assert resumed.startswith(f"tenant:42:pdf: not paused; nothing starts: {why}")
    assert resumed.endswith("; to end it: celery -A APP fairness tenant resume 42\n")
    assert (
        run("limit", "resume", "tenant:42", of=of).stdout
        == "tenant:42: not stopped: tasks start as its limits allow\n"
    )
    assert (
        run("limit", "resume", "tenant:42:pdf", of=of).stdout
        == "tenant:42:pdf: not stopped: tasks start as its limits allow\n"
    )
    assert run("limit", "pause", "tenant:42", of=of).exit_code == 0
    assert of.limits.inspect("tenant:42:pdf").holds.paused


@pytest.mark.parametrize(
    "name", ["42:", "42:x y", "42:b|c", "42:é", ":pdf", "42:\n", "4:" + "x" * 101]
)
def test_a_key_of_a_service_that_cannot_be_is_rejected(make_fairness, name):
    of = make_fairness(fairness={"tier_scope": "service"})
    expected = "key: expected tenant:{tenant}:{service}, or tenant:{tenant} of all its services"
    for said in (of.limits.pause, of.limits.resume):
        with pytest.raises(ValueError, match=re.escape(expected)):
            said(f"tenant:{name}")
    with pytest.raises(ValueError, match=re.escape(expected)):
        of.limits.inspect(f"tenant:{name}")
    for key in (f"tenant:{name}", "tenant:42"):
        with pytest.raises(
            ValueError, match=re.escape("key: expected tenant:{tenant}:{service}, got")
        ):
            of.limits.override(key, concurrency=1)


@pytest.mark.parametrize(
    "words",
    [
        ("limit", "override", KEY, "--concurrency"),
        ("tenant", "tier", "42", "free", "--concurrency"),
        ("queue", "limit", "celery", "--global-limit"),
    ],
)
def test_a_number_that_is_too_long_to_read_is_wrong_usage(run, shop, words):
    done = run(*words, "9" * 4_301)
    assert done.exit_code == 2
    assert "expected" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("types", [[["a"]], [{}], [None], [5]])
def test_types_of_events_that_are_none_are_told(fairness, types):
    with pytest.raises(ValueError, match=r"types: expected some of fairness\.abandoned, .*, got: "):
        fairness.events.read(types=types)


def test_blanks_around_the_types_of_events_are_no_part_of_them(run, shop):
    run("limit", "pause", KEY)
    run("limit", "resume", KEY)
    done = run("events", "--types", " fairness.paused, fairness.resumed ")
    assert [line.split("  ")[1] for line in done.output.splitlines()] == [
        "fairness.paused",
        "fairness.resumed",
    ]


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("statu", "status"),
        ("limt show api", "limit"),
        ("limit sho api", "show"),
        ("tenant tier 42 pro_pls", "pro_plus"),
        ("events --types fairness.pausd", "fairness.paused"),
        ("limit show api.exmple.com", "api.example.com"),
        ("limit pause api.exmple.com", "api.example.com"),
        ("queue show mial", "mail"),
    ],
)
def test_a_misspelled_name_is_answered_with_the_nearest_one(run, shop, line, meant):
    shop.put("acme", "t", queue="mail", limits="api.example.com|C1|w")
    shop.put("acme", "t2", queue="mail", limits="api.example.com|C1|w")
    shop.claim(queue="mail")
    done = run(*line.split())
    assert f"id you mean '{meant}'?" in done.stderr, done.output
    assert done.exit_code == (0 if "pause" in line else 1 if "show" in line[6:] else 2), done.output


def test_a_name_like_no_other_has_no_suggestion(run, shop):
    for line in ("xyzzy", "limit show xyzzy", "queue show xyzzy"):
        assert "did you mean" not in run(*line.split()).stderr.lower()
