"""Inspection of tenants and of limits' keys where tasks wait at limits beside their tier's."""

from __future__ import annotations

import json

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.control.key.views import SavedForTask
from celery_fairness.limiter.types import KeyHolds, Lease, SlotRequest, WaitedLimit, WaitingLane
from tests.cli.conftest import Installation
from tests.support.limits import changed
from tests.support.parts import parts_of

API = "api.stripe.com|C1;R5/60000;T10/1000|w"


@pytest.fixture
def limited(client):
    """One task holds the limit, four wait at it, and one at another number of its key."""
    made = Installation(client)
    made.put("a", "t1", kind="shop.pay", limits=API)
    assert len(made.claim()) == 1
    made.put("b", "t2", limits=API)
    made.put("b", "t3", limits=API)
    made.put("b", "t4", rank=5, limits=API)
    made.put("c", "t5", limits=f"own:c|C1|wp,{API}")
    made.put("d", "t6", limits="api.stripe.com|C0|w")
    made.put("e", "t7", limits="off|C0|w,api.stripe.com|C0|w")
    assert made.claim() == []
    return made


def test_a_key_shows_who_holds_it_and_what_waits_at_it(limited, fairness):
    found = fairness.limits.inspect("api.stripe.com")
    # A 0 stops its own task, and is no number of the key.
    assert (found.key, found.tier, found.limit, found.held) == ("api.stripe.com", "", 1, 1)
    assert found.known
    (lease,) = found.leases
    assert (lease.charged, lease.task, lease.queue) == ("tenant:a", "shop.pay", "celery")
    assert found.waited == (
        WaitedLimit(
            "celery",
            {"concurrency": 1, "rate": ((5, 60_000),), "throttle": ((10, 1_000),)},
            *("exhausted", 2, 4),
        ),
        WaitedLimit("celery", {"concurrency": 0}, "paused", 1, 1),
    )
    assert [each.tasks for each in fairness.limits.inspect("off").waited] == [1]


def test_a_key_that_is_stopped_says_so(limited, fairness, run):
    assert fairness.limits.inspect("api.stripe.com").holds == KeyHolds(
        key="api.stripe.com", paused=False, cool_down_seconds=0.0
    )
    fairness.limits.pause("api.stripe.com")
    assert "paused until it is resumed" in run("limit", "show", "api.stripe.com").output
    fairness.limits.cool_down("api.stripe.com", for_seconds=60)
    holds = fairness.limits.inspect("api.stripe.com").holds
    assert (holds.paused, 10 < holds.cool_down_seconds <= 60) == (True, True)
    lines = run("limit", "show", "api.stripe.com").output.splitlines()
    assert lines[1].startswith("limit 0: paused until it is resumed, by ada since ")
    assert lines[2].startswith("otherwise 0: cool-down until ")


def test_a_key_that_is_only_stopped_is_known(fairness, run):
    assert run("limit", "show", "api.other.com").exit_code == 1
    fairness.limits.pause("api.other.com")
    assert fairness.limits.inspect("api.other.com").known
    done = run("limit", "show", "api.other.com", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["holds"]["paused"] is True


def test_what_waits_at_a_key_with_room_again_is_available(limited, fairness, client):
    client.zadd(limited.key("available:celery"), {"api.stripe.com|C#;R#;T#": 7})
    assert [each.state for each in fairness.limits.inspect("api.stripe.com").waited] == [
        "available",
        "paused",
    ]


def test_a_tenant_shows_what_it_has_parked(limited, fairness, run):
    found = fairness.limits.inspect("tenant:b")
    assert found.waiting == (WaitingLane("celery", 5, 1), WaitingLane("celery", 0, 2))
    assert not found.at_limit
    assert found.full_in == ("celery",)
    assert found.waited == ()
    lines = run("limit", "show", "tenant:b").output.splitlines()
    assert lines[2] == "blocked: all its tasks in celery wait for other limits"


def test_the_command_shows_a_key(limited, run):
    done = run("limit", "show", "api.stripe.com")
    assert done.exit_code == 0
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    assert lines[0] == "api.stripe.com: held 1"
    assert "held by lease ends in held for state task queue owner tenant" in lines
    (lease,) = (line for line in lines if line.startswith("t1 "))
    assert lease.endswith("claimed shop.pay celery worker-1 tenant:a")
    assert "limit queue state tenants waiting" in lines
    numbers = "1 at once, 5/PT1M, 10/PT1S evenly"
    assert f"{numbers} celery exhausted 2 4" in lines
    assert "0 at once celery paused 1 1" in lines


EIGHTY = Limit("gpu:memory", concurrency=80)


def test_a_key_shows_the_slots_of_its_leases_and_what_it_saves(run, fairness, client):
    made = Installation(client)
    made.put("41", "small", limits=write_limits((EIGHTY,)))
    made.put("42", "large", limits=write_limits((changed(EIGHTY, slots=60),)))
    assert len(made.claim()) == 2
    made.put("43", "waits", limits=write_limits((changed(EIGHTY, slots=100),)))
    assert not made.claim()
    found = fairness.limits.inspect("gpu:memory")
    assert (found.held, [each.slots for each in found.leases]) == (61, [60, 1])
    assert found.saving == SavedForTask(slots=80, units=0, tenant="tenant:43")
    lines = [
        " ".join(each.split()) for each in run("limit", "show", "gpu:memory").output.split("\n")
    ]
    assert lines[2] == "saves 80 slots for a task of tenant:43; waiting 1"
    assert [each.split()[-1] for each in lines[4:7]] == ["slots", "60", "1"]
    assert not [each for each in lines if "not here" in each]
    facts = json.loads(run("limit", "show", "gpu:memory", "--json").stdout)
    assert facts["saving"]["slots"] == 80


def test_a_rate_shows_what_it_saves_and_for_how_long(run, client):
    made = Installation(client)
    ten = Limit("tokens", rate=((10, 3_600_000),))
    made.put("41", "runs", limits=write_limits((changed(ten, units=6),)))
    assert len(made.claim()) == 1
    made.put("42", "waits", limits=write_limits((changed(ten, units=6),)))
    assert not made.claim()
    (line,) = [
        each for each in run("limit", "show", "tokens").output.splitlines() if "saves" in each
    ]
    assert "; saves 6 units for a task of tenant:42, for at most 36" in line


def test_a_page_of_leases_has_the_number_of_the_slots_on_others(run, client):
    made = Installation(client)
    for number in range(102):
        made.put(f"u{number}", f"t{number}", limits=write_limits((changed(MANY, slots=2),)))
    while made.claim(40):
        pass
    line = "leases of 4 other slots are not here: limit show many --page N"
    assert line in run("limit", "show", "many").output


MANY = Limit("many", concurrency=1_000)


def test_the_command_shows_a_key_to_programs(limited, run):
    found = json.loads(run("limit", "show", "off", "--json").stdout)
    assert (found["known"], found["held"], found["weight"]) == (True, 0, None)
    assert found["waited"][0]["state"] == "paused"


def test_a_key_that_is_not_known_exits_with_1_and_says_what_a_tenants_is(run):
    done = run("limit", "show", "42")
    assert done.exit_code == 1
    assert "a tenant's key is tenant:{tenant}" in done.output


def test_on_the_gate_path_a_limit_has_its_leases_and_what_is_parked(make_fairness, redis_url, run):
    fairness = make_fairness(url=redis_url)
    done = run("limit", "show", "api.stripe.com", of=fairness)
    assert done.exit_code == 1
    limits = write_limits((Limit("api.stripe.com", concurrency=1),))
    parts_of(fairness).limiter.acquire(
        SlotRequest(Lease("l1", "api.stripe.com"), "", "", limits=limits)
    )
    done = run("limit", "show", "api.stripe.com", of=fairness)
    assert done.exit_code == 0
    assert "l1" in done.output
