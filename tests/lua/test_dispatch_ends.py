"""Ends of one call: what waits for one of them is woken, whatever is wrong with another."""

from __future__ import annotations

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Settle, Settled, Verdict
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
        word = write_limits((Limit(key, concurrency=1),))
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
    dispatch.put("c", queue="q1", limits=write_limits((Limit("k1", concurrency=1),)))
    dispatch.claim_all(queues=("q1",))
    client.delete(PREFIX + "available:q1")
    first, second = running
    ends = [Settle(second.lease, Verdict.DONE)]
    ends.append(Settle(first.lease, Verdict.HEAD))
    args = calls.settle_args(ends, dispatch.rules, str(dispatch.now))
    assert calls.read_settle(dispatch.run(calls.SETTLE, args)) == [Settled.SETTLED] * 2
    assert dispatch.tags_of(dispatch.claim(queues=("q2",))) == ["t4"]
    assert dispatch.find("t1")[0] == "waiting"


class TestEnteredAgain:
    """The memory was lost, and a worker enters again what it holds."""

    @pytest.fixture
    def entered(self, dispatch, client):
        word = write_limits((Limit("api", concurrency=3),))
        for tenant in "ab":
            dispatch.put(tenant, limits=word)
        tasks = dispatch.claim().tasks
        epoch, _ = dispatch.renew(tasks)
        client.flushdb()
        dispatch.now += 1
        assert dispatch.renew(tasks, epoch) == (dispatch.now, [1, 2])
        assert client.zcard(PREFIX + "leases:api") == 2
        return tasks

    def left(self, client):
        names = [*client.keys(PREFIX + "leases:*"), *client.keys(PREFIX + "ends")]
        names += client.keys(PREFIX + "running")
        return sorted(name.removeprefix(PREFIX) for name in names)

    def test_nothing_is_left_where_it_dies_too(self, dispatch, client, entered):
        dispatch.let_a_lease_pass()
        assert dispatch.claim().tasks == ()
        assert self.left(client) == []

    def test_nothing_is_left_once_their_ends_are_told(self, dispatch, client, entered):
        assert dispatch.settle(entered) == [Settled.SETTLED] * 2
        assert self.left(client) == []

    def test_who_goes_on_counts(self, dispatch, client, entered):
        assert dispatch.settle(entered[:1]) == [Settled.SETTLED]
        assert self.left(client) == ["ends", "leases:api", "leases:tenant:b", "running"]
        dispatch.let_a_lease_pass(kept=entered[1:])
        dispatch.claim()
        assert client.zcard(PREFIX + "leases:api") == 1
        dispatch.let_a_lease_pass()
        dispatch.claim()
        assert self.left(client) == []

    def test_a_lease_of_the_gate_with_the_same_key_stays(self, dispatch, client, entered):
        client.zadd(PREFIX + "leases:api", {"gate.1": dispatch.now})
        dispatch.let_a_lease_pass()
        dispatch.claim()
        assert client.zrange(PREFIX + "leases:api", 0, -1) == ["gate.1"]


def test_a_late_end_of_a_lease_leaves_the_task_whose_tag_is_its_name(dispatch, client):
    dispatch.put("a", tag="x")
    (task,) = dispatch.claim().tasks
    dispatch.settle([task])
    dispatch.put("a", tag=task.lease)
    assert dispatch.tags_of(dispatch.claim()) == [task.lease]
    assert dispatch.settle([task]) == [Settled.LATE]
    assert client.hkeys(PREFIX + "running") == [task.lease]


class TestClaimedAgain:
    """An older memory gives a worker its own task, whose lease this worker has registered again."""

    @pytest.fixture(params=["the same limits", "other limits"])
    def task(self, request, dispatch, client):
        words = [write_limits((Limit(key, concurrency=2),)) for key in ("api", "db")]
        dispatch.put("a", tag="x", limits=words[0])
        (task,) = dispatch.claim().tasks
        epoch, _ = dispatch.renew([task])
        client.flushdb()
        dispatch.now += 1
        dispatch.put("a", tag="x", limits=words[request.param == "other limits"])
        dispatch.renew([task], epoch)
        assert [each.lease for each in dispatch.claim().tasks] == [task.lease]
        return task

    def left(self, client):
        names = client.keys(PREFIX + "leases:*") + client.keys(PREFIX + "ends")
        return names + client.keys(PREFIX + "running")

    def test_its_lease_has_one_row(self, dispatch, client, task):
        assert client.hkeys(PREFIX + "running") == ["x"]
        assert client.zcard(PREFIX + "leases:api") == 1

    def test_its_end_leaves_nothing(self, dispatch, client, task):
        assert dispatch.settle([task]) == [Settled.SETTLED]
        assert self.left(client) == []

    def test_its_end_wakes_what_waits_at_each_of_its_keys(self, dispatch, client, task):
        for each in range(2):
            dispatch.put("b", tag=f"b{each}", limits=write_limits((Limit("api", concurrency=2),)))
        assert len(dispatch.claim_all()) == 1
        dispatch.settle([task])
        assert len(dispatch.claim_all()) == 1

    def test_nothing_is_left_if_the_worker_dies(self, dispatch, client, task):
        dispatch.let_a_lease_pass()
        dispatch.claim(queues=("other",))
        assert self.left(client) == []


class TestOfAGroup:
    """A claim of several tasks of a group, of which somebody has deleted what counts them."""

    @pytest.fixture
    def word(self, dispatch):
        word = write_limits((Limit("api", concurrency=2),))
        for _ in range(2):
            dispatch.put("h", limits=word)
        self.held = dispatch.claim_all()
        for _ in range(3):
            dispatch.put("a", limits=word)
        assert dispatch.claim_all() == []
        return word

    def test_the_count_of_what_waits(self, dispatch, client, word):
        assert client.delete(PREFIX + "tenant_state:tenant:a") == 1
        dispatch.put("a", limits=word)
        dispatch.settle(self.held)
        claimed = dispatch.claim(4)
        assert dispatch.tags_of(claimed) == ["t3", "t4"]
        assert sorted(client.hkeys(PREFIX + "running")) == ["t3", "t4"]

    def test_the_places_of_tenants_that_are_full(self, dispatch, client, word):
        assert client.delete(PREFIX + "blocked:q") == 1
        dispatch.settle(self.held)
        assert dispatch.tags_of(dispatch.claim(4)) == ["t3", "t4"]
