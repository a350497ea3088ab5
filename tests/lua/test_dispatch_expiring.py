"""A task that waits when its expiry comes ends there, and starts nothing."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Settled, Verdict
from tests.lua.dispatching import NOW, PREFIX, Dispatch

SOON = NOW + 1_000
#: Of what one call does of what is due.
DUE_AT_MOST = 16


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client)


def outcomes_of(dispatch):
    """Write every outcome; return which tasks they are of."""
    told, written = [], ""
    while (outcome := dispatch.next_outcome(written)) is not None:
        told.append((outcome.message.removeprefix("of "), outcome.state, outcome.owner))
        written = outcome.name
    return told


def nothing_is_left(client):
    """But for what lives for ever, or ends by itself."""
    kept = {"clock", "tiers", "counters", "events", "kept_events"}
    names = [key.removeprefix(PREFIX) for key in client.keys(f"{PREFIX}*")]
    left = {name.partition(":")[0] for name in names} - kept
    assert left <= {"last_answer", "stats", "backoff", "rescheduled", "declared"}, left


def at_its_tier(dispatch):
    dispatch.publish_tiers(free=1)
    dispatch.put("a")
    (task,) = dispatch.claim().tasks
    dispatch.put("a", tag="late", expires_ms=SOON)
    assert dispatch.claim().tasks == ()
    return task


def blocked(dispatch):
    limits = write_limits((Limit("api", concurrency=1),))
    dispatch.put("a", limits=limits)
    (task,) = dispatch.claim().tasks
    dispatch.put("b", tag="late", limits=limits, expires_ms=SOON)
    assert dispatch.claim().tasks == ()
    return task


def passed_over(dispatch):
    dispatch.put("", kind="y")
    (task,) = dispatch.claim().tasks
    dispatch.put("a", tag="late", kind="x", expires_ms=SOON)
    assert dispatch.claim(never=("x",)).tasks == ()
    return task


def until_its_eta(dispatch):
    dispatch.put("")
    (task,) = dispatch.claim().tasks
    dispatch.put("a", tag="late", eta_ms=NOW + 3_600_000, expires_ms=SOON)
    assert dispatch.claim().tasks == ()
    return task


def tried_again_later(dispatch):
    limits = write_limits((Limit("rate", rate=((1, 60_000),), on_limit="reschedule"),))
    dispatch.put("a", limits=limits)
    (task,) = dispatch.claim().tasks
    dispatch.put("b", tag="late", limits=limits, expires_ms=SOON)
    assert dispatch.claim().tasks == ()
    return task


PLACES = [at_its_tier, blocked, passed_over, until_its_eta, tried_again_later]


@pytest.mark.parametrize("wait", PLACES)
def test_a_task_expires_wherever_it_waits_and_not_before(dispatch, client, wait):
    running = wait(dispatch)
    dispatch.now = SOON - 1
    assert (dispatch.claim(never=("x",)).tasks, outcomes_of(dispatch)) == ((), [])
    dispatch.now = SOON
    assert dispatch.claim(never=("x",)).tasks == ()
    assert outcomes_of(dispatch) == [("late", "expired", "-")]
    assert client.hget(PREFIX + "counters", "expired_waiting") == "1"
    dispatch.settle([running])
    assert dispatch.claim().tasks == ()
    dispatch.now += 120_000
    for _ in range(20):
        dispatch.now += 5_000
        dispatch.claim()
    nothing_is_left(client)


def test_it_stands_in_its_place_among_the_others(dispatch):
    for number in range(6):
        expires_ms = SOON if number % 2 else 0
        dispatch.put("a", tag=f"n{number}", kind=f"k{number % 3}", expires_ms=expires_ms)
    dispatch.publish_tiers(free=None)
    assert dispatch.tags_of(dispatch.claim()) == [f"n{number}" for number in range(6)]


def test_what_was_claimed_once_does_not_expire_here(dispatch, client):
    dispatch.put("a", expires_ms=SOON)
    (task,) = dispatch.claim().tasks
    assert not client.exists(PREFIX + "expires:q")
    dispatch.settle([task], Verdict.HEAD)
    dispatch.now = SOON + 1
    assert dispatch.tags_of(dispatch.claim()) == ["t1"]


@pytest.mark.parametrize("eta_ms", [0, NOW + 500])
def test_what_is_taken_out_expires_no_more(dispatch, client, eta_ms):
    dispatch.put("a", expires_ms=SOON, eta_ms=eta_ms)
    assert dispatch.run(calls.PURGE, ["q"]) == 1
    dispatch.put("a", tag="late", expires_ms=SOON, eta_ms=eta_ms)
    assert dispatch.run(calls.CANCEL, calls.cancel_args(["late"], 15_000, str(NOW))) == [1]
    dispatch.now = SOON
    dispatch.claim()
    assert outcomes_of(dispatch) == [("late", "cancelled", "-")]
    nothing_is_left(client)


def test_one_claim_ends_a_bounded_number_and_says_that_there_are_more(dispatch, client):
    dispatch.publish_tiers(free=0)
    for _ in range(DUE_AT_MOST + 1):
        dispatch.put("a", expires_ms=SOON)
    dispatch.now = SOON
    assert dispatch.claim().sleep_ms == 0
    assert client.zcard(PREFIX + "expires:q") == 1
    assert dispatch.claim().sleep_ms > 0
    assert not client.exists(PREFIX + "expires:q", PREFIX + "tenant_state:tenant:a")


def test_what_a_late_end_takes_out_expires_no_more(dispatch, client):
    dispatch.put("a", tag="twice", expires_ms=SOON)
    tasks = dispatch.claim().tasks
    dispatch.settle(tasks)
    # Both answers were lost: it is put again, and told again that it ended.
    dispatch.put("a", tag="twice", expires_ms=SOON)
    assert dispatch.settle(tasks) == [Settled.WITHDRAWN]
    assert not client.exists(PREFIX + "expires:q")


def test_what_nobody_knows_any_more_keeps_no_other_from_its_expiry(dispatch, client):
    dispatch.publish_tiers(free=0)
    dispatch.put("a", tag="late", expires_ms=SOON)
    client.zadd(PREFIX + "expires:q", {f"gone{n}": SOON - 1 for n in range(DUE_AT_MOST)})
    dispatch.now = SOON
    assert dispatch.claim().sleep_ms == 0
    assert dispatch.claim().sleep_ms > 0
    assert outcomes_of(dispatch) == [("late", "expired", "-")]
    assert not client.exists(PREFIX + "expires:q")


def test_a_claim_where_nothing_ever_expired_has_no_command_for_it(dispatch, client, commands):
    def claim():
        with commands() as ran:
            dispatch.claim()
        return sum(ran.values())

    claim()
    before = claim()
    client.hset(PREFIX + "clock", "expiring", 1)
    assert claim() == before + 1
