"""Ends of one call: what waits for one of them is woken, whatever is wrong with another."""

from __future__ import annotations

import pytest

from celery_fairness.scheduling.limits import Limit, write_limits
from celery_fairness.scheduling.words import Rules, Settle, Settled, Verdict
from celery_fairness.store import verbs
from tests.lua.dispatching import PREFIX, Dispatch

pytestmark = pytest.mark.redis


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client, Rules(default_limit=None))


@pytest.fixture
def running(dispatch):
    """One runs and one waits at each of two limits, in a queue of their own."""
    claimed = []
    for key, queue in (("k1", "q1"), ("k2", "q2")):
        word = write_limits((Limit(key, 1),))
        dispatch.put("a", queue=queue, limits=word)
        dispatch.put("b", queue=queue, limits=word)
        claimed += dispatch.claim_all(queues=(queue,))
    assert [each.lease.split(".")[0] for each in claimed] == ["t1", "t3"]
    return claimed


def test_where_somebody_deleted_the_keys_of_another_queue(dispatch, client, running):
    client.delete(*client.keys(PREFIX + "*:q1"), *client.keys(PREFIX + "* q1"))
    assert dispatch.settle(running) == [Settled.SETTLED] * 2
    assert dispatch.tags_of(dispatch.claim(queues=("q2",))) == ["t4"]


def test_where_somebody_deleted_what_another_end_comes_back_to(dispatch, client, running):
    dispatch.put("c", queue="q1", limits=write_limits((Limit("k1", 1),)))
    dispatch.claim_all(queues=("q1",))
    client.delete(PREFIX + "candidates:q1")
    first, second = running
    ends = [Settle(second.lease, Verdict.DONE, second.lane)]
    ends.append(Settle(first.lease, Verdict.HEAD, first.lane))
    args = verbs.settle_args(ends, dispatch.rules, str(dispatch.now))
    assert verbs.read_settle(dispatch.run(verbs.SETTLE, args)) == [Settled.SETTLED] * 2
    assert dispatch.tags_of(dispatch.claim(queues=("q2",))) == ["t4"]
    assert client.hkeys(PREFIX + "returned") == ["t1"]
