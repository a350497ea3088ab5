"""Entries whose record, lane or place somebody has deleted: each call goes on, and counts them."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Verdict
from tests.lua.dispatching import PREFIX, Dispatch

LIMITED = write_limits((Limit("api", concurrency=1),))
DROPPING = write_limits((Limit("api", concurrency=1, on_limit="drop"),))


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client)


def starts_another(dispatch):
    dispatch.put("b")
    assert [task.key for task in dispatch.claim_all()] == ["tenant:b"]


def waits(dispatch):
    dispatch.put("a")
    return starts_another


def waits_for_its_time(dispatch):
    dispatch.put("a", eta_ms=dispatch.now + 1)
    dispatch.now += 1
    return starts_another


def waits_at_a_limit(dispatch, limits=LIMITED):
    dispatch.put("z", limits=limits)
    running = dispatch.claim_all()
    dispatch.put("a", limits=limits)
    dispatch.claim_all()

    def frees_the_limit(dispatch):
        dispatch.settle(running)
        starts_another(dispatch)

    return frees_the_limit


def is_dropped_by_a_limit(dispatch):
    dispatch.put("z", limits=DROPPING)
    dispatch.claim_all()
    dispatch.put("a", limits=DROPPING)
    return starts_another


def is_given_back(dispatch):
    dispatch.put("a")
    running = dispatch.claim().tasks

    def ends(dispatch):
        dispatch.settle(running, Verdict.HEAD)
        starts_another(dispatch)

    return ends


def has_an_outcome(dispatch):
    dispatch.put("a")
    dispatch.settle(dispatch.claim().tasks, Verdict.ACKED)
    dispatch.let_a_lease_pass()

    def is_asked_for(dispatch):
        assert dispatch.next_outcome() is None
        starts_another(dispatch)

    return is_asked_for


def is_purged(dispatch):
    dispatch.put("a")

    def goes_on(dispatch):
        dispatch.put("b")
        assert dispatch.run(calls.PURGE, ["q"]) == 2
        assert dispatch.find("t2") is None

    return goes_on


@pytest.mark.parametrize(
    ("prepare", "lost", "counted"),
    [
        (waits, "ready:tenant:a q", 1),
        (waits, "lane:tenant:a *", 1),
        (waits, "tasks", 1),
        (waits_for_its_time, "tasks", 1),
        (waits_at_a_limit, "blocked_lanes:tenant:a *", 1),
        (waits_at_a_limit, "available:q", 1),
        # The lane, and then the tenant that has no other.
        (is_dropped_by_a_limit, "lane:tenant:a *", 2),
        (is_given_back, "tasks", 1),
        (has_an_outcome, "tasks", 1),
        (is_purged, "ready:tenant:a q", 1),
    ],
)
def test_a_lost_entry_is_counted_and_stops_nobody(dispatch, client, prepare, lost, counted):
    go_on = prepare(dispatch)
    assert client.delete(*client.keys(PREFIX + lost)) == 1
    go_on(dispatch)
    assert client.hget(PREFIX + "counters", "lost_entries") == str(counted)
