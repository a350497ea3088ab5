"""A worker that was frozen for longer than its leases: what others took over is theirs."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.dispatch.conftest import PREFIX, assert_nothing_left, cut_all, send, states
from tests.dispatch.test_children import reconnected, writes
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.nodes import WorkerNode
from tests.support.waiting import at_most, eventually

KINDS = "tests.dispatch.kinds"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_thawed_worker_says_what_it_lost_and_ends_what_it_can(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str
) -> None:
    shop = make_fair_shop(fairness={"lease_seconds": 1})
    frozen = shop.worker(app=KINDS, pool=pool, concurrency=2)
    gate = shop.gate_file()
    late = send(shop, "kinds.late", "42", gate=str(gate))
    early = send(shop, "kinds.early", "43", gate=str(gate))
    eventually(lambda: sorted(states(memory)) == ["acked", "begun"])
    children = set(frozen.children())
    frozen.signal(signal.SIGSTOP)
    shop.worker(app=KINDS, pool="threads", concurrency=2)
    # Only what can be redelivered begins again.
    eventually(lambda: shop.runs() == {late.id: 2, early.id: 1}, RESULT_SECONDS)
    frozen.signal(signal.SIGCONT)
    frozen.wait_for_log("has ended while its task runs")
    if pool == "prefork":
        # Its body ends, and the child with it, before anybody lets it go.
        eventually(lambda: [entry["id"] for entry in shop.ledger("end")] == [late.id])
        eventually(lambda: children - set(frozen.children()) != set())
    gate.touch()
    assert late.get(timeout=RESULT_SECONDS) == "done"
    eventually(lambda: len(shop.ledger("end")) == 3, RESULT_SECONDS)
    assert_nothing_left(memory)
    assert "Traceback" not in frozen.log_text()


def test_a_task_that_was_claimed_before_a_freeze_does_not_begin_after_it(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop(conf={"worker_prefetch_multiplier": 2}, fairness={"lease_seconds": 1})
    gates = [shop.gate_file() for _ in range(2)]
    first = send(shop, "kinds.late", "42", gate=str(gates[0]))
    second = send(shop, "kinds.late", "43", gate=str(gates[1]))
    frozen = shop.worker(app=KINDS, pool="solo")
    eventually(lambda: memory.zcard(PREFIX + "ends") == 2 and len(shop.ledger("start")) == 1)
    frozen.signal(signal.SIGSTOP)
    shop.worker(app=KINDS, pool="threads", concurrency=2)
    eventually(lambda: shop.runs() == {first.id: 2, second.id: 1}, RESULT_SECONDS)
    gates[0].touch()
    frozen.signal(signal.SIGCONT)
    third = send(shop, "kinds.late", "42", gate=str(gates[0]))
    assert third.get(timeout=RESULT_SECONDS) == "done"
    gates[1].touch()
    assert second.get(timeout=RESULT_SECONDS) == "done"
    eventually(lambda: len(shop.ledger("end")) == 4, RESULT_SECONDS)
    assert shop.runs() == {first.id: 2, second.id: 1, third.id: 1}
    assert_nothing_left(memory)


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes; a worker may have ended one of them."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def ends_at(memory: Redis) -> list[float]:
    """Return the ends of all leases in Redis, in ms."""
    return [at for _, at in memory.zrange(f"{PREFIX}ends", 0, -1, withscores=True)]


def fill(shop: Shop, memory: Redis, worker: WorkerNode, gate: Path) -> dict[str, Any]:
    """Fill a worker of 3 processes and 6 places; return the tasks by their names.

    Two bodies run. The third process, which does not read, has a task in its pipe. The rest waits
    in the worker's buffer.
    """
    children = set(worker.children())
    eventually(lambda: writes(shop, worker)["inqueues"]["total"] == len(children))
    kinds = {"late": "kinds.late", "early": "kinds.early"}
    found = {name: send(shop, kind, name, gate=str(gate)) for name, kind in kinds.items()}
    eventually(lambda: sorted(states(memory)) == ["acked", "begun"], RESULT_SECONDS)
    busy = {task["worker_pid"] for task in shop.ask(worker, "active")}
    signal_all(children - busy, signal.SIGSTOP)
    for name in ("early in the pipe", "late 1", "early 2", "late 3"):
        found[name] = send(shop, kinds[name.partition(" ")[0]], name)
        worker.wait_for_log(f"[{found[name].id}] received")
    # The loop writes into pipes before it sleeps again, and answers after that.
    shop.ask(worker, "ping")
    assert len(ends_at(memory)) == 6
    return found


def assert_places(shop: Shop, memory: Redis, worker: WorkerNode) -> list[Any]:
    """Assert that a worker soon claims new tasks for all its 6 places, and begins 3 of them."""
    gate = str(shop.gate_file())
    options = {"queue": "thawed"}
    kinds = ["kinds.late", "kinds.early"] * 3
    after = [
        send(shop, kind, f"new {number}", gate=gate, options=options)
        for number, kind in enumerate(kinds)
    ]
    # This one waits for the first one, which has its tenant's only slot.
    after.append(send(shop, "kinds.early", "new 0", options=options))
    eventually(lambda: sum(each.id in shop.runs() for each in after) == 3, at_most(5))
    eventually(lambda: len(ends_at(memory)) == 6, at_most(5))
    assert worker.alive
    Path(gate).touch()
    return after


@pytest.mark.parametrize("cut", [False, True], ids=["connected", "cut"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "main process"])
def test_a_thawed_worker_begins_new_tasks_in_all_its_places(
    make_fair_shop: Callable[..., Shop], memory: Redis, whole: bool, cut: bool
) -> None:
    shop = make_fair_shop(conf={"worker_prefetch_multiplier": 2}, fairness={"lease_seconds": 1})
    frozen = shop.worker(app=KINDS, concurrency=3, queues=["celery", "thawed"])
    gate = shop.gate_file()
    tasks = fill(shop, memory, frozen, gate)
    children = frozen.children()
    frozen.signal(signal.SIGSTOP)
    if whole:
        signal_all(children, signal.SIGSTOP)
    shop.worker(app=KINDS, pool="threads", concurrency=6)
    # Only what can be redelivered begins elsewhere: the early-acked body runs in the frozen worker.
    elsewhere = {each.id: 1 for each in tasks.values()} | {tasks["late"].id: 2}
    eventually(lambda: shop.runs() == elsewhere, RESULT_SECONDS)
    eventually(lambda: states(memory) == ["begun"], RESULT_SECONDS)
    frozen.signal(signal.SIGCONT)
    eventually(lambda: frozen.log_text().count("has ended while its task runs") == 6)
    if cut:
        # The third process still has its task in the pipe.
        cut_all(memory)
        reconnected(frozen)
    signal_all(children, signal.SIGCONT)
    gate.touch()
    after = assert_places(shop, memory, frozen)
    redelivered = [each for name, each in tasks.items() if name != "early"]
    results = [each.get(timeout=RESULT_SECONDS) for each in (*redelivered, *after)]
    assert results == ["done"] * len(results)
    assert_nothing_left(memory)
    assert shop.runs() == elsewhere | {each.id: 1 for each in after}
    tenants = {entry["user"] for entry in shop.ledger()} - {"late"}
    assert {tenant: shop.most_at_once(tenant) for tenant in tenants} == dict.fromkeys(tenants, 1)


def test_a_frozen_pool_process_costs_its_worker_no_lease_and_no_place(
    make_fair_shop: Callable[..., Shop], memory: Redis
) -> None:
    shop = make_fair_shop(conf={"worker_prefetch_multiplier": 2}, fairness={"lease_seconds": 1})
    worker = shop.worker(app=KINDS, concurrency=3, queues=["celery", "thawed"])
    gate = shop.gate_file()
    tasks = fill(shop, memory, worker, gate)
    children = worker.children()
    signal_all(children, signal.SIGSTOP)
    before = ends_at(memory)
    shop.worker(app=KINDS, pool="threads", concurrency=6)
    # The main process renews, so a lease later no other worker has begun anything.
    eventually(lambda: min(ends_at(memory)) > max(before) + 1000, RESULT_SECONDS)
    assert len(shop.runs()) == 2
    signal_all(children, signal.SIGCONT)
    gate.touch()
    assert [each.get(timeout=RESULT_SECONDS) for each in tasks.values()] == ["done"] * 6
    after = assert_places(shop, memory, worker)
    assert [each.get(timeout=RESULT_SECONDS) for each in after] == ["done"] * 7
    assert_nothing_left(memory)
    assert shop.runs() == {each.id: 1 for each in (*tasks.values(), *after)}
    assert "has ended while its task runs" not in worker.log_text()


@pytest.mark.parametrize("cut", [False, True], ids=["connected", "cut"])
def test_a_thawed_main_process_ends_bodies_whose_begins_it_had_not_read(
    make_fair_shop: Callable[..., Shop], memory: Redis, cut: bool
) -> None:
    shop = make_fair_shop(fairness={"lease_seconds": 2})
    frozen = shop.worker(app=KINDS, concurrency=3)
    children = frozen.children()
    eventually(lambda: writes(shop, frozen)["inqueues"]["total"] == len(children))
    gate = shop.gate_file()
    signal_all(children, signal.SIGSTOP)
    tasks = [send(shop, "kinds.late", f"t{n}", gate=str(gate)) for n in range(3)]
    for task in tasks:
        frozen.wait_for_log(f"[{task.id}] received")
    shop.ask(frozen, "ping")
    # The begins stay in the pipes of the main process.
    frozen.signal(signal.SIGSTOP)
    signal_all(children, signal.SIGCONT)
    eventually(lambda: states(memory) == ["begun"] * 3)
    shop.worker(app=KINDS, pool="threads", concurrency=3)
    eventually(lambda: shop.runs() == {task.id: 2 for task in tasks}, RESULT_SECONDS)
    if cut:
        cut_all(memory)
    frozen.signal(signal.SIGCONT)
    # These bodies end before the test opens the gate.
    eventually(lambda: len(shop.ledger("end")) == 3)
    gate.touch()
    assert [task.get(timeout=RESULT_SECONDS) for task in tasks] == ["done"] * 3
    assert_nothing_left(memory)
