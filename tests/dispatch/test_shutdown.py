"""What a stopping worker holds: bodies that end, tasks that wait again in their places."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery.contrib.testing.worker import start_worker
from redis import Redis

from celery_fairness.config.tiers import Tier
from celery_fairness.transport.session import _sessions, sessions
from tests.dispatch.conftest import PREFIX, assert_nothing_left, send, states, waiting_in
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.nodes import WorkerNode
from tests.support.waiting import eventually

#: So that a test sees that the consumer is closed.
TELLS_STEPS = ("--loglevel", "DEBUG")
POOLS = ["prefork", "threads", "gevent"]


@dataclass
class Scene:
    """A worker with two places: an early-acked and a late-acked body, and two more that wait."""

    shop: Shop
    worker: WorkerNode
    gate: Path
    early: Any
    late: Any
    queued: list[Any]

    def end(self, number: int) -> None:
        """Send a signal and see the worker begin to end."""
        self.worker.signal(number)
        said = "Warm shutdown" if number == signal.SIGTERM else "Hitting Ctrl+C again"
        self.worker.wait_for_log(said)

    def gone(self) -> None:
        """Wait until the worker is gone."""
        eventually(lambda: not self.worker.alive, RESULT_SECONDS)

    def ended(self) -> set[str]:
        """Return the ids of bodies that came to their end."""
        return {entry["id"] for entry in self.shop.ledger("end")}


@pytest.fixture
def make_scene(make_fair_shop: Callable[..., Shop]) -> Callable[..., Scene]:
    """A factory of scenes: ``make_scene(pool, **conf)``."""

    def make(pool: str, **conf: Any) -> Scene:
        shop = make_fair_shop(conf=conf, fairness={"lease_seconds": 60})
        shop.fairness.tenants.publish_tiers([Tier("free", None)])
        worker = shop.worker(app="tests.dispatch.kinds", pool=pool, concurrency=2)
        gate = shop.gate_file()
        early = send(shop, "kinds.early", "42", gate=str(gate))
        late = send(shop, "kinds.late", "42", gate=str(gate))
        eventually(lambda: len(shop.ledger("start")) == 2)
        shop.await_held("42", 2)
        queued = [send(shop, "kinds.late", "42", gate=str(gate)) for _ in range(2)]
        return Scene(shop, worker, gate, early, late, queued)

    return make


@pytest.mark.parametrize("pool", POOLS)
def test_a_warm_shutdown_lets_bodies_end_and_claims_no_more(
    make_scene: Callable[..., Scene], memory: Redis, pool: str
) -> None:
    scene = make_scene(pool)
    scene.end(signal.SIGTERM)
    scene.gate.touch()
    scene.gone()
    assert scene.ended() == {scene.early.id, scene.late.id}
    assert waiting_in(memory) == [each.id for each in scene.queued]
    assert scene.shop.held("42") == 0
    scene.shop.worker(app="tests.dispatch.kinds", pool=pool)
    for result in scene.queued:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert set(scene.shop.runs().values()) == {1}
    assert_nothing_left(memory)


def _began(shop: Shop, task_id: str) -> None:
    assert task_id in shop.runs()


@pytest.mark.parametrize("name", ["kinds.early", "kinds.late"])
def test_what_a_stopped_pool_has_not_begun_waits_again_at_once(
    make_fair_shop: Callable[..., Shop], memory: Redis, name: str
) -> None:
    shop = make_fair_shop(conf={"worker_prefetch_multiplier": 2}, fairness={"lease_seconds": 60})
    shop.fairness.tenants.publish_tiers([Tier("free", None)])
    worker = shop.worker(
        app="tests.dispatch.kinds", pool="prefork", concurrency=1, args=TELLS_STEPS
    )
    gate = shop.gate_file()
    runs, waits = (send(shop, name, "42", gate=str(gate)) for _ in range(2))
    worker.wait_for_log(f"{waits.id}] received")
    # A body that has not begun by then waits again too.
    eventually(lambda: _began(shop, runs.id))
    worker.signal(signal.SIGTERM)
    worker.wait_for_log("Stopping Pool...")
    gate.touch()
    eventually(lambda: not worker.alive, RESULT_SECONDS)
    assert runs.get(timeout=RESULT_SECONDS) == "done"
    assert waiting_in(memory) == [waits.id]
    assert shop.held("42") == 0


@pytest.mark.parametrize("name", ["kinds.early", "kinds.late"])
def test_what_a_process_has_and_has_not_begun_when_the_worker_stops_runs_once(
    make_fair_shop: Callable[..., Shop], memory: Redis, name: str
) -> None:
    shop = make_fair_shop(fairness={"lease_seconds": 60})
    worker = shop.worker(
        app="tests.dispatch.kinds", pool="prefork", concurrency=1, args=TELLS_STEPS
    )
    (child,) = worker.children()
    # The pool writes only to a process that has reported its start.
    eventually(lambda: _writes(shop, worker)["inqueues"]["total"] == 1)
    os.kill(child, signal.SIGSTOP)
    result = send(shop, name, "42")
    worker.wait_for_log(f"{result.id}] received")
    eventually(lambda: int(_writes(shop, worker)["total"]) == 1)
    worker.signal(signal.SIGTERM)
    worker.wait_for_log("Stopping Pool...")
    os.kill(child, signal.SIGCONT)
    eventually(lambda: not worker.alive, RESULT_SECONDS)
    assert result.get(timeout=RESULT_SECONDS) == "done"
    assert set(shop.runs().values()) == {1}
    assert_nothing_left(memory)


def _writes(shop: Shop, worker: WorkerNode) -> Any:
    """Return what the worker's main process has written to its children, and to how many it can."""
    return shop.ask(worker, "stats")["pool"]["writes"]


def test_a_cold_shutdown_puts_late_acked_tasks_back_in_their_places(
    make_scene: Callable[..., Scene], memory: Redis
) -> None:
    scene = make_scene("prefork")
    scene.end(signal.SIGQUIT)
    scene.gone()
    assert waiting_in(memory) == [scene.late.id, *(each.id for each in scene.queued)]
    assert scene.shop.held("42") == 0
    # As in stock Celery: it says so and is gone.
    assert scene.early.state == "RETRY"
    scene.gate.touch()
    scene.shop.worker(app="tests.dispatch.kinds", pool="threads", concurrency=1)
    for result in (scene.late, *scene.queued):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    starts = [entry["id"] for entry in scene.shop.ledger("start")[2:]]
    assert starts == [scene.late.id, *(each.id for each in scene.queued)]
    assert_nothing_left(memory)


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_a_cold_shutdown_of_threads_and_greenlets_loses_no_late_acked_task(
    make_scene: Callable[..., Scene], memory: Redis, pool: str
) -> None:
    scene = make_scene(pool)
    scene.end(signal.SIGQUIT)
    scene.gate.touch()
    scene.gone()
    # Threads cannot be stopped; a greenlet that was acknowledged is killed.
    assert scene.late.id in scene.ended()
    assert waiting_in(memory) == [each.id for each in scene.queued]
    assert scene.shop.held("42") == 0


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_soft_shutdown_that_runs_out_is_a_cold_one(
    make_scene: Callable[..., Scene], memory: Redis, pool: str
) -> None:
    scene = make_scene(pool, worker_soft_shutdown_timeout=0.5)
    scene.worker.signal(signal.SIGQUIT)
    scene.worker.wait_for_log("Initiating Soft Shutdown")
    if pool == "prefork":
        scene.gone()
        assert waiting_in(memory) == [scene.late.id, *(each.id for each in scene.queued)]
    else:
        scene.gate.touch()
        scene.gone()
        assert waiting_in(memory) == [each.id for each in scene.queued]
    assert scene.shop.held("42") == 0


def test_a_soft_shutdown_lets_a_body_end_that_needs_no_longer(
    make_scene: Callable[..., Scene], memory: Redis
) -> None:
    scene = make_scene("prefork", worker_soft_shutdown_timeout=4.0)
    scene.worker.signal(signal.SIGQUIT)
    scene.worker.wait_for_log("Initiating Soft Shutdown")
    scene.gate.touch()
    scene.gone()
    assert scene.ended() == {scene.early.id, scene.late.id}
    assert waiting_in(memory) == [each.id for each in scene.queued]
    assert scene.shop.held("42") == 0


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_worker_that_was_told_to_stop_claims_nothing(
    fair_shop: Shop, memory: Redis, pool: str
) -> None:
    worker = fair_shop.worker(app="tests.dispatch.kinds", pool=pool, concurrency=1)
    worker.signal(signal.SIGTERM)
    worker.wait_for_log("Warm shutdown")
    results = [send(fair_shop, "kinds.late", None, gate="/") for _ in range(3)]
    eventually(lambda: not worker.alive, RESULT_SECONDS)
    assert waiting_in(memory) == [each.id for each in results]
    assert fair_shop.ledger() == []


def test_the_leases_of_bodies_that_no_pool_can_stop_end(fair_shop: Shop, memory: Redis) -> None:
    worker = fair_shop.worker(
        app="tests.dispatch.kinds", pool="threads", concurrency=2, args=("--loglevel", "DEBUG")
    )
    gate = fair_shop.gate_file()
    for name in ("kinds.late", "kinds.early"):
        send(fair_shop, name, name, gate=str(gate))
    eventually(lambda: len(fair_shop.ledger("start")) == 2)
    worker.signal(signal.SIGINT)
    worker.wait_for_log("Stopping Pool")
    worker.signal(signal.SIGINT)
    # Celery gives up the pool, and stops the rest.
    worker.wait_for_log("does not implement kill_job")
    # The worker has left its list, and waits for its threads alone.
    eventually(lambda: not memory.zcard(f"{PREFIX}workers"))
    gate.touch()
    eventually(lambda: not worker.alive, RESULT_SECONDS)
    # Python forgets the thread whose join the signal broke, and may end the process before it.
    assert len(states(memory)) <= 1
    fair_shop.worker(app="tests.dispatch.kinds", pool="threads", concurrency=2)
    assert_nothing_left(memory, RESULT_SECONDS)


@pytest.fixture
def homes_end() -> Iterator[None]:
    """End the threads that renew what this process claimed."""
    yield
    for session in sessions():
        session.close()
    _sessions.clear()


@pytest.mark.usefixtures("homes_end")
def test_a_process_may_claim_again_when_its_worker_has_stopped(
    fair_shop: Shop, memory: Redis
) -> None:
    with start_worker(fair_shop.app, pool="solo", perform_ping_check=False):
        assert fair_shop.send("work", user="42").get(timeout=RESULT_SECONDS) == "done"
    sent = fair_shop.send("work", user="42")
    with fair_shop.app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery")
        message = queue.get(timeout=RESULT_SECONDS)
        assert message.headers["id"] == sent.id
        assert fair_shop.held("42") == 1
        message.ack()
        queue.close()
    assert_nothing_left(memory)
