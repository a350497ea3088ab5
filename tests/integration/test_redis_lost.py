"""The limiter's Redis goes away: the declared mode, and what runs runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery.result import AsyncResult

from celery_fairness import RateLimitPolicy
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.parts import parts_of
from tests.support.redis_server import RedisServer
from tests.support.waiting import at_most, eventually


@pytest.fixture
def limiter_server() -> Iterator[RedisServer]:
    """A Redis of the limiter's own, beside the broker."""
    with RedisServer(args=("--appendonly", "yes", "--appendfsync", "always")) as server:
        yield server


@pytest.fixture
def apart(make_shop: Callable[..., Shop], limiter_server: RedisServer) -> Callable[..., Shop]:
    """A factory of shops whose limiter is not the broker."""

    def make(**fairness: object) -> Shop:
        return make_shop(fairness={"redis_url": limiter_server.url, **fairness})

    return make


def test_defer_sends_tasks_back_until_redis_answers(
    apart: Callable[..., Shop], limiter_server: RedisServer
) -> None:
    shop = apart()
    worker = shop.worker(pool="threads", concurrency=2)
    limiter_server.kill()
    results = [shop.send("work", user="42") for _ in range(3)]
    worker.wait_for_log("the limiter's Redis does not answer")
    assert shop.runs() == {}
    limiter_server.restart()
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in results}


def test_open_runs_without_a_slot_and_counts(
    apart: Callable[..., Shop], limiter_server: RedisServer
) -> None:
    shop = apart(redis_lost="open")
    worker = shop.worker(pool="threads", concurrency=2)
    limiter_server.kill()
    results = [shop.send("work", user="42") for _ in range(3)]
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert worker.log_text().count("redis_lost is 'open'") == 1
    limiter_server.restart()
    assert shop.send("work", user="42").get(timeout=RESULT_SECONDS) == "done"
    eventually(lambda: shop.fairness.stats.counters() == {"opened": 3})


def test_closed_leaves_it_to_the_users_own_retries(
    apart: Callable[..., Shop], limiter_server: RedisServer
) -> None:
    shop = apart(redis_lost="closed")
    shop.worker(pool="threads", concurrency=2)
    limiter_server.kill()
    fails = shop.send("work", user="42")
    retries = shop.send("closed", user="42")
    with pytest.raises(Exception, match=r"127\.0\.0\.1.*does not answer.*FAIRNESS_REDIS_URL"):
        fails.get(timeout=RESULT_SECONDS)
    eventually(lambda: retries.state == "RETRY", RESULT_SECONDS)
    limiter_server.restart()
    assert retries.get(timeout=RESULT_SECONDS) == "ran"
    assert fails.id not in shop.runs()


@pytest.mark.parametrize("how", ["pause", "restart"])
def test_an_outage_longer_than_a_lease_ends_no_lease(
    apart: Callable[..., Shop], limiter_server: RedisServer, how: str
) -> None:
    shop = apart(lease_seconds=1)
    worker = shop.worker(pool="threads", concurrency=2)
    gate = shop.gate_file()
    running = shop.send("work", user="42", gate=str(gate))
    shop.await_held("42", 1)
    if how == "pause":
        limiter_server.pause()
    else:
        limiter_server.kill()
    worker.wait_for_log("leases could not be renewed")
    other = shop.send("work", user="42")
    worker.wait_for_log("the limiter's Redis does not answer")
    if how == "pause":
        limiter_server.resume()
    else:
        limiter_server.restart()
    eventually(lambda: shop.fairness.stats.rejections().tiers.get("free", 0) >= 3, RESULT_SECONDS)
    assert shop.held("42") == 1
    assert not other.ready()
    gate.touch()
    assert running.get(timeout=RESULT_SECONDS) == "done"
    assert other.get(timeout=RESULT_SECONDS) == "done"
    assert shop.most_at_once("42") == 1


def test_a_redis_that_lost_its_memory_gets_the_leases_back(
    apart: Callable[..., Shop], limiter_server: RedisServer
) -> None:
    shop = apart(lease_seconds=1)
    worker = shop.worker(concurrency=2)
    gate = shop.gate_file()
    running = shop.send("work", user="42", gate=str(gate))
    shop.await_held("42", 1)
    with limiter_server.client() as client:
        client.flushall()
    worker.wait_for_log("lost its memory")
    shop.await_held("42", 1)
    gate.touch()
    assert running.get(timeout=RESULT_SECONDS) == "done"
    shop.await_held("42", 0, 2.0)


def test_s44_rlr004_overrides_and_pauses_survive_a_restart_of_redis_and_of_the_worker(
    apart: Callable[..., Shop], limiter_server: RedisServer
) -> None:
    shop = apart()
    fairness = shop.fairness
    worker = shop.worker(pool="threads", concurrency=4)
    api, mail, paused = (RateLimitPolicy(key, concurrency=1) for key in ("api", "mail", "paused"))
    fairness.limits.override("api", concurrency=2, rate="9/PT1H", reason="a test", by="me")
    fairness.limits.override("mail", concurrency=0, for_seconds=3_600)
    fairness.tenants.pause("43")
    fairness.limits.pause("paused")
    said = [fairness.limits.inspect(key).override for key in ("api", "mail")]

    def send(user: str, *limits: RateLimitPolicy, gate: str | None = None) -> AsyncResult[Any]:
        return shop.send("work", user=user, gate=gate, options={"limits": list(limits)})

    held = [send("41", mail), send("42", paused), send("43")]

    def stopped_tasks_wait() -> None:
        look = parts_of(fairness).limiter.look
        assert [look(key)["waiting_count"] for key in ("mail", "paused")] == [1, 1]
        # Who is rejected by the tier comes again and again.
        before = fairness.stats.rejections().tiers.get("free", 0)
        eventually(
            lambda: fairness.stats.rejections().tiers.get("free", 0) > before + 1, RESULT_SECONDS
        )
        assert [fairness.limits.inspect(key).override for key in ("api", "mail")] == said
        assert fairness.limits.inspect("tenant:43").holds.paused
        assert fairness.limits.inspect("paused").holds.paused
        assert not {result.id for result in held} & set(shop.runs())

    eventually(
        lambda: (
            parts_of(fairness).limiter.look("mail")["waiting_count"]
            + parts_of(fairness).limiter.look("paused")["waiting_count"]
            == 2
        )
    )
    stopped_tasks_wait()
    limiter_server.kill()
    limiter_server.restart()
    stopped_tasks_wait()
    worker.terminate()
    shop.worker(pool="threads", concurrency=4)
    stopped_tasks_wait()
    gate = shop.gate_file()
    raised = [send(f"5{n}", api, gate=str(gate)) for n in range(3)]

    def two_run_and_one_waits() -> None:
        found = fairness.limits.inspect("api")
        assert (found.held, found.waiting_count) == (2, 1)

    eventually(two_run_and_one_waits)
    assert fairness.limits.inspect("api").rate.current_count == 2
    eventually(lambda: len(shop.ledger("start")) == 2)
    gate.touch()
    assert fairness.limits.clear_override("mail")
    fairness.tenants.resume("43")
    fairness.limits.resume("paused")
    for result in (*held, *raised):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert set(shop.runs().values()) == {1}


def test_a_producer_waits_a_tenth_of_a_second_for_a_redis_that_hangs(
    apart: Callable[..., Shop], limiter_server: RedisServer
) -> None:
    import time

    shop = apart()
    shop.send("routed", user="first")
    limiter_server.pause()
    parts_of(shop.fairness).tier_cache._look_at = 0.0
    begun = time.perf_counter()
    shop.send("routed", user="42")
    first = time.perf_counter() - begun
    limiter_server.resume()
    assert first < at_most(0.5)
