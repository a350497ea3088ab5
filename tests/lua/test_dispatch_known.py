"""Keys of limits that are known for a while after their last lease."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler.types import Rules, Verdict
from tests.lua.dispatching import PREFIX, Dispatch

#: Keys that one claim forgets.
MOST = 256


@pytest.fixture
def dispatch(client):
    return Dispatch(client, Rules(default_limit=None))


def known(dispatch):
    return set(dispatch.client.zrange(PREFIX + "key_expiry", 0, -1))


@pytest.mark.parametrize("verdict", [Verdict.DONE, Verdict.HEAD, Verdict.DIED])
def test_the_end_of_a_lease_notes_its_limits_and_not_its_tenant(dispatch, verdict):
    dispatch.put(
        "a", limits=write_limits([Limit("api", concurrency=1), Limit("region", concurrency=2)])
    )
    tasks = dispatch.claim().tasks
    assert known(dispatch) == set()
    dispatch.settle(tasks, verdict)
    assert known(dispatch) == {" api", " region"}


def test_it_is_forgotten_after_a_minute_without_a_use(dispatch):
    for _ in range(2):
        dispatch.put("a", limits=write_limits([Limit("api", concurrency=1)]))
        dispatch.settle(dispatch.claim().tasks)
        for _ in range(7):
            dispatch.now += 5_000
            dispatch.claim()
        assert known(dispatch) == {" api"}
    for _ in range(6):
        dispatch.now += 5_000
        dispatch.claim()
    assert known(dispatch) == set()


def test_one_call_forgets_a_bounded_number_and_says_that_there_are_more(dispatch):
    for number in range(MOST + 20):
        dispatch.put("a", limits=write_limits([Limit(f"k{number}", concurrency=1)]))
    tasks = dispatch.claim_all(100)
    assert len(tasks) == MOST + 20
    dispatch.settle(tasks)
    for _ in range(12):
        dispatch.now += 5_000
        answer = dispatch.claim()
    assert len(known(dispatch)) == 20
    assert answer.sleep_ms == 0
    assert dispatch.claim().sleep_ms > 0
    assert known(dispatch) == set()


def test_starts_of_an_idle_key_go_with_it(dispatch):
    dispatch.put("a", limits=write_limits([Limit("api", rate=((5, 1_000),))]))
    dispatch.settle(dispatch.claim().tasks)
    for _ in range(13):
        dispatch.now += 5_000
        dispatch.claim()
    assert not dispatch.client.exists(PREFIX + "window:api")
    assert known(dispatch) == set()
