"""Lanes that wait at limits cost a freed slot no command, however many they are; nor does a setting
that is not used."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit, shape_of, write_limits
from celery_fairness.scheduler.types import Rules
from tests.lua.dispatching import NOW, PREFIX, Dispatch

UNLIMITED = Rules(default_limit=None)
MANY = 400
#: Each kind of task that expires is a part of its lane.
MANY_KINDS = 1_100
API = write_limits((Limit("api", concurrency=1),))


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client, UNLIMITED)


def freed(dispatch, commands, held):
    """Return the commands of a settle, and of the claim that takes the slots again."""
    with commands() as of_settle:
        dispatch.settle(held)
    with commands() as of_claim:
        started = dispatch.claim(want=len(held)).tasks
    assert len(started) == len(held)
    return of_settle, of_claim, started


def at_three_limits(dispatch, commands, lanes):
    """Lanes of many tenants at one of two shared limits; a third is each tenant's own."""

    def put(tenant):
        own = Limit(f"own:{tenant}", concurrency=3, private=True)
        limits = (own, Limit("api", concurrency=2), Limit("region", concurrency=9))
        dispatch.put(tenant, limits=write_limits(limits))

    for number in range(2):
        put(f"h{number}")
    held = dispatch.claim(want=2).tasks
    for number in range(lanes):
        put(str(number))
        put(str(number))
    while not dispatch.claim(want=1).sleep_ms:
        pass
    ran = []
    for _ in range(4):
        *counted, held = freed(dispatch, commands, held)
        ran.append(counted)
    return ran


def at_two_limits(dispatch, commands, lanes):
    """Lanes want two full limits; others take every slot of either that is freed."""

    def put(tenant, *keys):
        dispatch.put(tenant, limits=write_limits(tuple(Limit(key, concurrency=1) for key in keys)))

    held = []
    for key in ("x", "y"):
        put(f"{key}-only", key)
        held.append(dispatch.claim(want=1).tasks)
        for _ in range(9):
            put(f"{key}-only", key)
    for number in range(lanes):
        put(str(number), "x", "y")
    while not dispatch.claim(want=1).sleep_ms:
        pass
    ran = []
    for _ in range(8):
        *counted, started = freed(dispatch, commands, held.pop(0))
        assert started[0].key.endswith("-only," + started[0].key[-1])
        held.append(started)
        ran.append(counted)
    return ran


@pytest.mark.parametrize("crowd", [at_three_limits, at_two_limits])
def test_a_freed_slot_costs_no_more_with_many_lanes(dispatch, client, commands, crowd):
    few = crowd(dispatch, commands, 20)
    client.flushall()
    assert crowd(Dispatch(client, UNLIMITED), commands, MANY) == few


def with_many_kinds(dispatch):
    """A lane of many kinds waits at a full limit; returns what holds that."""
    dispatch.put("first", limits=API)
    held = dispatch.claim(want=1).tasks
    for number in range(MANY_KINDS):
        dispatch.put("a", kind=f"k{number}", limits=API, expires_ms=NOW + 10**9)
    return held


def test_a_lane_is_blocked_whole_however_many_kinds_it_has(dispatch, client):
    held = with_many_kinds(dispatch)
    dispatch.put("b")
    assert [task.key for task in dispatch.claim().tasks] == ["tenant:b"]
    assert not client.exists(PREFIX + "ready:tenant:a q", PREFIX + "active:q")
    dispatch.settle(held)
    assert len(dispatch.claim().tasks) == 1


def test_a_group_goes_on_whose_first_member_has_no_lane_any_more(dispatch, client):
    dispatch.put("first", limits=API)
    held = dispatch.claim(want=1).tasks
    for tenant in "ab":
        dispatch.put(tenant, limits=API)
    assert dispatch.claim().tasks == ()
    assert client.delete(PREFIX + f"blocked_lanes:tenant:a {shape_of(API)} q") == 1
    dispatch.settle(held)
    assert [task.key for task in dispatch.claim().tasks] == ["tenant:b,api"]
