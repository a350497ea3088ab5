"""Events of the scripts: what they cost, and by which name a task is told."""

from __future__ import annotations

import json

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Waiting
from tests.lua.dispatching import NOW, PREFIX, Dispatch

#: What only a claim that tells something runs.
TELLING = {"xadd", "lset", "lindex"}
ONE = write_limits([Limit("api", 1)])


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client)


def test_a_claim_that_blocks_and_releases_nothing_runs_no_command_more(dispatch, commands):
    for number in range(20):
        dispatch.put(f"free{number}", limits=write_limits([Limit(f"k{number}", 1)]))
        dispatch.put(f"plain{number}")
    with commands() as ran:
        tasks = dispatch.claim(want=40).tasks
        dispatch.settle(tasks)
    assert len(tasks) == 40
    assert not TELLING & set(ran), ran


def test_what_is_refused_again_is_not_told_again(dispatch, commands, client):
    for _ in range(3):
        dispatch.put("a")
    (task,) = dispatch.claim().tasks
    assert dispatch.claim().tasks == ()
    assert client.xlen(PREFIX + "events") == 1
    # It is judged anew, and refused: the look at its head is all that this costs.
    dispatch.publish_tiers(free=1)
    with commands() as ran:
        assert dispatch.claim().tasks == ()
    assert "xadd" not in ran
    assert "lset" not in ran
    dispatch.settle([task])
    assert len(dispatch.claim(want=1).tasks) == 1
    told = [fields["type"] for _, fields in client.xrange(PREFIX + "events")]
    assert told == ["rate_limit.exceeded", "fairness.tiers_published", "rate_limit.released"]


def test_a_flood_tells_two_events_for_each_task_that_waited(client, redis_url):
    dispatch = Dispatch(client, Rules(default_limit=3))
    for _ in range(30):
        dispatch.put("a")
    told = []
    while tasks := dispatch.claim_all():
        dispatch.settle(tasks)
    for _, fields in client.xrange(PREFIX + "events"):
        told.append((fields["type"].rpartition(".")[2], fields["job_id"]))
    blocked = [job for what, job in told if what == "exceeded"]
    assert blocked == [job for what, job in told if what == "released"]
    assert len(set(blocked)) == len(blocked) == 9


BODY = "e" * 100_000
PLAIN = {"lang": "py", "task": "shop.pay", "id": "4fd6"}


def of_headers(headers, **others):
    return {"body": BODY, "content-type": "application/json", "headers": headers, **others}


@pytest.mark.parametrize(
    ("message", "job_id", "job_type"),
    [
        (json.dumps(of_headers(PLAIN)), "4fd6", "shop.pay"),
        (json.dumps(of_headers(PLAIN), separators=(",", ":")), "4fd6", "shop.pay"),
        (json.dumps(of_headers(PLAIN | {"stamps": {"id": "no"}})), "4fd6", "shop.pay"),
        (json.dumps(of_headers({"argsrepr": 'say "id": "no"', **PLAIN})), "4fd6", "shop.pay"),
        (json.dumps(of_headers({"root_id": "no", "parent_id": "no", **PLAIN})), "4fd6", "shop.pay"),
        # What is not found where Celery writes it is not guessed.
        (json.dumps(of_headers({"stamps": {"id": "no"}, **PLAIN})), "t1", "kind"),
        (json.dumps(of_headers({"id": 7, "task": None})), "t1", "kind"),
        (json.dumps(of_headers(None, properties={"id": "no"})), "t1", "kind"),
        (json.dumps(of_headers({"id": 'a"b', "task": "gr\u00fc\u00dfe"})), "t1", "kind"),
        ("no JSON", "t1", "kind"),
        ("", "t1", "kind"),
    ],
)
def test_a_task_is_told_by_the_id_and_name_in_its_headers(
    dispatch, client, message, job_id, job_type
):
    waiting = Waiting("q", "t1", "a", kind="kind", message=message)
    dispatch.run(calls.PUT, calls.put_args(waiting))
    record = client.lindex(PREFIX + "lane:tenant:a 0 q", 0)
    dispatch.run(calls.CANCEL, calls.cancel_args("q", [record], 15_000))
    ((_, told),) = client.xrange(PREFIX + "events")
    assert (told["job_id"], told["job_type"]) == (job_id, job_type)


def test_a_blocked_task_is_found_and_claimed_as_it_was_put(client, redis_url):
    dispatch = Dispatch(client, Rules(default_limit=None))
    for limits in (ONE, ONE):
        dispatch.put("a", limits=limits)
    (first,) = dispatch.claim().tasks
    dispatch.claim()
    (record,) = client.lrange(f"{PREFIX}lane:tenant:a 0,{ONE} q", 0, -1)
    assert record.partition("\n")[0].endswith(f" {ONE} {NOW}+ concurrency|api")
    dispatch.settle([first])
    (second,) = dispatch.claim().tasks
    assert (second.message, second.key) == ("of t2", "tenant:a,api")
    (row,) = client.hvals(PREFIX + "running")
    assert row.partition("\n")[0].endswith(f" {ONE} {NOW}+ -")
    assert dispatch.claim(number=dispatch.number).tasks == (second,)
