"""A tenant that stands in keys as a hash: what the commands show of it works where it is typed."""

from __future__ import annotations

import json

import pytest

from celery_fairness.config.tenants import key_part, reserved, tier_key
from tests.cli.clearing import send
from tests.support.library import tag_of
from tests.support.parts import parts_of

PLAIN = "me@example.org"
#: As every command shows it.
WRITTEN = key_part(PLAIN)
KEY = tier_key(PLAIN)


@pytest.fixture
def shop(installation, client):
    """The installation, with two tasks of the tenant alone."""
    client.flushdb()
    send(installation, WRITTEN, "first")
    send(installation, WRITTEN, "second")
    return installation


def test_inspect_takes_the_key_that_it_shows(run, shop):
    shown = run("limit", "show", f"tenant:{PLAIN}").output
    assert shown.startswith(f"{KEY}: tier free, limit 1, held 0")
    assert run("limit", "show", KEY).output == shown
    assert KEY in run("limit", "list").output


def test_the_key_that_is_shown_is_paused_and_resumed(run, shop, fairness):
    assert run("limit", "pause", KEY).output.startswith(
        f"{KEY}: paused until it is resumed, by ada"
    )
    assert not shop.claim()
    assert fairness.limits.inspect(f"tenant:{PLAIN}").holds.paused
    assert run("limit", "resume", KEY).exit_code == 0
    assert len(shop.claim()) == 1


def test_the_key_that_is_shown_is_overridden_and_cleared(run, shop, fairness):
    assert run("limit", "override", KEY, "--concurrency", "2").exit_code == 0
    assert fairness.limits.inspect(f"tenant:{PLAIN}").limit == 2
    assert len(shop.claim()) == 2
    assert run("limit", "override", KEY, "--clear").exit_code == 0
    assert not fairness.limits.clear_override(f"tenant:{PLAIN}")


def test_the_tenant_that_is_shown_is_purged(run, shop):
    done = run("tenant", "purge", WRITTEN)
    assert done.output == f"tenant {WRITTEN}: 2 tasks cancelled\n"
    assert not shop.claim()


def test_a_tier_of_who_is_shown_is_published_and_forgotten(run, shop, fairness, client):
    parts_of(fairness)._publish_settings()
    assert run("tenant", "tier", WRITTEN, "enterprise", "--concurrency", "7").exit_code == 0
    found = fairness.limits.inspect(f"tenant:{PLAIN}")
    assert (found.tier, found.limit) == ("enterprise", 7)
    assert run("tenant", "tier", WRITTEN).output.startswith(f"{KEY}: tier enterprise, limit 7")
    assert run("tenant", "tier", WRITTEN, "--clear").exit_code == 0
    assert not client.exists(shop.key(KEY))


def test_what_an_event_says_is_taken_by_the_methods(shop, fairness):
    fairness.tenants.pause(PLAIN)
    (event,) = fairness.events.read(types=["fairness.paused"]).events
    assert not fairness.limits.resume(event.data["key"]).paused
    fairness.tenants.pause(WRITTEN)
    assert not fairness.tenants.resume(PLAIN).paused
    assert len(shop.claim()) == 1


def test_a_tenant_of_one_service_is_taken_as_it_is_shown(make_fairness, client):
    fairness = make_fairness(fairness={"tier_scope": "service"})
    shown = fairness.limits.pause(f"tenant:{PLAIN}:export").key
    assert shown == f"{KEY}:export"
    assert fairness.limits.inspect(shown).key == shown
    assert not fairness.limits.resume(shown).paused
    assert not fairness.limits.inspect(f"tenant:{PLAIN}:export").holds.paused


def test_a_service_and_a_tenant_with_a_colon_are_paused_apart(make_fairness, shop, client):
    fairness = make_fairness(fairness={"tier_scope": "service"})
    client.flushdb()
    shop.put("acme:mail", "its", service="_")
    shop.put("acme", "of-a-service", service="mail")
    fairness.limits.pause("tenant:acme:mail")
    assert not fairness.tenants.inspect("acme:mail").holds.paused
    assert [tag_of(task.lease) for task in shop.claim()] == ["its"]
    with pytest.raises(ValueError, match="limit pause tenant:acme:mail:_"):
        fairness.tenants.pause("acme:mail")


def test_the_tier_of_all_without_a_tenant_is_that_which_is_shown(run, shop, fairness, client):
    parts_of(fairness)._publish_settings()
    done = json.loads(run("tenant", "tier", "_none", "pro", "--json").stdout)
    assert (done["key"], done["tier"]) == ("tenant:_none", "pro")
    assert client.hget(shop.key("tenant:_none"), "tier") == "pro"


@pytest.mark.parametrize(
    "tenant", ["h_", "h_42", f"h_{'0' * 31}", f"h_{'0' * 33}", f"h_{'A' * 32}"]
)
def test_only_what_has_the_form_of_a_hash_is_taken_for_one(tenant):
    assert tier_key(reserved(tenant)) == f"tenant:{key_part(tenant)}"


def test_a_producer_hashes_a_tenant_that_is_called_like_a_hash(fairness, shop, client):
    parts_of(fairness).app.tasks["shop.add"].delay(1, 2, user=WRITTEN)
    assert client.exists(shop.key(f"tenant_state:{tier_key(WRITTEN)}"))
    assert tier_key(WRITTEN) != KEY
