"""What limits of queues cost, and what is rejected of them before anything is written."""

from __future__ import annotations

import pytest
from redis import ResponseError

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.queue_limits import write_queue
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules
from tests.lua.dispatching import Dispatch


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client)


def limit(dispatch, queue="q", key="queue:q", **numbers):
    said = write_queue(Limit("", **numbers))
    args = calls.queue_args("declare", queue, key, said, "", 15_000, "on", str(dispatch.now))
    return dispatch.run(calls.SET_QUEUE_LIMIT, args)


def claims(dispatch, commands, queue="q"):
    with commands() as ran:
        dispatch.claim(queues=[queue])
    return ran


@pytest.mark.parametrize("numbers", [{"concurrency": 1}, {"rate": ((1, 60_000),)}])
def test_a_closed_queue_costs_the_same_however_much_waits_there(dispatch, commands, numbers):
    limit(dispatch, **numbers)
    for number in range(3):
        dispatch.put(f"u{number}")
    dispatch.claim()
    dispatch.claim()
    few = claims(dispatch, commands)
    for number in range(300):
        dispatch.put(f"v{number}")
    assert claims(dispatch, commands) == few


def test_a_queue_s_limit_costs_claims_of_another_queue_one_question(dispatch, commands):
    # Limits beside the tiers are looked for from now on, by everybody.
    dispatch.client.hset("{fairness}:clock", "limited", 1)
    for _ in range(3):
        dispatch.put("a", queue="other")
    plain = claims(dispatch, commands, "other")
    limit(dispatch, concurrency=1)
    for _ in range(3):
        dispatch.put("b", queue="other")
    asked = claims(dispatch, commands, "other")
    assert sum(asked.values()) - sum(plain.values()) <= 1


@pytest.mark.parametrize(
    ("key", "numbers", "part"),
    [
        ("queue:a:b", "C1|w", ""),
        ("queue:a b", "C1|w", ""),
        ("tenant:a", "C1|w", ""),
        ("queue:a", "C1 |w", ""),
        ("queue:a", "", "C1 |w"),
    ],
)
def test_what_nobody_could_read_is_rejected_before_anything_is_written(
    dispatch, client, key, numbers, part
):
    args = calls.queue_args("set", "q", key, numbers, part, 15_000, "on", str(dispatch.now))
    with pytest.raises(ResponseError, match="queue: expected a key queue:QUEUE and two specs"):
        dispatch.run(calls.SET_QUEUE_LIMIT, args)
    assert client.keys("*") == []


def test_the_holders_of_a_queues_tasks_come_in_pages(dispatch):
    dispatch.rules = Rules(default_limit=None)
    owners = {f"w{number}" for number in range(70)}
    for owner in owners:
        for queue in ("q", "other"):
            for _ in range(10):
                # A table of short rows has one page.
                dispatch.put("a", queue=queue, kind="x" * 100)
        args = calls.claim_args(owner, 1, 10, ["q"], dispatch.rules, str(dispatch.now))
        assert len(calls.read_claim(dispatch.run(calls.CLAIM, args)).tasks) == 10
    assert dispatch.claim(want=100, queues=("other",)).tasks
    cursor, found, pages = "0", set(), 0
    while pages == 0 or cursor != "0":
        cursor, *page = dispatch.run(calls.HOLDERS, ["q", cursor])
        found.update(page)
        pages += 1
    assert found == owners
    assert pages > 1
