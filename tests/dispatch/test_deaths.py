"""Connections, workers and children that die while bodies run: no task is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis import Redis

from celery_fairness import MessageUnreadable
from celery_fairness.store.library import library
from tests.dispatch.conftest import PREFIX, assert_nothing_left, cut_all, send, states
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.proxy import Proxy
from tests.support.waiting import at_most, eventually

POOLS = ["prefork", "threads", "gevent"]
KINDS = "tests.dispatch.kinds"
#: How late an expired lease may be noticed, beside its length.
NOTICED_SECONDS = 2.0


def two_bodies(shop: Shop, gate: Any) -> list[Any]:
    """Start an early-acked and a late-acked body of two tenants."""
    results = [send(shop, f"kinds.{name}", name, gate=str(gate)) for name in ("early", "late")]
    eventually(lambda: len(shop.ledger("start")) == 2)
    return results


@pytest.mark.parametrize("pool", POOLS)
def test_bodies_run_on_over_a_lost_connection_and_run_once(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str
) -> None:
    shop = make_fair_shop(fairness={"lease_seconds": 60})
    worker = shop.worker(app=KINDS, pool=pool, concurrency=3)
    gate = shop.gate_file()
    results = two_bodies(shop, gate)
    waiting = send(shop, "kinds.late", "late", gate=str(gate))
    cut_all(memory)
    worker.wait_for_log("Connection to broker lost")
    eventually(lambda: worker.log_text().count("] Connected to fairredis") == 2, RESULT_SECONDS)
    assert [shop.held(user) for user in ("early", "late")] == [1, 1]
    gate.touch()
    for result in (*results, waiting):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert set(shop.runs().values()) == {1}
    assert_nothing_left(memory)
    assert send(shop, "kinds.plain", "42").get(timeout=RESULT_SECONDS) == "done"


@pytest.mark.parametrize("late", [False, True], ids=["early_ack", "late_ack"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_a_pool_has_not_begun_when_the_connection_is_lost_runs_once(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str, late: bool
) -> None:
    shop = make_fair_shop(conf={"worker_prefetch_multiplier": 4}, fairness={"lease_seconds": 60})
    gate = shop.gate_file()
    name = "kinds.late" if late else "kinds.early"
    results = [send(shop, name, None, gate=str(gate)) for _ in range(8)]
    worker = shop.worker(app=KINDS, pool=pool, concurrency=2)
    eventually(lambda: memory.hlen(f"{PREFIX}running") == 8)
    eventually(lambda: len(shop.ledger("start")) == 2)
    cut_all(memory)
    worker.wait_for_log("Connection to broker lost")
    eventually(lambda: worker.log_text().count("] Connected to fairredis") == 2, RESULT_SECONDS)
    gate.touch()
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 8
    assert set(shop.runs().values()) == {1}
    assert_nothing_left(memory)


@pytest.mark.parametrize("app", [KINDS, "tests.dispatch.taking_turns"])
def test_a_task_outlives_the_connection_in_a_pool_that_waits_for_a_process(
    make_fair_shop: Callable[..., Shop], memory: Redis, app: str
) -> None:
    shop = make_fair_shop(conf={"task_reject_on_worker_lost": True}, fairness={"lease_seconds": 60})
    worker = shop.worker(app=app, pool="prefork", concurrency=1)
    gate = shop.gate_file()
    result = send(shop, "kinds.late", "42", gate=str(gate))
    eventually(lambda: len(shop.ledger("start")) == 1)
    (child,) = worker.children()
    os.kill(child, signal.SIGKILL)
    # The pool has it again, and its new process is not up yet.
    eventually(lambda: worker.log_text().count("] received") == 2, poll_seconds=0.001)
    cut_all(memory)
    worker.wait_for_log("Connection to broker lost")
    gate.touch()
    assert result.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)


def test_a_solo_worker_outlives_a_connection_that_breaks_during_a_body(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    # With these options, redis-py connects again where its ping gets no answer.
    options = {"health_check_interval": 0.01, "retry_on_timeout": True}
    shop = make_fair_shop(conf={"broker_transport_options": options})
    worker = shop.worker(app=KINDS, pool="solo", concurrency=1)
    gate = shop.gate_file()
    results = [send(shop, "kinds.early", f"u{n}", gate=str(gate)) for n in range(3)]
    eventually(lambda: len(shop.ledger("start")) == 1)
    cut_all(memory)
    gate.touch()
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 3
    assert set(shop.runs().values()) == {1}
    worker.wait_for_log("Connection to broker lost")
    assert_nothing_left(memory)


def test_a_solo_worker_outlives_the_connection_of_its_remote_control(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop()
    worker = shop.worker(app=KINDS, pool="solo", concurrency=1)
    gate = shop.gate_file()
    results = [send(shop, "kinds.early", f"u{n}", gate=str(gate)) for n in range(5)]
    eventually(lambda: len(shop.ledger("start")) == 1)
    memory.client_kill_filter(_type="pubsub")
    gate.touch()
    # This process has lost the connection too on which it waits for results.
    eventually(lambda: {each.state for each in results} == {"SUCCESS"}, RESULT_SECONDS)
    worker.wait_for_log("Connection to broker lost")
    eventually(lambda: worker.log_text().count("] Connected to fairredis") == 2, RESULT_SECONDS)
    assert send(shop, "kinds.plain", "42").get(timeout=RESULT_SECONDS) == "done"
    assert set(shop.runs().values()) == {1}
    assert_nothing_left(memory)


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_message_that_no_worker_can_read_ends_none_of_them(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str
) -> None:
    shop = make_fair_shop(fairness={"max_deliveries": 0})
    typed = {"x": {"__type__": "of its producer alone", "__value__": "secret"}}
    poison = shop.app.send_task("kinds.plain", headers=typed)
    after = send(shop, "kinds.plain", "42")
    worker = shop.worker(app=KINDS, pool=pool, concurrency=1)
    assert after.get(timeout=RESULT_SECONDS) == "done"
    with pytest.raises(MessageUnreadable, match="dead letters of queue 'celery'"):
        poison.get(timeout=RESULT_SECONDS)
    assert memory.zcard(f"{PREFIX}dead:celery") == 1
    assert shop.fairness.stats.counters()["dead_lettered"] == 1
    worker.wait_for_log("is a dead letter of queue celery: its message cannot be read: ValueError")
    assert "secret" not in worker.log_text()
    assert not memory.exists(f"{PREFIX}running", f"{PREFIX}waiting")


@pytest.fixture
def proxied_shop(
    make_fair_shop: Callable[..., Shop], redis_url: str
) -> Iterator[tuple[Shop, Proxy]]:
    """A shop whose workers reach their broker, and not the results, through a proxy."""
    shop = make_fair_shop(fairness={"lease_seconds": 60})
    proxy = Proxy(urlsplit(redis_url).port or 0).start()
    shop.env["CELERY_BROKER_URL"] = proxy.url(shop.env["CELERY_BROKER_URL"])
    yield shop, proxy
    proxy.stop()


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_ends_while_the_broker_is_away_are_told_when_it_is_back(
    proxied_shop: tuple[Shop, Proxy], memory: Redis, pool: str
) -> None:
    shop, proxy = proxied_shop
    worker = shop.worker(app=KINDS, pool=pool, concurrency=3)
    gate = shop.gate_file()
    results = two_bodies(shop, gate)
    proxy.refuse()
    worker.wait_for_log("Connection to broker lost")
    gate.touch()
    eventually(lambda: len(shop.ledger("end")) == 2)
    assert [shop.held(user) for user in ("early", "late")] == [1, 1]
    proxy.resume()
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory, RESULT_SECONDS)
    assert set(shop.runs().values()) == {1}
    assert send(shop, "kinds.plain", "42").get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)


@pytest.mark.parametrize("pool", ["prefork", "gevent", "solo"])
def test_a_dead_worker_s_late_acked_task_starts_again_within_one_lease(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str
) -> None:
    lease_seconds = 2.0
    shop = make_fair_shop(fairness={"lease_seconds": lease_seconds})
    doomed = shop.worker(app=KINDS, pool=pool, concurrency=1, queues=["late"])
    also_doomed = shop.worker(app=KINDS, pool=pool, concurrency=1, queues=["early"])
    gate = shop.gate_file()
    early, late = (
        send(shop, f"kinds.{name}", name, gate=str(gate), options={"queue": name})
        for name in ("early", "late")
    )
    eventually(lambda: len(shop.ledger("start")) == 2)
    # What the body's begin says of the message has reached Redis.
    eventually(lambda: sorted(states(memory)) == ["acked", "begun"])
    follower = send(shop, "kinds.early", "early", options={"queue": "early"})
    shop.worker(app=KINDS, pool="threads", concurrency=2, queues=["early", "late"])
    doomed.kill()
    also_doomed.kill()
    killed_at = time.time()
    eventually(lambda: len(shop.ledger("start")) == 4)
    again = [each for each in shop.ledger("start") if each["id"] == late.id]
    assert [each["redelivered"] for each in again] == [False, True]
    assert again[1]["at"] - killed_at < at_most(lease_seconds + NOTICED_SECONDS)
    gate.touch()
    assert late.get(timeout=RESULT_SECONDS) == "done"
    # The early-acked one is gone; its tenant's next task has its slot.
    assert follower.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs()[early.id] == 1
    assert shop.fairness.stats.counters()["abandoned"] == 1
    assert_nothing_left(memory)


def test_a_claim_on_its_way_when_its_worker_dies_is_leased_to_the_dead(
    proxied_shop: tuple[Shop, Proxy], memory: Redis
) -> None:
    shop, proxy = proxied_shop
    gate = shop.gate_file()
    # A result would be the first thing that the end writes.
    options = {"ignore_result": True}
    first, second = (
        send(shop, "kinds.late", "42", gate=str(gate), options=options) for _ in range(2)
    )
    doomed = shop.worker(app=KINDS, pool="solo")
    eventually(lambda: states(memory) == ["begun"])
    proxy.hang()
    gate.touch()
    # The end of the first and the claim of the second are one command.
    eventually(lambda: proxy.holds(library().function("claim").encode()))
    doomed.kill()
    proxy.resume()
    eventually(lambda: states(memory) == ["claimed"])
    assert memory.hkeys(f"{PREFIX}running") == [memory.hget(f"{PREFIX}ids", second.id)]
    assert shop.runs() == {first.id: 1}
    assert shop.held("42") == 1


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_a_body_that_exits_its_thread_does_not_run_for_ever(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str
) -> None:
    shop = make_fair_shop(fairness={"max_deliveries": 3})
    shop.worker(app=KINDS, pool=pool, concurrency=1)
    late = send(shop, "kinds.late", "42", how="sys_exit")
    early = send(shop, "kinds.early", "43", how="sys_exit")
    eventually(lambda: memory.zcard(f"{PREFIX}dead:celery") == 1, RESULT_SECONDS)
    shop.await_held("42", 0)
    shop.await_held("43", 0)
    assert shop.runs() == {late.id: 3, early.id: 1}
    assert send(shop, "kinds.late", "42").get(timeout=RESULT_SECONDS) == "done"
