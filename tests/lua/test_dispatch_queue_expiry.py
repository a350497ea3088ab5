"""Queues that end when nobody uses them: when they do, and what ends."""

from __future__ import annotations

import pytest

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Settled
from tests.lua.dispatching import NOW, PREFIX, Dispatch


class Unused(Dispatch):
    """A worker and a producer that also use queues which end."""

    def use(self, **kept_ms: int) -> int:
        return self.run(
            calls.EXPIRE_QUEUES, calls.expire_queues_args(kept_ms, False, str(self.now))
        )

    def declare(self, **kept_ms: int) -> int:
        return self.run(calls.EXPIRE_QUEUES, calls.expire_queues_args(kept_ms, True, str(self.now)))

    def ends(self) -> dict[str, float]:
        """When each queue ends, from now."""
        found = self.client.zrange(PREFIX + "queue_expiry", 0, -1, withscores=True)
        return {queue: end - self.now for queue, end in found}


@pytest.fixture
def dispatch(redis_url, client):
    return Unused(client, Rules(default_limit=None))


def test_a_queue_that_nobody_uses_ends_and_what_runs_runs_on(dispatch):
    assert dispatch.use() == -1
    for _ in range(250):
        dispatch.put("a")
    dispatch.put("a", eta_ms=dispatch.now + 3_600_000)
    (task,) = dispatch.claim(want=1).tasks
    assert dispatch.use(q=1_000, other=5_000) == 1_000
    dispatch.now += 999
    assert dispatch.use() == 1
    assert dispatch.use(q=1_000) == 1_000
    dispatch.now += 1_000
    # 250 wait, and 100 go in one call.
    assert [dispatch.use() for _ in range(4)] == [0, 0, 0, 3_001]
    assert dispatch.run(calls.SIZE, calls.size_args("q")) == [0, 0]
    assert dispatch.settle([task]) == [Settled.SETTLED]
    assert dispatch.use(other=0) == -1
    dispatch.now += 10_000
    assert dispatch.use() == -1


@pytest.mark.parametrize("how", ["use", "declare"])
def test_who_keeps_a_queue_for_a_shorter_time_takes_nothing_from_others(dispatch, how):
    dispatch.declare(q=60_000)
    getattr(dispatch, how)(q=1_000)
    assert dispatch.ends() == {"q": 60_000}
    dispatch.now += 59_500
    getattr(dispatch, how)(q=1_000)
    assert dispatch.ends() == {"q": 1_000}


def test_a_queue_that_is_declared_without_an_end_has_none_until_it_is_declared_with_one(dispatch):
    dispatch.put("a")
    dispatch.declare(q=1_000)
    dispatch.declare(q=0)
    # Somebody of before, who knows the end still.
    dispatch.use(q=1_000)
    dispatch.now += 5_000
    assert dispatch.use() == -1
    assert dispatch.run(calls.SIZE, calls.size_args("q")) == [1, 0]
    dispatch.declare(q=1_000)
    assert dispatch.ends() == {"q": 1_000}


def test_a_queue_without_an_end_is_not_remembered(dispatch, client):
    dispatch.declare(q=0)
    assert not client.exists(PREFIX + "queue_expiry")
    assert dispatch.now == NOW


@pytest.mark.parametrize("how", ["use", "declare"])
def test_a_use_of_a_queue_that_has_ended_ends_it_first_in_parts(dispatch, how):
    for _ in range(150):
        dispatch.put("a")
    dispatch.declare(q=1_000)
    dispatch.now += 1_000
    assert getattr(dispatch, how)(q=1_000) == calls.ENDS_FIRST
    assert getattr(dispatch, how)(q=1_000) == 1_000
    assert dispatch.ends() == {"q": 1_000}
    dispatch.put("a")
    assert len(dispatch.claim().tasks) == 1


def test_of_a_queue_that_has_ended_nothing_is_claimed_or_counted(dispatch):
    dispatch.put("a")
    dispatch.put("a", queue="other")
    dispatch.declare(q=1_000)

    def waiting():
        return dispatch.run(calls.SIZE, calls.size_args("q", str(dispatch.now)))

    dispatch.now += 999
    assert waiting() == [1, 0]
    dispatch.now += 1
    assert waiting() == [0, 0]
    (task,) = dispatch.claim(queues=("q", "other")).tasks
    assert task.queue == "other"


@pytest.mark.parametrize("kind", ["active", "blocked"])
def test_a_tenant_whose_order_was_deleted_keeps_no_task_of_others(dispatch, client, kind):
    for tenant in "ab":
        dispatch.put(tenant)
    dispatch.use(q=1_000)
    client.delete(f"{PREFIX}ready:tenant:a q")
    if kind == "blocked":
        client.zrem(f"{PREFIX}active:q", "tenant:a")
        client.zadd(f"{PREFIX}blocked:q", {"tenant:a": 0})
    dispatch.now += 1_000
    assert dispatch.use() == 0
    assert dispatch.use() == -1
    assert dispatch.find("t2") is None
    assert not client.exists(f"{PREFIX}active:q", f"{PREFIX}blocked:q")
    assert dispatch.run(calls.PURGE, ["q"]) == 0
