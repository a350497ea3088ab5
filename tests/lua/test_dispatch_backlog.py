"""A put over a bound is rejected by the script that puts, and leaves no trace."""

from __future__ import annotations

import pytest

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Bounds, Full, Put, Verdict
from tests.lua.dispatching import PREFIX, Dispatch
from tests.support.library import call
from tests.support.tiers import tier_row

TWO = Bounds("free", 2)


@pytest.fixture
def dispatch(redis_url, client):
    return Dispatch(client)


@pytest.fixture
def publish(client):
    """Publish tiers by their ``max_waiting``."""

    def make(**most):
        rows = {name: tier_row(max_waiting=number) for name, number in most.items()}
        call(client, calls.PUBLISH_TIERS, PREFIX, calls.tiers_args(rows, "database"))

    return make


def test_what_is_rejected_leaves_no_trace(dispatch, client):
    for _ in range(2):
        assert dispatch.put("a", bounds=TWO) is Put.WAITS
    before = {key: client.dump(key) for key in client.keys(f"{PREFIX}*")}
    assert dispatch.put("a", bounds=TWO) == Full("tenant:a", 2, 2)
    assert dispatch.put("b", bounds=Bounds("free", None, 2)) == Full("queue:q", 2, 2)
    assert {key: client.dump(key) for key in client.keys(f"{PREFIX}*")} == before
    assert dispatch.put("b", bounds=TWO) is Put.WAITS


def test_the_count_is_over_all_queues_of_the_tenant_and_what_runs_does_not_wait(dispatch):
    dispatch.put("a", bounds=TWO)
    dispatch.put("a", queue="p", bounds=TWO)
    assert dispatch.put("a", queue="r", bounds=TWO) == Full("tenant:a", 2, 2)
    dispatch.claim(want=1)
    assert dispatch.put("a", queue="r", bounds=TWO) is Put.WAITS


def test_where_each_service_counts_apart_its_tasks_wait_apart(dispatch):
    for service in ("s", "t"):
        for _ in range(2):
            assert dispatch.put("a", service=service, bounds=TWO) is Put.WAITS
    assert dispatch.put("a", service="s", bounds=TWO) == Full("tenant:a:s", 2, 2)


def test_a_task_without_a_tenant_is_bounded_by_its_queue_alone(dispatch):
    for _ in range(3):
        assert dispatch.put("", bounds=Bounds("free", 1, 3)) is Put.WAITS
    assert dispatch.put("", bounds=Bounds("free", 1, 3)) == Full("queue:q", 3, 3)


def test_published_numbers_act_at_once_and_go_before_the_settings(dispatch, publish):
    publish(free=None, pro=1)
    for _ in range(3):
        assert dispatch.put("a", tier="free", bounds=TWO) is Put.WAITS
    publish(free=3, pro=1)
    assert dispatch.put("a", tier="free", bounds=TWO) == Full("tenant:a", 3, 3)
    publish(free=4, pro=1)
    assert dispatch.put("a", tier="free", bounds=TWO) is Put.WAITS
    publish(free=None, pro=None)
    assert dispatch.put("a", tier="free", bounds=TWO) is Put.WAITS


def test_the_tier_is_the_published_one_then_that_of_the_put_then_that_of_what_waits(
    dispatch, publish
):
    publish(free=1, pro=2, gold=3)
    dispatch.put("a", tier="pro", bounds=TWO)
    # A put that knows no tier, or one that nobody has published.
    assert dispatch.put("a", bounds=TWO) is Put.WAITS
    assert dispatch.put("a", bounds=TWO) == Full("tenant:a", 2, 2)
    assert dispatch.put("a", tier="odd", bounds=TWO) == Full("tenant:a", 1, 2)
    assert dispatch.put("a", tier="gold", bounds=TWO) is Put.WAITS
    dispatch.publish_tenant("a", "pro")
    assert dispatch.put("a", tier="gold", bounds=TWO) == Full("tenant:a", 2, 3)


def test_a_put_that_is_sent_again_is_known_however_many_wait(dispatch):
    dispatch.put("a", tag="first", bounds=TWO)
    dispatch.put("a", bounds=TWO)
    assert dispatch.put("a", tag="first", bounds=TWO) is Put.KNOWN


def test_what_was_accepted_is_never_rejected(dispatch, client):
    one = Bounds("free", 1, 1)
    dispatch.put("a", bounds=one)
    (task,) = dispatch.claim().tasks
    dispatch.put("a", bounds=one)
    # It comes back, is sent again, has a time, or has lain in a plain list.
    dispatch.settle([task], Verdict.HEAD)
    assert dispatch.put("a") is Put.WAITS
    later = dispatch.now + 1_000
    assert dispatch.put("a", bounds=one, eta_ms=later) is Put.WAITS_FOR_ITS_TIME
    client.rpush("plain", "entry")
    assert dispatch.put_from("plain", "entry", "a", bounds=one) is Put.WAITS
    dispatch.now = later
    dispatch.claim(want=1, queues=("other", "q"))
    assert client.hget(PREFIX + "waiting", "q") == "4"


def test_a_put_that_is_not_bounded_asks_nothing(dispatch, publish, commands):
    publish(free=None)
    dispatch.put("a")
    with commands() as plain:
        dispatch.put("a")
    with commands() as asked:
        dispatch.put("a", bounds=Bounds("free"))
    assert asked == plain
