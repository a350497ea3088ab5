"""The commands that overrides of many keys cost: none without such an override."""

from __future__ import annotations

import pytest

from celery_fairness.config.numbers import write_numbers
from celery_fairness.scheduler import calls
from tests.lua.dispatching import Dispatch


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client)


def override(dispatch, key, **numbers):
    text = write_numbers(numbers)
    args = calls.override_args(key, text, 0, None, "", 15_000, "on", str(dispatch.now))
    dispatch.run(calls.OVERRIDE, args)


def cost(dispatch, commands):
    """Return the commands of a put, a claim and a settle of a task with one limit."""
    with commands() as ran:
        dispatch.put("a", limits="api.x|C5|w")
        dispatch.settle(dispatch.claim().tasks)
    return ran


def test_a_limit_costs_one_command_with_patterns_and_without(dispatch, commands):
    for _ in range(3):
        bare = cost(dispatch, commands)
    override(dispatch, "db", concurrency=1)
    of_keys = cost(dispatch, commands)
    override(dispatch, "api.*", concurrency=5)
    of_patterns = cost(dispatch, commands)
    assert sum(of_patterns.values()) == sum(of_keys.values())
    assert of_patterns["hmget"] > of_keys["hmget"]
    # One read for the claim, and one for the settle.
    assert of_keys["hget"] - of_patterns["hget"] == of_patterns["hmget"] - of_keys["hmget"]
    for key in ("db", "api.*"):
        override(dispatch, key)
    cost(dispatch, commands)
    assert cost(dispatch, commands) == bare
