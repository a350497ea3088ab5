"""The state of limits in the totals: one row for each limit, and the bound of a call."""

from __future__ import annotations

import json

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler import calls
from tests.lua.dispatching import NOW, PREFIX, RULES, Dispatch

LIMITS_AT_MOST = 100


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client)


def limits_of(dispatch, *words):
    """Return the rows of limits, each by its key."""
    args = calls.json_args(
        lease_ms=RULES.lease_ms, frozen_ms=str(dispatch.now), enforcement="on", limits=words
    )
    rows = json.loads(dispatch.run(calls.TOTALS, args))["limits"]
    return {key: row for key, *row in rows}


def test_a_row_has_what_runs_and_what_waits(dispatch):
    words = write_limits([Limit("api", concurrency=1)])
    for _ in range(3):
        dispatch.put("a", limits=words)
    dispatch.claim(1)
    word = Limit("free").text
    assert limits_of(dispatch, words, word) == {
        "api": [1, 1, 2, "full", 0],
        "free": [0, -1, 0, "", 0],
    }


def test_all_tasks_of_a_queue_wait_for_its_limit(dispatch):
    args = calls.queue_args(*("set", "q", "queue:q", "C7|w", ""), *(RULES.lease_ms, "on", str(NOW)))
    dispatch.run(calls.SET_QUEUE_LIMIT, args)
    word = "queue:q|C7|wg"
    assert limits_of(dispatch, word)["queue:q"] == [0, 7, 0, "", 0]
    for _ in range(2):
        dispatch.put("a")
    assert limits_of(dispatch, word)["queue:q"] == [0, 7, 2, "", 0]


def test_a_reserved_start_closes_a_rate(dispatch, client):
    word = Limit("api", rate=((1, 60_000),)).text
    client.hset(f"{PREFIX}clock", "parked", 1)
    assert limits_of(dispatch, word)["api"][3] == ""
    client.zadd(f"{PREFIX}reserved:api", {"lease": 2 * NOW})
    assert limits_of(dispatch, word)["api"][3] == "rate"


def test_a_call_looks_at_so_many_limits_at_most(dispatch):
    words = [Limit(f"k{number}", concurrency=1).text for number in range(LIMITS_AT_MOST + 1)]
    assert list(limits_of(dispatch, *words)) == [f"k{n}" for n in range(LIMITS_AT_MOST)]
