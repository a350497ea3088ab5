"""How long a task waited before its start: the time in its head, and how the wait is counted."""

from __future__ import annotations

import pytest

from celery_fairness.scheduler.types import Rules, Verdict
from tests.lua.dispatching import NOW, PREFIX, Dispatch

ALL = Rules(default_limit=None)


@pytest.fixture
def dispatch(client):
    return Dispatch(client, ALL)


def counted(dispatch, at=NOW):
    return dispatch.client.hgetall(f"{PREFIX}stats:{at // 60_000}")


def waits_since(dispatch, tag):
    """Return the field of a task's head that holds the beginning of its wait."""
    return dispatch.client.hget(PREFIX + "tasks", tag).split(" ")[10]


@pytest.mark.parametrize(
    ("waited_ms", "bits"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1023, 10), (1024, 11)]
)
def test_a_wait_is_counted_by_its_power_of_two(dispatch, waited_ms, bits):
    dispatch.put("a")
    dispatch.now += waited_ms
    dispatch.claim()
    assert counted(dispatch, dispatch.now) == {f"alone:{bits} free q": "1"}


def test_a_clock_that_was_put_back_counts_no_wait(dispatch):
    dispatch.put("a")
    dispatch.now -= 500
    dispatch.claim()
    assert counted(dispatch, dispatch.now) == {"alone:0 free q": "1"}


def test_what_stands_behind_its_own_tenant_is_noisy(dispatch):
    for tenant, queue in (("a", "q"), ("b", "q"), ("a", "q"), ("a", "other")):
        dispatch.put(tenant, queue)
    dispatch.claim(queues=("q", "other"))
    assert counted(dispatch) == {
        "alone:0 free q": "2",
        "behind_own:0 free q": "1",
        "alone:0 free other": "1",
    }


def test_quiet_again_once_nothing_of_it_waits(dispatch):
    dispatch.put("a")
    dispatch.claim()
    dispatch.put("a")
    assert waits_since(dispatch, "t2") == str(NOW)
    dispatch.put("a")
    assert waits_since(dispatch, "t3") == f"{NOW}+"


@pytest.mark.parametrize("expires_ms", [0, NOW + 60_000])
def test_the_wait_for_its_time_is_none(dispatch, expires_ms):
    dispatch.put("a", eta_ms=NOW + 5_000, expires_ms=expires_ms)
    assert dispatch.claim().tasks == ()
    dispatch.now += 5_003
    dispatch.claim_all()
    assert counted(dispatch, dispatch.now) == {"alone:2 free q": "1"}


def test_the_key_of_a_tenant_that_rejected_a_task_counts_with_all_others(dispatch):
    dispatch.rules = Rules(default_limit=1)
    for _ in range(2):
        dispatch.put("a")
    first = dispatch.claim().tasks
    dispatch.now += 5
    dispatch.settle(first)
    dispatch.claim_all()
    limited = {
        name: count for name, count in counted(dispatch).items() if name.startswith("limited")
    }
    assert limited == {"limited:3  _other": "1"}


def test_only_the_first_start_is_counted_as_a_wait(dispatch):
    dispatch.put("a")
    for verdict in (Verdict.HEAD, Verdict.DIED, Verdict.TAIL):
        dispatch.settle(dispatch.claim().tasks, verdict)
    ends = {"failed  q": "1", "retried  q": "1"}
    assert counted(dispatch) == {"alone:0 free q": "1", "started free q": "2", **ends}


def test_one_that_comes_back_has_its_time_of_before(dispatch):
    dispatch.put("a", kind="k")
    first = dispatch.claim().tasks
    dispatch.now += 7
    dispatch.settle(first, Verdict.HEAD)
    assert dispatch.find("t1")[0] == "waiting"
    assert waits_since(dispatch, "t1") == str(NOW)


def test_a_claim_writes_with_as_many_commands_however_long_its_tasks_waited(dispatch, commands):
    def claimed(*waits_ms):
        for number, waited_ms in enumerate(waits_ms):
            dispatch.now -= waited_ms
            dispatch.put(f"tenant{number}")
            dispatch.now += waited_ms
        with commands() as ran:
            tasks = dispatch.claim().tasks
        dispatch.settle(tasks)
        return ran

    claimed(0, 1, 2, 4)
    assert claimed(0, 0, 0, 0) == claimed(0, 1, 2, 4)
