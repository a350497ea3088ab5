"""Unique keys at the corners that random operations do not meet, or do not judge."""

from __future__ import annotations

import pytest

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Bounds, Existing, Full, Put, Rules, Verdict
from tests.lua.dispatching import NOW, PREFIX, Dispatch
from tests.support.tables import assert_sums_agree, findings

KEY = "d|0|sync:7"


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client, Rules(default_limit=None, max_deliveries=1))


def holder(client):
    return client.hget(f"{PREFIX}unique", "key sync:7")


def test_a_retry_of_a_running_task_takes_its_key_over(dispatch, client):
    dispatch.put("a", tag="first", task_id="id", unique=KEY)
    running = dispatch.claim().tasks
    assert dispatch.put("a", tag="again", task_id="id", unique=KEY, is_new=False) is Put.WAITS
    dispatch.settle(running, Verdict.RETRIED)
    assert holder(client) == f"{NOW} again"
    assert dispatch.put("a", tag="other", unique=KEY) is Put.DUPLICATE
    dispatch.settle(dispatch.claim().tasks)
    assert dispatch.put("a", tag="later", unique=KEY) is Put.WAITS
    assert_sums_agree(client, PREFIX)


def test_what_was_accepted_before_is_put_and_takes_no_key_from_another(dispatch, client):
    dispatch.put("a", tag="first", unique=KEY)
    for word in (KEY, "r|0|sync:7", "e|0|sync:7"):
        assert dispatch.put("a", unique=word, is_new=False) is Put.WAITS
    assert holder(client).endswith(" first")


def test_a_dead_letter_has_no_key_and_gets_none_if_it_is_requeued(dispatch, client):
    dispatch.put("a", tag="dies", unique=KEY)
    dispatch.settle(dispatch.claim().tasks, Verdict.DIED)
    assert dispatch.put("a", tag="next", unique=KEY) is Put.WAITS
    assert dispatch.run(calls.REQUEUE, ["dies"]) == 1
    assert holder(client).endswith(" next")


def test_a_message_of_a_plain_list_has_no_caller_that_gets_the_existing_task(dispatch, client):
    dispatch.put("a", tag="first", task_id="id", unique=KEY)
    assert dispatch.put("a", unique="e|0|sync:7") == Existing("id")
    client.lpush("plain", "entry")
    put = dispatch.put_from("plain", "entry", "a", unique="e|0|sync:7")
    assert put is Put.DUPLICATE
    assert not client.exists("plain")


def test_calls_delay_a_task_until_its_bound_and_then_no_more(dispatch, client):
    word = "r|60000|sync:7"
    for _ in range(30):
        dispatch.put("a", eta_ms=dispatch.now + 5_000, unique=word)
        dispatch.now += 4_000
        if client.hget(f"{PREFIX}waiting", "q"):
            break
    # The call of the 60th second starts at once.
    assert dispatch.now - NOW == 64_000
    assert client.hget(f"{PREFIX}counters", "replaced") == "15"


def test_a_bound_does_not_count_from_a_task_that_runs(dispatch):
    word = "r|60000|sync:7"
    dispatch.put("a", unique=word)
    dispatch.claim()
    dispatch.now += 3_600_000
    for _ in range(2):
        later = dispatch.put("a", eta_ms=dispatch.now + 5_000, unique=word)
        assert later is Put.WAITS_FOR_ITS_TIME


@pytest.mark.parametrize("action", ["d", "r"])
def test_two_messages_of_one_task_have_one_result(dispatch, client, action):
    word = f"{action}|0|sync:7"
    dispatch.put("a", tag="first", task_id="id", expires_ms=NOW + 60_000, unique=word)
    answer = dispatch.put("a", tag="second", task_id="id", unique=word)
    assert answer is (Put.DUPLICATE if action == "d" else Put.WAITS)
    assert not client.exists(f"{PREFIX}outcomes")
    assert client.hlen(f"{PREFIX}tasks") == client.hlen(f"{PREFIX}messages") == 1
    dispatch.settle(dispatch.claim().tasks)
    assert not client.exists(f"{PREFIX}unique", f"{PREFIX}expires:q", f"{PREFIX}ids")


def test_a_duplicate_needs_no_room(dispatch):
    full = Bounds(of_tier=1)
    dispatch.put("a", task_id="id", unique=KEY)
    assert dispatch.put("a", unique="d|0|other", bounds=full) == Full("tenant:a", 1, 1)
    assert dispatch.put("a", unique=KEY, bounds=full) is Put.DUPLICATE
    assert dispatch.put("a", unique="e|0|sync:7", bounds=full) == Existing("id")


def test_nothing_of_a_replaced_task_is_left_but_its_result(dispatch, client):
    dispatch.put("a", tag="first", expires_ms=NOW + 60_000, unique=KEY)
    dispatch.put("a", tag="second", unique="r|0|sync:7")
    assert not client.exists(f"{PREFIX}expires:q")
    assert client.zrange(f"{PREFIX}outcomes", 0, -1) == ["first"]
    assert client.hgetall(f"{PREFIX}unique").keys() == {"key sync:7", "task second"}


@pytest.mark.parametrize(
    ("action", "ended", "state", "by"),
    [("d", "second", "duplicate", "id1"), ("r", "first", "replaced", "id2")],
)
def test_the_task_that_ends_names_the_other_one(dispatch, action, ended, state, by):
    word = f"{action}|0|sync:7"
    dispatch.put("a", tag="first", task_id="id1", unique=word)
    dispatch.put("a", tag="second", task_id="id2", unique=word)
    outcome = dispatch.next_outcome()
    assert (outcome.tag, outcome.state, outcome.owner) == (ended, state, by)
    assert dispatch.next_outcome(outcome.name) is None


def test_a_key_without_its_task_counts_as_free_and_the_check_removes_it(dispatch, client):
    dispatch.put("a", tag="first", unique=KEY)
    for key in client.scan_iter(f"{PREFIX}*"):
        if key.removeprefix(PREFIX).partition(":")[0] not in ("clock", "unique"):
            client.delete(key)
    found = findings(client, PREFIX, dispatch.rules, dispatch.now)
    assert sorted(found) == [
        ("unique_without_task", "unique", "key sync:7"),
        ("unique_without_task", "unique", "task first"),
    ]
    assert dispatch.put("a", tag="second", unique=KEY) is Put.WAITS
    assert client.hget(f"{PREFIX}counters", "lost_entries") == "1"
    findings(client, PREFIX, dispatch.rules, dispatch.now, repair=True)
    assert client.hgetall(f"{PREFIX}unique") == {
        "key sync:7": f"{NOW} second",
        "task second": "sync:7",
    }
    assert findings(client, PREFIX, dispatch.rules, dispatch.now) == []


def test_a_task_without_a_key_costs_nothing_more_until_some_task_has_one(
    dispatch, client, commands
):
    def life(**fields):
        dispatch.put("a", **fields)
        with commands() as ran:
            dispatch.settle(dispatch.claim().tasks)
        return ran

    life()
    before = life()
    life(unique=KEY)
    after = life()
    # The clock's flag comes with its other fields. If it is set, one command reads the key.
    assert (before.pop("hget"), after.pop("hget")) == (6, 7)
    assert after == before


def test_a_key_costs_four_commands_at_the_put_and_four_at_the_end(dispatch, commands):
    def life(**fields):
        with commands() as put:
            dispatch.put("a", **fields)
        tasks = dispatch.claim().tasks
        with commands() as end:
            dispatch.settle(tasks)
        return sum(put.values()), sum(end.values())

    life()
    (put, end), (with_key, end_with_key), after = life(), life(unique=KEY), life()
    assert (with_key - put, end_with_key - end) == (4, 4)
    assert after == (put, end + 1)
