"""Tasks that end for good while nobody is there to tell: who waits for a result hears of it.

Early-acked tasks whose worker is killed, and tasks that kill their processes until they are dead
letters; alone, in a chord, with and without a result.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import chord
from celery.exceptions import ChordError, WorkerLostError
from redis import Redis

from celery_fairness import DeliveriesExhausted
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules
from tests.dispatch.conftest import PREFIX, assert_nothing_left, send, states
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.library import call
from tests.support.nodes import WorkerNode
from tests.support.redis_server import RedisServer
from tests.support.waiting import at_most, eventually

KINDS = "tests.dispatch.kinds"
LEASE_SECONDS = 1.0
#: How late the result of a lost task may be, beside the length of a lease: a claim sees within one
#: second that it ended, a collector asks within another, and both may wait for a processor.
TOLD_SECONDS = 3.0


@pytest.fixture
def shop(make_fair_shop: Callable[..., Shop]) -> Shop:
    return make_fair_shop(fairness={"lease_seconds": LEASE_SECONDS, "max_deliveries": 2})


@pytest.fixture
def results(redis_server: RedisServer, redis_url: str) -> Iterator[Redis]:
    """What is kept of results: a client that decodes."""
    client = Redis.from_url(redis_url.removesuffix("/0") + "/1", decode_responses=True)
    yield client
    client.close()


def doomed_worker(shop: Shop, memory: Redis, pool: str = "prefork") -> WorkerNode:
    """Start a worker on a queue of its own, and wait until a body runs there for ever."""
    worker = shop.worker(app=KINDS, pool=pool, concurrency=1, queues=["doomed"])
    eventually(lambda: states(memory) == ["acked"], RESULT_SECONDS)
    return worker


def send_early(shop: Shop, **options: Any) -> Any:
    """Send an early-acked task whose body does not end by itself."""
    gate = str(shop.gate_file())
    return send(shop, "kinds.early", "42", gate=gate, options={"queue": "doomed", **options})


def lose(shop: Shop, memory: Redis, pool: str = "prefork", **options: Any) -> Any:
    """Send an early-acked task and kill its worker in its body."""
    result = send_early(shop, **options)
    doomed_worker(shop, memory, pool).kill()
    return result


@pytest.mark.parametrize(
    ("pool", "other"),
    [("prefork", "idle"), ("prefork", "full"), ("gevent", "idle"), ("solo", "full")],
)
def test_the_result_of_an_early_acked_task_whose_worker_is_killed_is_a_failure(
    shop: Shop, memory: Redis, pool: str, other: str
) -> None:
    lost = send_early(shop)
    doomed = doomed_worker(shop, memory, pool)
    living = shop.worker(app=KINDS, pool=pool, concurrency=1)
    gate = shop.gate_file()
    if other == "full":
        send(shop, "kinds.early", "43", gate=str(gate))
        eventually(lambda: len(shop.ledger("start")) == 2)
    doomed.kill()
    killed_at = time.time()
    with pytest.raises(WorkerLostError, match="Worker exited prematurely: the lease of"):
        lost.get(timeout=RESULT_SECONDS)
    assert time.time() - killed_at < at_most(LEASE_SECONDS + TOLD_SECONDS)
    living.wait_for_log(f"task kinds.early[{lost.id}] of tenant '42' was lost with its worker")
    assert shop.fairness.stats.counters()["abandoned"] == 1
    gate.touch()
    assert_nothing_left(memory)
    assert shop.runs()[lost.id] == 1


def test_the_result_of_a_dead_letter_is_a_failure_where_the_workers_die(
    shop: Shop, memory: Redis
) -> None:
    gate = shop.gate_file()
    deadly = send(shop, "kinds.late", "42", gate=str(gate), how="die")
    for times in (1, 2):
        gate.unlink(missing_ok=True)
        worker = shop.worker(app=KINDS, pool="solo")
        eventually(lambda times=times: len(shop.ledger("start")) == times, RESULT_SECONDS)
        eventually(lambda: states(memory) == ["begun"], RESULT_SECONDS)
        assert deadly.state == "PENDING"
        gate.touch()
        eventually(lambda worker=worker: not worker.alive, RESULT_SECONDS)
    worker = shop.worker(app=KINDS, pool="solo")
    with pytest.raises(DeliveriesExhausted, match="dead letters of queue 'celery'") as raised:
        deadly.get(timeout=RESULT_SECONDS)
    assert (raised.value.task, raised.value.task_id) == ("kinds.late", deadly.id)
    assert raised.value.deliveries == 2
    worker.wait_for_log(f"task kinds.late[{deadly.id}] of tenant '42' is a dead letter of queue")
    assert memory.zcard(f"{PREFIX}dead:celery") == 1
    assert shop.fairness.stats.counters()["dead_lettered"] == 1
    assert shop.runs() == {deadly.id: 2}
    shop.await_held("42", 0)
    eventually(lambda: not memory.exists(f"{PREFIX}outcomes"))


def test_the_result_of_a_dead_letter_is_a_failure_where_children_die(
    shop: Shop, memory: Redis
) -> None:
    shop.worker(app=KINDS, concurrency=1)
    deadly = send(shop, "kinds.late", "42", how="die")
    with pytest.raises(DeliveriesExhausted, match="delivered 2 times"):
        deadly.get(timeout=RESULT_SECONDS)
    assert memory.zcard(f"{PREFIX}dead:celery") == 1
    assert shop.runs() == {deadly.id: 2}
    assert send(shop, "kinds.late", "42").get(timeout=RESULT_SECONDS) == "done"


def test_a_chord_fails_whose_part_was_lost_with_its_worker(shop: Shop, memory: Redis) -> None:
    shop.worker(app=KINDS, concurrency=2)
    signature = shop.app.signature
    gate = str(shop.gate_file())
    part = signature("kinds.early", kwargs={"gate": gate}, options={"queue": "doomed"})
    after = chord([part, signature("kinds.plain")], app=shop.app)(signature("kinds.plain"))
    doomed_worker(shop, memory).kill()
    with pytest.raises(ChordError, match="WorkerLostError"):
        # Not that of the chord itself, which asks its parts first.
        shop.app.AsyncResult(after.id).get(timeout=RESULT_SECONDS)
    assert after.id not in shop.runs()


def test_a_chord_fails_whose_part_is_a_dead_letter(shop: Shop, memory: Redis) -> None:
    shop.worker(app=KINDS, concurrency=2)
    signature = shop.app.signature
    part = signature("kinds.late", kwargs={"how": "die"})
    after = chord([part, signature("kinds.plain")], app=shop.app)(signature("kinds.plain"))
    with pytest.raises(ChordError, match="DeliveriesExhausted"):
        # Not that of the chord itself, which asks its parts first.
        shop.app.AsyncResult(after.id).get(timeout=RESULT_SECONDS)
    assert after.id not in shop.runs()
    assert memory.zcard(f"{PREFIX}dead:celery") == 1


def test_errbacks_are_called_and_the_rest_of_a_chain_fails(shop: Shop, memory: Redis) -> None:
    shop.worker(app=KINDS, concurrency=1)
    errback = shop.app.signature("kinds.note_failure")
    after = shop.app.signature("kinds.plain").set(task_id="after")
    lost = lose(shop, memory, link_error=[errback], chain=[after])
    eventually(lambda: shop.ledger("errback") != [], RESULT_SECONDS)
    assert [line["id"] for line in shop.ledger("errback")] == [lost.id]
    with pytest.raises(WorkerLostError):
        shop.app.AsyncResult("after").get(timeout=RESULT_SECONDS)


def test_nothing_is_kept_of_a_task_whose_result_is_ignored(
    shop: Shop, memory: Redis, results: Redis
) -> None:
    living = shop.worker(app=KINDS, concurrency=1)
    errback = shop.app.signature("kinds.note_failure")
    lost = lose(shop, memory, ignore_result=True, link_error=[errback])
    dead = send(shop, "kinds.late", "43", how="die", options={"ignore_result": True})
    living.wait_for_log(f"task kinds.early[{lost.id}] of tenant '42' was lost")
    living.wait_for_log(f"task kinds.late[{dead.id}] of tenant '43' is a dead letter")
    eventually(lambda: shop.ledger("errback") != [], RESULT_SECONDS)
    stored = "".join(results.scan_iter())
    assert lost.id not in stored
    assert dead.id not in stored


def test_a_worker_that_is_started_later_writes_the_result(shop: Shop, memory: Redis) -> None:
    lost = lose(shop, memory)
    assert lost.state == "PENDING"
    shop.worker(app=KINDS, concurrency=1)
    with pytest.raises(WorkerLostError):
        lost.get(timeout=RESULT_SECONDS)
    assert_nothing_left(memory)


def test_a_result_is_written_though_the_worker_that_was_to_write_it_died(
    shop: Shop, memory: Redis
) -> None:
    lost = lose(shop, memory)
    rules, taken_at = Rules(lease_ms=round(LEASE_SECONDS * 1000)), 0.0

    def taken() -> bool:
        nonlocal taken_at
        taken_at = time.time()
        args = calls.next_outcome_args("", rules)
        answer = call(memory, calls.NEXT_OUTCOME, PREFIX, args)
        return calls.read_next_outcome(answer) is not None

    eventually(taken)
    shop.worker(app=KINDS, concurrency=1)
    with pytest.raises(WorkerLostError):
        lost.get(timeout=RESULT_SECONDS)
    assert time.time() - taken_at > LEASE_SECONDS
    assert_nothing_left(memory)


def test_a_worker_that_does_not_know_the_task_writes_its_result(shop: Shop, memory: Redis) -> None:
    lost = lose(shop, memory)
    shop.worker(app="tests.support.shop", concurrency=1)
    with pytest.raises(WorkerLostError):
        lost.get(timeout=RESULT_SECONDS)


def test_a_result_that_was_stored_stays_though_the_worker_died_before_it_told(
    shop: Shop, memory: Redis
) -> None:
    living = shop.worker(app=KINDS, concurrency=1)
    lost = send_early(shop)
    doomed = doomed_worker(shop, memory)
    shop.app.backend.store_result(lost.id, "done", "SUCCESS")
    doomed.kill()
    living.wait_for_log(f"task kinds.early[{lost.id}] had ended before its worker was lost")
    assert lost.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_an_event_says_that_the_task_failed(shop: Shop, memory: Redis, pool: str) -> None:
    heard: list[dict[str, Any]] = []
    with shop.app.connection_for_read() as own:
        receiver = shop.app.events.Receiver(own, {"task-failed": heard.append})
        with receiver.consumer_context() as (connection, _, _):

            def listen() -> bool:
                # Redis subscribes when somebody listens.
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=0.1)
                return bool(heard)

            listen()
            shop.worker(app=KINDS, pool=pool, concurrency=1, args=["-E"])
            lost = lose(shop, memory)
            eventually(listen, RESULT_SECONDS)
    (event,) = heard
    assert event["uuid"] == lost.id
    assert "WorkerLostError" in event["exception"]
