"""Claims that pass over names of task: what they take, what they leave, and who is woken for it."""

from __future__ import annotations

import pytest

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Settled, Verdict
from tests.lua.dispatching import MINUTE, PREFIX, Dispatch

#: Tenants passed over by one claim.
PASSED = 16


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client, Rules(default_limit=None))


def look_for(dispatch, **passing):
    """Claim as a worker does that goes on where a look stopped; return the last answer."""
    places = {}
    for times in range(1, 1000):
        answer = dispatch.claim(**passing, places=places)
        if answer.tasks or answer.sleep_ms:
            return answer, times
        places = answer.passed
    raise AssertionError("there is always more to do")


def test_a_kind_that_is_not_taken_hides_nothing_of_its_tenant_or_of_another(dispatch):
    for kind in ("x", "y", "x", "y"):
        dispatch.put("a", kind=kind)
    dispatch.put("b", kind="x")
    dispatch.put("c", kind="z")
    answer = dispatch.claim(never=("x",))
    assert sorted(dispatch.tags_of(answer)) == ["t2", "t4", "t6"]
    assert dispatch.claim(never=("x", "y", "z")).tasks == ()
    assert sorted(dispatch.tags_of(dispatch.claim(never=("y",)))) == ["t1", "t3", "t5"]


def test_whoever_takes_everything_sees_no_difference_in_the_order(dispatch):
    for number in range(20):
        dispatch.put("a", kind="xyz"[number % 3], rank=5 if number % 4 == 0 else 0)
    first = dispatch.claim(want=3, never=("x", "z"))
    assert dispatch.settle(first.tasks, Verdict.HEAD) == [Settled.SETTLED] * 3
    ranked = sorted(range(20), key=lambda number: (number % 4 != 0, number))
    assert dispatch.tags_of(dispatch.claim(want=20)) == [f"t{number + 1}" for number in ranked]


def test_a_kind_that_is_taken_once_leaves_the_place_to_others(dispatch):
    for kind in ("x", "x", "y", "x"):
        dispatch.put("a", kind=kind)
    dispatch.put("b", kind="x")
    answer = dispatch.claim(once=("x",))
    assert sorted(dispatch.tags_of(answer)) in (["t1", "t3"], ["t3", "t5"])
    assert len(dispatch.claim(once=("x", "y")).tasks) == 1
    assert dispatch.claim(never=("x",), once=("y",)).tasks == ()


def test_a_task_whose_kind_nobody_said_is_taken(dispatch):
    dispatch.put("a")
    assert dispatch.tags_of(dispatch.claim(never=("x",))) == ["t1"]


def test_what_stands_behind_what_is_passed_over_goes_by_its_age_all_the_same(dispatch):
    dispatch.put("a", kind="x")
    dispatch.put("a", kind="y", expires_ms=9_000_000_000_000)
    dispatch.put("a", kind="y")
    dispatch.put("a", kind="z", expires_ms=9_000_000_000_000)
    claims = [dispatch.tags_of(dispatch.claim(want=1, never=("x",))) for _ in range(3)]
    assert claims == [["t2"], ["t3"], ["t4"]]


def test_a_higher_rank_is_looked_through_before_a_lower_one(dispatch):
    for _ in range(PASSED + 1):
        dispatch.put("a", kind="x", rank=9)
    dispatch.put("a", kind="y", rank=9)
    dispatch.put("a", kind="y", rank=0)
    claims = [dispatch.tags_of(dispatch.claim(want=1, never=("x",))) for _ in range(2)]
    assert claims == [[f"t{PASSED + 2}"], [f"t{PASSED + 3}"]]


def test_what_was_passed_over_has_no_credit_and_the_ring_s_time_does_not_go_back(dispatch, client):
    dispatch.put("old", kind="x")
    for _ in range(100):
        dispatch.put("busy", kind="y")
    assert len(dispatch.claim(want=50, never=("x",)).tasks) == 50
    for _ in range(10):
        dispatch.put("old", kind="y")
    order = [task.key[-3:] for task in dispatch.claim(want=20).tasks]
    assert order[0] == "old", "it has waited longest"
    assert order.count("old") in (10, 11)
    assert float(client.hget(PREFIX + "virtual_times", "queue q")) >= 50


def test_a_crowd_that_waits_for_another_worker_hides_nobody(dispatch):
    for number in range(500):
        dispatch.put(f"a{number:03}", kind="new")
    dispatch.put("z", kind="y")
    answer, times = look_for(dispatch, want=1, never=("new",))
    assert dispatch.tags_of(answer) == ["t501"]
    # Each tenant is passed over.
    assert times == 500 // PASSED + 1
    # Nothing else: it sleeps, and does not look again and again.
    answer, times = look_for(dispatch, want=1, never=("new",))
    assert (answer.tasks, answer.sleep_ms, answer.passed) == ((), 1000, {"q": 500})
    assert times == 500 // PASSED + 1
    assert len(dispatch.claim_all(want=64)) == 500


def test_a_backlog_of_one_name_is_passed_over_at_once(dispatch, commands):
    for _ in range(100):
        dispatch.put("a", kind="x")
    dispatch.put("a", kind="y")
    answer, times = look_for(dispatch, never=("x",))
    assert dispatch.tags_of(answer) == ["t101"]
    assert times == 1
    dispatch.put("a", kind="y")
    with commands() as ran:
        assert dispatch.tags_of(dispatch.claim(never=("x",))) == ["t102"]
    assert sum(ran.values()) < 45, ran


def test_a_full_queue_that_is_not_taken_costs_a_claim_a_few_commands(dispatch, commands):
    for _ in range(50):
        dispatch.put("a", kind="x")
    look_for(dispatch, never=("x",))
    with commands() as ran:
        assert dispatch.claim(never=("x",)).sleep_ms == 1000
    assert sum(ran.values()) < 20, ran


def test_who_passes_nothing_over_pays_nothing_for_it(dispatch, commands):
    def cost(**passing):
        dispatch.client.flushall()
        dispatch.number = 0
        for kind in ("x", "y"):
            dispatch.put("a", kind=kind)
        dispatch.claim(want=1)
        with commands() as ran:
            assert len(dispatch.claim(want=1, **passing).tasks) == 1
        return ran

    usual = cost()
    assert usual["hget"] == 4, "the ring's time twice, and the head and the message of the task"
    assert cost(never=("z",)) == usual


# -- bells ----------------------------------------------------------------------------------------


def test_who_passes_a_task_over_leaves_a_bell_for_others_and_hears_of_what_comes(dispatch, client):
    bell, left = PREFIX + "wakeup:q", PREFIX + "wakeup_leftover:q"
    dispatch.put("a", kind="x")
    assert client.lpop(bell) == "1"
    assert dispatch.claim(never=("x",)).passed == {"q": 1}
    # It listens to `bell` alone, and `left` is for somebody else.
    assert (client.exists(bell), client.exists(left)) == (0, 1)
    assert dispatch.claim(never=("x",)).sleep_ms == 1000
    assert (client.exists(bell), client.llen(left)) == (0, 1)
    dispatch.put("a", kind="y")
    assert client.lpop(bell) == "1"
    assert len(dispatch.claim().tasks) == 2
    assert client.exists(bell, left) == 0


@pytest.mark.parametrize("want", [1, 2])
def test_a_claim_that_empties_its_queue_silences_both_bells(dispatch, client, want):
    for _ in range(2):
        dispatch.put("a")
    dispatch.claim(want=want)
    assert client.exists(PREFIX + "wakeup_leftover:q") == 2 - want
    dispatch.claim(want=2)
    assert client.exists(PREFIX + "wakeup:q", PREFIX + "wakeup_leftover:q") == 0


def test_a_purge_silences_both_bells_and_finds_what_was_passed_over(dispatch, client):
    for kind in ("x", "y", "x"):
        dispatch.put("a", kind=kind)
    dispatch.claim(want=1, never=("x", "y"))
    assert dispatch.run(calls.PURGE, ["q"]) == 3
    left = {key.removeprefix(PREFIX) for key in client.keys(PREFIX + "*")}
    assert left == {"clock", "events", "kept_events"}


def test_a_task_that_was_passed_over_is_withdrawn_when_its_end_comes_late(dispatch, client):
    dispatch.put("a", kind="x")
    (task,) = dispatch.claim().tasks
    dispatch.let_a_lease_pass()
    dispatch.claim(never=("x",))
    assert dispatch.settle([task]) == [Settled.WITHDRAWN]
    left = {key.removeprefix(PREFIX) for key in client.keys(PREFIX + "*")}
    assert left - {"events"} == {
        "clock",
        "last_answer:w1",
        "counters",
        "kept_events",
        MINUTE,
    }
