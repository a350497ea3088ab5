"""A worker that is killed at each moment of a task: the table of ADR 18, with real processes.

Early acknowledgement: a body begins at most once. Late acknowledgement: after ``max_deliveries``
deaths the task is a dead letter. A task that had not begun goes back, and no death is counted.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from billiard.exceptions import WorkerLostError
from redis import Redis

from celery_fairness import DeliveriesExhausted
from tests.dispatch.conftest import PREFIX, assert_nothing_left, send, states, waiting_in
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.nodes import WorkerNode
from tests.support.services import and_in_ci
from tests.support.waiting import eventually

POOLS = and_in_ci(["prefork", "threads"], "gevent", "solo")
KINDS = "tests.dispatch.kinds"
LEASE_SECONDS = 1.0


def run_workers(shop: Shop, pool: str, deaths: int, **options: Any) -> WorkerNode:
    """Start a worker as often as one dies, and once more; return the last one."""
    for _ in range(deaths):
        doomed = shop.worker(app=KINDS, pool=pool, wait=False, **options)
        eventually(lambda doomed=doomed: not doomed.alive, RESULT_SECONDS)
    return shop.worker(app=KINDS, pool=pool, **options)


def dead(memory: Redis) -> int:
    """Return the number of dead letters."""
    return int(memory.zcard(f"{PREFIX}dead:celery"))


@pytest.mark.parametrize("pool", POOLS)
def test_a_body_that_kills_its_worker_begins_a_bounded_number_of_times(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str
) -> None:
    # One claim takes all of them: those behind the first one die in a buffer of the worker.
    shop = make_fair_shop(
        conf={"worker_prefetch_multiplier": 6},
        fairness={"lease_seconds": LEASE_SECONDS, "max_deliveries": 2},
    )
    early = send(shop, "kinds.early", "42", how="kill_worker")
    after = send(shop, "kinds.early", "43", how="kill_worker_after")
    late = send(shop, "kinds.late", "44", how="kill_worker")
    innocent = [send(shop, f"kinds.{name}", name) for name in ("early", "late")]
    last = run_workers(shop, pool, deaths=4, concurrency=1)
    assert [each.get(timeout=RESULT_SECONDS) for each in innocent] == ["done", "done"]
    with pytest.raises(DeliveriesExhausted):
        late.get(timeout=RESULT_SECONDS)
    with pytest.raises(WorkerLostError):
        early.get(timeout=RESULT_SECONDS)
    # Its result was stored before the death, and stays.
    assert after.get(timeout=RESULT_SECONDS) == "done"
    expected = dict.fromkeys((early.id, after.id, *(each.id for each in innocent)), 1)
    assert shop.runs() == {**expected, late.id: 2}
    assert dead(memory) == 1
    assert shop.fairness.stats.counters()["abandoned"] == 2
    assert last.alive


def deaths_of(memory: Redis) -> list[int]:
    """Return how often each task that waits, runs or is a dead letter has died."""
    return [int(head.split(" ")[2]) for head in memory.hvals(f"{PREFIX}tasks")]


@pytest.mark.parametrize("pool", and_in_ci(["prefork", "threads"], "gevent"))
def test_a_body_that_kills_its_worker_takes_no_innocent_with_it(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str
) -> None:
    shop = make_fair_shop(fairness={"lease_seconds": LEASE_SECONDS, "max_deliveries": 3})
    gate, deadly = shop.gate_file(), shop.gate_file()
    body = {"gate": str(gate), "seconds": 0.3}
    innocent = [send(shop, "kinds.late", f"t{n}", **body) for n in range(7)]
    deadly_body = {"how": "kill_worker", "gate": str(deadly), "seconds": 0.1}
    poison = send(shop, "kinds.late", "42", **deadly_body)
    doomed = shop.worker(app=KINDS, pool=pool, concurrency=8)
    eventually(lambda: states(memory) == ["begun"] * 8, RESULT_SECONDS)
    deadly.touch()
    eventually(lambda: not doomed.alive, RESULT_SECONDS)
    # From now on the innocent ones run for a while, and the other one kills beside them.
    gate.touch()
    run_workers(shop, pool, deaths=2, concurrency=8)
    with pytest.raises(DeliveriesExhausted):
        poison.get(timeout=RESULT_SECONDS)
    assert [each.get(timeout=RESULT_SECONDS) for each in innocent] == ["done"] * 7
    assert dead(memory) == 1
    assert shop.runs() == {poison.id: 3, **{each.id: 2 for each in innocent}}


@pytest.mark.parametrize("pool", and_in_ci(["prefork", "gevent"], "threads"))
def test_a_suspect_that_waits_goes_back_without_a_death_when_its_worker_stops(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str
) -> None:
    shop = make_fair_shop(fairness={"lease_seconds": LEASE_SECONDS})
    gate = shop.gate_file()
    results = [send(shop, "kinds.late", f"t{n}", gate=str(gate)) for n in range(4)]
    doomed = shop.worker(app=KINDS, pool=pool, concurrency=4)
    eventually(lambda: states(memory) == ["begun"] * 4)
    doomed.kill()
    shop.forget_ledger()
    # A later suspect starts after a lease, so this one is longer than the test.
    env = {**shop.env, "SHOP_FAIRNESS": json.dumps({"lease_seconds": 60})}
    worker = shop.worker(app=KINDS, pool=pool, concurrency=4, env=env)
    eventually(lambda: sorted(states(memory)) == ["begun", *["claimed"] * 3], RESULT_SECONDS)
    # The body may write its line after its begin is noted.
    eventually(lambda: shop.ledger("start"))
    (started,) = shop.ledger("start")
    worker.signal(signal.SIGTERM)
    eventually(lambda: len(waiting_in(memory)) == 3)
    assert deaths_of(memory) == [1] * 4
    gate.touch()
    eventually(lambda: not worker.alive, RESULT_SECONDS)
    assert [each["id"] for each in shop.ledger("start")] == [started["id"]]
    revoked = next(each for each in results if each.id != started["id"])
    last = shop.worker(app=KINDS, pool=pool, concurrency=4, env=env, queues=["other"])
    shop.revoke(revoked.id)
    shop.tell(last, "add_consumer", "celery")
    done = [each.get(timeout=RESULT_SECONDS) for each in results if each is not revoked]
    assert done == ["done"] * 3
    assert_nothing_left(memory)
    assert revoked.id not in {each["id"] for each in shop.ledger("start")}


@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGINT], ids=["cold", "cold by ctrl-c"])
def test_a_suspect_that_waits_goes_back_after_a_cold_stop(
    make_fair_shop: Callable[..., Shop], memory: Redis, how: signal.Signals
) -> None:
    shop = make_fair_shop(fairness={"lease_seconds": LEASE_SECONDS})
    gate = shop.gate_file()
    for number in range(2):
        send(shop, "kinds.late", f"t{number}", gate=str(gate))
    doomed = shop.worker(app=KINDS, concurrency=2)
    eventually(lambda: states(memory) == ["begun"] * 2)
    doomed.kill()
    env = {**shop.env, "SHOP_FAIRNESS": json.dumps({"lease_seconds": 60})}
    worker = shop.worker(app=KINDS, concurrency=2, env=env)
    eventually(lambda: sorted(states(memory)) == ["begun", "claimed"], RESULT_SECONDS)
    worker.signal(how)
    if how is signal.SIGINT:
        worker.wait_for_log("Warm shutdown")
        worker.signal(how)
    eventually(lambda: not worker.alive, RESULT_SECONDS)
    assert len(waiting_in(memory)) == 2
    assert deaths_of(memory) == [1, 1]


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_a_task_in_a_buffer_of_a_frozen_worker_does_not_begin_after_the_freeze(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str
) -> None:
    shop = make_fair_shop(
        conf={"worker_prefetch_multiplier": 3}, fairness={"lease_seconds": LEASE_SECONDS}
    )
    gate = shop.gate_file()
    running = send(shop, "kinds.late", "42", gate=str(gate))
    buffered = [send(shop, f"kinds.{name}", name) for name in ("early", "late")]
    frozen = shop.worker(app=KINDS, pool=pool, concurrency=1)
    eventually(lambda: memory.zcard(f"{PREFIX}ends") == 3 and states(memory).count("begun") == 1)
    frozen.signal(signal.SIGSTOP)
    shop.worker(app=KINDS, pool="threads", concurrency=3)
    assert [each.get(timeout=RESULT_SECONDS) for each in buffered] == ["done", "done"]
    gate.touch()
    assert running.get(timeout=RESULT_SECONDS) == "done"
    frozen.signal(signal.SIGCONT)
    # The loop of gevent may still hold the second one, and drops it without the pool.
    frozen.wait_for_log("does not begin here")
    assert send(shop, "kinds.late", "44").get(timeout=RESULT_SECONDS) == "done"
    runs = shop.runs()
    assert runs[running.id] == 2
    assert [runs[each.id] for each in buffered] == [1, 1]
    assert_nothing_left(memory)
