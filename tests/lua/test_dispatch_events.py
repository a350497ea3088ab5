"""Events of the scripts: what they cost, and by which name a task is reported."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Verdict
from tests.lua.dispatching import PREFIX, Dispatch

#: Only a claim that writes an event runs these commands.
TELLING = {"xadd"}
ONE = write_limits([Limit("api", concurrency=1)])


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client)


def test_a_claim_that_blocks_and_releases_nothing_runs_no_command_more(dispatch, commands):
    for number in range(20):
        dispatch.put(f"free{number}", limits=write_limits([Limit(f"k{number}", concurrency=1)]))
        dispatch.put(f"plain{number}")
    with commands() as ran:
        tasks = dispatch.claim(want=40).tasks
        dispatch.settle(tasks)
    assert len(tasks) == 40
    assert not TELLING & set(ran), ran


def test_what_is_rejected_again_is_not_reported_again(dispatch, commands, client):
    for _ in range(3):
        dispatch.put("a")
    (task,) = dispatch.claim().tasks
    assert dispatch.claim().tasks == ()
    assert client.xlen(PREFIX + "events") == 1
    # It is judged anew, and rejected: its head is read and not written.
    dispatch.publish_tiers(free=1)
    with commands() as ran:
        assert dispatch.claim().tasks == ()
    assert "xadd" not in ran
    assert ran["hset"] == 2, "its account says that it is full, and the clock that all are judged"
    dispatch.settle([task])
    assert len(dispatch.claim(want=1).tasks) == 1
    emitted = [fields["type"] for _, fields in client.xrange(PREFIX + "events")]
    assert emitted == ["rate_limit.exceeded", "fairness.tiers_published", "rate_limit.released"]


def test_a_flood_tells_two_events_for_each_task_that_waited(client, redis_url):
    dispatch = Dispatch(client, Rules(default_limit=3))
    for _ in range(30):
        dispatch.put("a")
    emitted = []
    while tasks := dispatch.claim_all():
        dispatch.settle(tasks)
    for _, fields in client.xrange(PREFIX + "events"):
        emitted.append((fields["type"].rpartition(".")[2], fields["job_id"]))
    blocked = [job for what, job in emitted if what == "exceeded"]
    assert blocked == [job for what, job in emitted if what == "released"]
    assert len(set(blocked)) == len(blocked) == 9


@pytest.mark.parametrize(
    ("task_id", "name", "job_id"),
    [("4fd6", "shop.pay", "4fd6"), ("", "shop.pay", "t1"), ("4fd6", "", "4fd6"), ("", "", "t1")],
)
def test_a_task_is_reported_by_the_id_and_name_of_its_put(dispatch, client, task_id, name, job_id):
    dispatch.put("a", task_id=task_id, kind=name)
    dispatch.run(calls.CANCEL, calls.cancel_args(["t1"], 15_000))
    ((_, emitted),) = client.xrange(PREFIX + "events")
    assert (emitted["job_id"], emitted["job_type"], emitted["queue"]) == (job_id, name, "q")


def test_a_blocked_task_is_found_and_claimed_as_it_was_put(client, redis_url):
    dispatch = Dispatch(client, Rules(default_limit=None))
    for limits in (ONE, ONE):
        dispatch.put("a", limits=limits)
    (first,) = dispatch.claim().tasks
    dispatch.claim()
    state, head = dispatch.find("t2")
    assert (state, head.limits, head.rejected_by) == ("waiting", ONE, "concurrency|api")
    dispatch.settle([first])
    (second,) = dispatch.claim().tasks
    assert (second.message, second.key) == ("of t2", "tenant:a,api")
    assert dispatch.claim(number=dispatch.number).tasks == (second,)
    # Its head notes that its start was reported too.
    dispatch.settle([second], Verdict.HEAD)
    state, head = dispatch.find("t2")
    assert (state, head.limits, head.rejected_by) == ("waiting", ONE, "-")
