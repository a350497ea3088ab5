"""The tasks of an id: a retry has the id of the first attempt, and a producer may use one again."""

from __future__ import annotations

import random

import pytest

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Verdict
from tests.lua.dispatching import PREFIX, Dispatch
from tests.support.library import tag_of
from tests.support.tables import assert_sums_agree, findings

#: More than a page of `find` has.
MANY = 60


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client, Rules(default_limit=None, max_deliveries=1))


def pages_of(dispatch, task_id):
    """Return the tags on the pages of an id, the first page first."""
    pages, last = [], None
    while last != "":
        last, *rows = dispatch.run(calls.FIND, [task_id, str(last or "")])
        pages.append([row[0] for row in rows])
    return pages


def tags_of(dispatch, task_id):
    return [tag for page in pages_of(dispatch, task_id) for tag in page]


@pytest.mark.parametrize("ended", ["x", "xx", "xxx", "yx"])
def test_the_tags_of_an_id_lose_the_task_that_ended_and_no_other(dispatch, client, ended):
    tags = ["x", "xx", "xxx", "yx"]
    for tag in tags:
        dispatch.put("a", tag=tag, task_id="same")
    tasks = dispatch.claim().tasks
    dispatch.settle([each for each in tasks if tag_of(each.lease) == ended])
    assert tags_of(dispatch, "same") == [each for each in tags if each != ended]
    assert_sums_agree(client, PREFIX)
    dispatch.settle([each for each in tasks if tag_of(each.lease) != ended])
    assert tags_of(dispatch, "same") == []
    assert not client.exists(PREFIX + "ids", PREFIX + "same_id:same")


def test_pages_go_from_the_newest_tasks_on_and_skip_none_if_others_end(dispatch):
    for number in range(MANY):
        dispatch.put("a", tag=f"t{number:02}", task_id="same")
    first, *rest = pages_of(dispatch, "same")
    # The oldest task is the one that `ids` has.
    assert first == ["t00", *sorted(first[1:])]
    assert first[-1] == f"t{MANY - 1}"
    assert [tag for page in reversed([first[1:], *rest]) for tag in page] == [
        f"t{number:02}" for number in range(1, MANY)
    ]
    last, *_ = dispatch.run(calls.FIND, ["same", ""])
    dispatch.run(calls.CANCEL, calls.cancel_args(first, dispatch.rules.lease_ms, str(dispatch.now)))
    dispatch.settle(dispatch.claim(5).tasks)
    _, *rows = dispatch.run(calls.FIND, ["same", str(last)])
    assert [row[0] for row in rows] == rest[0]


@pytest.mark.parametrize("seed", range(4))
def test_random_calls_keep_every_task_under_its_id_until_it_is_forgotten(dispatch, client, seed):
    chance = random.Random(seed)
    ids: dict[str, str] = {}
    running = []
    for step in range(300):
        what = chance.choice(["put", "put", "later", "claim", "done", "died", "head", "cancel"])
        if what in ("put", "later"):
            tag, task_id = f"t{step}", chance.choice(["one", "two", "one", f"own{step}", ""])
            dispatch.put("a", tag=tag, task_id=task_id, eta_ms=dispatch.now + (what == "later"))
            ids[tag] = task_id or tag
        elif what == "claim":
            dispatch.now += chance.choice([0, 1])
            running += dispatch.claim(chance.choice([1, 3])).tasks
        elif what == "cancel" and ids:
            tag = chance.choice(sorted(ids))
            args = calls.cancel_args([tag], dispatch.rules.lease_ms, str(dispatch.now))
            dispatch.run(calls.CANCEL, args)
        elif running:
            task = running.pop(chance.randrange(len(running)))
            verdict = Verdict(what) if what in ("done", "died") else Verdict.HEAD
            dispatch.settle([task], verdict)
            if verdict is Verdict.DONE:
                del ids[tag_of(task.lease)]
        if step % 10 == 0:
            # A worker writes the results of the cancelled tasks.
            while outcome := dispatch.next_outcome():
                dispatch.next_outcome(f"{outcome.seq} {outcome.tag}")
                if not client.hexists(PREFIX + "tasks", outcome.tag):
                    del ids[outcome.tag]
        for task_id in {"one", "two", *ids.values()}:
            its = sorted(tag for tag, of in ids.items() if of == task_id)
            assert sorted(tags_of(dispatch, task_id)) == its
    assert_sums_agree(client, PREFIX)
    assert findings(client, PREFIX, dispatch.rules, dispatch.now) == []


def costs_of(dispatch, commands):
    """Return the commands of each call on one of the tasks of an id."""
    cancel = calls.cancel_args(["more"], dispatch.rules.lease_ms, str(dispatch.now))
    costs = []
    for call in (
        lambda: dispatch.put("a", tag="more", task_id="same"),
        # The task of `ids` ends, then one of the other table.
        lambda: dispatch.settle(dispatch.claim(1).tasks),
        lambda: dispatch.settle(dispatch.claim(1).tasks),
        lambda: dispatch.run(calls.CANCEL, cancel),
    ):
        with commands() as ran:
            call()
        costs.append(ran)
    return costs


def test_one_id_of_many_tasks_costs_what_many_ids_cost(redis_url, client, commands):
    """One producer's mistake must not take the whole server."""
    costs, longest = [], []
    for waiting in (3, 300):
        client.flushall()
        dispatch = Dispatch(client, Rules(default_limit=None))
        for number in range(waiting):
            dispatch.put("a", tag=f"t{number}", task_id="same")
        costs.append(costs_of(dispatch, commands))
        hashes = [key for key in client.keys("*") if client.type(key) == "hash"]
        # A call writes a text that has all tags anew.
        longest.append(max(len(value) for key in hashes for value in client.hvals(key)))
    assert costs[0] == costs[1]
    assert longest[1] < longest[0] + 10
    with commands() as ran:
        dispatch.run(calls.FIND, ["same", ""])
    assert sum(ran.values()) < 100


def test_only_a_shared_id_costs_a_further_command_and_key(dispatch, client, commands):
    dispatch.put("a", tag="first")
    with commands() as own:
        dispatch.put("a", tag="second")
    assert not client.keys(PREFIX + "same_id:*")
    with commands() as shared:
        dispatch.put("a", tag="third", task_id="second")
    assert client.keys(PREFIX + "same_id:*") == [PREFIX + "same_id:second"]
    assert shared == own | {"zadd": own["zadd"] + 1}
