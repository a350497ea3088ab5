"""The check finds a closed tenant that nothing will open, and none that something will."""

from __future__ import annotations

import json

import pytest

from celery_fairness.scheduler import calls
from tests.cli.conftest import Installation
from tests.support.tiers import tier_row
from tests.support.waiting import at_most, eventually

KEY = "tenant:42"
#: The running task of that tenant, whose limit is 1.
LEASE = "t0.1.1"
FAR = 9e15
#: It may hold two, and no news say so.
TWO = ("HSET", "tenant:42", "tier", "free", "numbers", "C2")

PLANTED = {
    "a lease that ended without a word": [("ZREM", f"leases:{KEY}", LEASE)],
    "a number of its own that is no news": [TWO],
    "a tier of its own that is no news": [
        ("HSET", "tenant:42", "tier", "pro"),
        ("HSET", "tiers", "pro", "3"),
    ],
    "a tier table that is no news": [("HSET", "tiers", "free", "2")],
    "a default tier that is no news": [
        ("HSET", f"tenant_state:{KEY}", "tier", "gone"),
        ("HSET", "tiers", "free", "2"),
    ],
    "a number without end that is no news": [
        ("HSET", "tenant:42", "tier", "free", "numbers", "C-")
    ],
    "a tier without end that is no news": [("HSET", "tiers", "free", "null")],
    "one that was paused, and is not": [("ZADD", "at_limit", -1, KEY), TWO],
    "news that are lost": [("ZADD", "at_limit", 8, KEY), TWO],
    "news that the clock calls judged": [TWO, ("ZADD", "at_limit", 0, KEY)],
    "a time that is another's": [("ZADD", "ends", FAR, " tenant:other"), TWO],
}

NOT_A_DEFECT = {
    "as many leases as it may hold": [],
    "more leases than it may hold": [("ZADD", f"leases:{KEY}", "inf", "other.1")],
    "news since": [TWO, ("HSET", "clock", "version", 1)],
    "a put of another tier since": [
        TWO,
        ("ZADD", "at_limit", 0, KEY),
        ("HDEL", "clock", "checked"),
    ],
    "paused before the news": [
        TWO,
        ("ZADD", "at_limit", -1, KEY),
        ("HSET", "clock", "version", 1),
    ],
    "a time at which it is judged anew": [TWO, ("ZADD", "ends", FAR, f" {KEY}")],
    "a lease of the gate and a time": [
        ("ZREM", f"leases:{KEY}", LEASE),
        ("ZADD", f"leases:{KEY}", FAR, "gate"),
        ("ZADD", "ends", FAR, f" {KEY}"),
    ],
    "paused, with nothing running": [
        ("HSET", "tenant:42", "tier", "free", "numbers", "C0"),
        ("ZADD", "at_limit", -1, KEY),
        ("ZREM", f"leases:{KEY}", LEASE),
    ],
    "a pause that the next claim ends": [
        ("ZADD", "at_limit", -1, KEY),
        ("ZREM", f"leases:{KEY}", LEASE),
        ("ZADD", "changes_end", 1, f"pause {KEY}"),
    ],
    "an override that the next claim ends": [
        ("ZREM", f"leases:{KEY}", LEASE),
        ("ZADD", "changes_end", 1, f"override {KEY}"),
    ],
    "a tier of which it has the number": [
        ("HSET", "tenant:42", "tier", "pro", "numbers", "C1"),
        ("HSET", "tiers", "pro", "3"),
    ],
    "open": [TWO, ("HDEL", f"tenant_state:{KEY}", "at_limit"), ("ZREM", "at_limit", KEY)],
}


def plant(it, commands):
    for command, key, *args in commands:
        if key == "tiers":
            args[-1] = tier_row(json.loads(args[-1]))
        it.client.execute_command(command, it.key(key), *args)


def closed(check):
    """Return the tenants that nothing opens, by the check."""
    return [each.row for each in check().findings if each.check == "tenant_left_at_limit"]


@pytest.mark.parametrize("name", PLANTED)
def test_a_closed_tenant_that_nothing_opens_is_found_and_opened(installation, client, check, name):
    plant(installation, PLANTED[name])
    assert closed(check) == [KEY]
    check(repair=True)
    assert check().findings == ()
    # Without the running task it is open, and else it has a number for another.
    assert not client.hexists(
        installation.key(f"tenant_state:{KEY}"), "at_limit"
    ) or LEASE in client.zrange(installation.key(f"leases:{KEY}"), 0, -1)


@pytest.mark.parametrize("name", NOT_A_DEFECT)
def test_a_closed_tenant_that_something_opens_is_none(installation, check, name):
    plant(installation, NOT_A_DEFECT[name])
    assert closed(check) == []


def test_the_tenant_of_a_service_is_asked_for(client, check):
    """Key parts may hold colons: only the account says which is the tenant."""
    it = Installation(client)
    for number in range(2):
        it.put("a:b", f"t{number}", service="s")
    assert len(it.claim()) == 1
    it.claim()
    assert check().findings == ()
    plant(it, [("HSET", "tenant:a:b", "tier", "free", "numbers", "C2")])
    assert closed(check) == ["tenant:a:b:s"]


def test_a_default_limit_is_that_of_the_settings(installation, make_fairness):
    fairness = make_fairness(fairness={"tiers": {"free": {"concurrency": 2}}})
    assert closed(fairness.check) == [KEY]


def test_nothing_is_found_while_limits_change(client, coming_and_going, check):
    """News, records that are forgotten and leases of the gate open tenants, each in its own way."""

    def put(it, turn):
        tenant = f"c{turn % 9}"
        it.put(tenant, f"new-{turn}", tier=("free", "pro", "")[turn % 3])
        it.put(tenant, f"more-{turn}", limits=f"tenant:c{turn % 7}|C2|w")
        if turn % 5 == 0:
            publish_tenant(it, tenant, ("pro", "free", "")[turn % 3], keep_ms=turn % 40)
        if turn % 11 == 0:
            publish_tiers(it, free=1 + turn % 2, pro=turn % 4)
        if turn % 3 == 0:
            enter_the_gate(it, tenant, f"gate-{turn}", lease_ms=100 + turn % 400)

    found, closed = [], 0

    def many_and_with_closed():
        nonlocal closed
        found.append(check())
        # There are some; whether at this moment is chance.
        closed += client.zcard("{fairness}:at_limit")
        return len(found) >= 12 and closed

    with coming_and_going(put):
        eventually(many_and_with_closed, at_most(20), 0)
    assert [each.findings for each in found] == [()] * len(found)


def publish_tenant(it, tenant, tier, keep_ms):
    it.run(calls.PUBLISH_TENANT, calls.tenant_args(f"tenant:{tenant}", tier, "", keep_ms))


def publish_tiers(it, **limits):
    rows = {name: tier_row(limit) for name, limit in limits.items()}
    it.run(calls.PUBLISH_TIERS, calls.tiers_args(rows, "database"))


def enter_the_gate(it, tenant, lease, lease_ms):
    key = f"tenant:{tenant}"
    known, copies = ("free", "", "free", "C1"), ("", "", "", "1000")
    args = (lease, lease_ms, "observe", key, key, *known, "", *copies, "", lease_ms, "", "", "", "")
    it.run(calls.ACQUIRE, args)
