"""What becomes of each task, emitted while a trace is on."""

from __future__ import annotations

import pytest

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Verdict
from tests.lua.dispatching import NOW, PREFIX, Dispatch

#: Milliseconds that an unwatched stream is kept.
KEPT_MS = 3_600_000


@pytest.fixture
def dispatch(client):
    return Dispatch(client, Rules(default_limit=None))


def watch(dispatch, wait_ms=60_000):
    return dispatch.run(calls.TRACE, calls.trace_args(wait_ms, str(dispatch.now)))


def emitted(dispatch):
    """Return what was emitted since the trace began."""
    entries = [fields for _, fields in dispatch.client.xrange(PREFIX + "trace")]
    assert entries[0]["type"] == "trace.started"
    return entries[1:]


def test_nothing_is_emitted_while_no_trace_is_on(dispatch):
    dispatch.put("a")
    dispatch.settle(dispatch.claim().tasks)
    assert not dispatch.client.exists(PREFIX + "trace")


def test_a_task_is_reported_from_its_put_to_its_end(dispatch):
    watch(dispatch)
    dispatch.put("a", tier="pro", rank=7, cost=0.1, kind="k")
    dispatch.now += 1_250
    tasks = dispatch.claim().tasks
    dispatch.now += 1
    dispatch.settle(tasks, Verdict.BEGUN)
    dispatch.now += 2_002
    dispatch.settle(tasks)
    task = {"job_id": "t1", "job_type": "k", "queue": "q", "key": "tenant:a"}
    attempt = {**task, "attempt": "1", "owner": "w1"}
    cost = "0.10000000000000001"
    put = {"tier": "pro", "cost": cost, "rank": "7", "eta": str(NOW)}
    assert emitted(dispatch) == [
        {"type": "task.put", **task, **put},
        {"type": "task.started", **attempt, "waited_seconds": "1.250"},
        {"type": "task.ended", **attempt, "outcome": "done", "ran_seconds": "2.003"},
    ]


def test_one_that_waits_for_its_time_says_so(dispatch):
    watch(dispatch)
    dispatch.put("a", eta_ms=NOW + 5_000)
    dispatch.now += 5_004
    dispatch.claim_all()
    put, started = emitted(dispatch)
    assert put["eta"] == str(NOW + 5_000)
    assert started["waited_seconds"] == "0.004"


@pytest.mark.parametrize(
    "verdict", [each for each in Verdict if each.value not in ("acked", "taken")]
)
def test_every_end_is_reported_once_and_as_what_it_is(dispatch, verdict):
    watch(dispatch)
    dispatch.put("a")
    tasks = dispatch.claim().tasks
    for _ in range(2):
        dispatch.settle(tasks, verdict)
    ends = [each["outcome"] for each in emitted(dispatch) if each["type"] == "task.ended"]
    assert ends == ([] if verdict is Verdict.BEGUN else [verdict.value])


@pytest.mark.parametrize("state", ["claimed", Verdict.BEGUN, Verdict.ACKED])
def test_a_lease_that_nobody_renews_is_reported_too(dispatch, state):
    watch(dispatch)
    dispatch.put("a")
    tasks = dispatch.claim().tasks
    if state != "claimed":
        dispatch.settle(tasks, state)
    for _ in range(4):
        dispatch.now += 5_000
        dispatch.run(
            calls.NEXT_OUTCOME, calls.next_outcome_args("", dispatch.rules, str(dispatch.now))
        )
    (end,) = [each for each in emitted(dispatch) if each["type"] == "task.ended"]
    assert end["outcome"] == "expired"


def test_it_ends_by_itself_and_a_shorter_watch_takes_nothing_from_a_longer(dispatch):
    assert watch(dispatch, 10_000) == NOW + 10_000
    assert watch(dispatch, 1) == NOW + 10_000
    dispatch.now += 9_999
    dispatch.put("a")
    dispatch.now += 1
    dispatch.put("b")
    dispatch.settle(dispatch.claim().tasks)
    assert [each["key"] for each in emitted(dispatch)] == ["tenant:a"]
    assert 0 < dispatch.client.pttl(PREFIX + "trace") <= KEPT_MS + 10_000


def test_a_watch_that_was_interrupted_says_where_it_begins_anew(dispatch):
    watch(dispatch, 1_000)
    dispatch.now += 1_000
    assert watch(dispatch, 500) == NOW + 1_500
    types = [each["type"] for _, each in dispatch.client.xrange(PREFIX + "trace")]
    assert types == ["trace.started"] * 2


def test_what_is_reported_of_tasks_is_bounded(dispatch):
    watch(dispatch)
    with dispatch.client.pipeline() as pipe:
        for _ in range(100_500):
            pipe.xadd(PREFIX + "trace", {"type": "task.put"})
        pipe.execute()
    dispatch.put("a")
    assert 100_000 <= dispatch.client.xlen(PREFIX + "trace") <= 100_200


def test_each_event_is_one_command_and_the_end_reads_the_task(dispatch, commands):
    def ran():
        with commands() as counted:
            dispatch.put("a")
            dispatch.settle(dispatch.claim().tasks)
        return sum(counted.values())

    ran()
    quiet = ran()
    watch(dispatch)
    assert ran() == quiet + 3 + 1
