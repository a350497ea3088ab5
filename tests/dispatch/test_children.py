"""Pool processes that die shortly before the broker connection is lost: each task runs once.

Celery's pool finds pipes by their file numbers, and new pipes get the numbers of closed ones.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from tests.dispatch.conftest import assert_nothing_left, cut_all, send
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.nodes import WorkerNode
from tests.support.waiting import eventually

KINDS = "tests.dispatch.kinds"


def unread_task(shop: Shop, worker: WorkerNode, kind: str) -> Any:
    """Send a task that is in the pipe of a child, which does not read it."""
    children = worker.children()
    # The pool writes only to processes that have reported their start.
    eventually(lambda: writes(shop, worker)["inqueues"]["total"] == len(children))
    for child in children:
        os.kill(child, signal.SIGSTOP)
    result = send(shop, kind, "42")
    worker.wait_for_log(f"[{result.id}] received")
    # The loop writes into pipes before it sleeps again, and answers after that.
    shop.ask(worker, "ping")
    return result


def writes(shop: Shop, worker: WorkerNode) -> Any:
    """Return what the worker's main process has written to its children, and to how many it can."""
    return shop.ask(worker, "stats")["pool"]["writes"]


def reconnected(worker: WorkerNode) -> None:
    """Wait until the worker has connected for the second time."""
    eventually(lambda: worker.log_text().count("] Connected to fairredis") == 2, RESULT_SECONDS)


@pytest.mark.parametrize("kind", ["kinds.early", "kinds.late"])
def test_the_unread_task_of_a_dead_child_runs_after_a_lost_connection(
    make_fair_shop: Callable[..., Shop], memory: Redis, kind: str
) -> None:
    # The task goes back to the pool, whose new process has a pipe with the number of the old one.
    shop = make_fair_shop(conf={"worker_proc_alive_timeout": 30}, fairness={"lease_seconds": 60})
    children_start = shop.gate_file()
    children_start.touch()
    env = {"SHOP_CHILDREN_START": str(children_start)}
    worker = shop.worker(app="tests.dispatch.late_children", concurrency=1, env=env)
    (child,) = worker.children()
    result = unread_task(shop, worker, kind)
    children_start.unlink()
    os.kill(child, signal.SIGKILL)
    eventually(lambda: worker.children() not in ([], [child]))
    cut_all(memory)
    reconnected(worker)
    children_start.touch()
    assert result.get(timeout=RESULT_SECONDS) == "done"
    assert_nothing_left(memory)
    assert shop.runs() == {result.id: 1}


def cause(shop: Shop, worker: WorkerNode, accident: str) -> int:
    """Cause an accident of ``pool_accidents``, and return its number."""
    where = {"destination": [worker.hostname()], "reply": True, "timeout": RESULT_SECONDS}
    (answer,) = shop.app.control.broadcast(accident, limit=1, **where)
    return int(answer[worker.hostname()]["ok"])


@pytest.mark.parametrize("kind", ["kinds.early", "kinds.late"])
def test_the_unread_task_of_a_child_that_dies_with_the_connection_runs_once(
    make_fair_shop: Callable[..., Shop], memory: Redis, kind: str
) -> None:
    # It must not stay in the pipe too, which would go to the next process.
    shop = make_fair_shop(fairness={"lease_seconds": 60})
    worker = shop.worker(app="tests.dispatch.pool_accidents", concurrency=2)
    children = worker.children()
    result = unread_task(shop, worker, kind)
    children.remove(cause(shop, worker, "close_after_a_death"))
    os.kill(children[0], signal.SIGCONT)
    after = send(shop, kind, "42")
    assert [each.get(timeout=RESULT_SECONDS) for each in (result, after)] == ["done", "done"]
    assert_nothing_left(memory)
    assert shop.runs() == {result.id: 1, after.id: 1}


def test_a_worker_that_mistook_children_for_dead_ones_outlives_a_lost_connection(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    # It happens if several children die in one turn of the loop, and new ones get their numbers.
    shop = make_fair_shop()
    worker = shop.worker(app="tests.dispatch.pool_accidents", concurrency=2)
    shop.ask(worker, "ping")
    assert cause(shop, worker, "mistake_exits") == 2
    cut_all(memory)
    reconnected(worker)
    assert send(shop, "kinds.plain", "42").get(timeout=RESULT_SECONDS) == "done"
