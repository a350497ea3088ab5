"""A slot is free again on every exit: each row of the exit table, with real workers.

Every row holds its tenant's only slot while the body runs, ends in its own way, and leaves the slot
free, so that the tenant's next task runs.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.integration.conftest import RABBITMQ, RESULT_SECONDS, Shop
from tests.support.parts import parts_of
from tests.support.services import and_in_ci, only_in_ci
from tests.support.waiting import at_most, eventually

#: A dead child is noticed after worker_lost_wait (0.5 s); two seconds are promised.
FREE_SECONDS = at_most(2.0)


@dataclass(frozen=True)
class Exit:
    """One way in which an attempt ends."""

    name: str
    how: str = "ok"
    states: tuple[str, ...] = ("SUCCESS",)
    options: dict[str, Any] = field(default_factory=dict)
    #: Done to the running task from outside: ("terminate" or a signal for the child).
    action: str = ""
    opens_gate: bool = True
    late_states: tuple[str, ...] | None = None


EVERYWHERE = (
    Exit("success"),
    Exit("error", "error", ("FAILURE",)),
    Exit("retry", "retry"),
    Exit("ignore", "ignore", ("PENDING",)),
    Exit("reject", "reject", ("FAILURE",)),
    Exit("before_start_error", "before_start_error", ("FAILURE",)),
    Exit("before_start_ignore", "before_start_ignore", ("PENDING",)),
    Exit("reject_requeue", "reject_requeue", ("PENDING",), late_states=("SUCCESS",)),
)
PREFORK = (
    Exit("sys_exit", "sys_exit", ("FAILURE",)),
    Exit("kill_child", "kill_child", ("FAILURE",)),
    Exit("soft_limit", states=("FAILURE",), options={"soft_time_limit": 1}, opens_gate=False),
    Exit("hard_limit", states=("FAILURE",), options={"time_limit": 1}, opens_gate=False),
    Exit("terminate", states=("REVOKED",), action="TERM", opens_gate=False),
    Exit("terminate_kill", states=("REVOKED",), action="KILL", opens_gate=False),
)
GREEN = (
    Exit("hard_limit", states=("FAILURE",), options={"time_limit": 1}, opens_gate=False),
    Exit("terminate", states=("REVOKED",), action="TERM", opens_gate=False),
)
POOLS = {
    "prefork": EVERYWHERE + PREFORK,
    "threads": EVERYWHERE,
    "gevent": EVERYWHERE + GREEN,
    "solo": EVERYWHERE,
}


def leave(shop: Shop, row: Exit, *, late: bool) -> None:
    """Let one task end as ``row`` says, and see its slot held and free."""
    gate = shop.gate_file()
    result = shop.send("work", row.how, user=row.name, gate=str(gate), options=row.options)
    shop.await_held(row.name, 1)
    if row.action:
        shop.revoke(result.id, terminate=True, signal=row.action)
    if row.opens_gate:
        gate.touch()
    wanted = row.late_states if late and row.late_states else row.states

    def ended() -> None:
        assert result.state in wanted, result.state

    eventually(ended, RESULT_SECONDS)
    if row.how not in ("retry", "reject_requeue"):
        shop.await_held(row.name, 0, FREE_SECONDS)
    follower = shop.send("work", user=row.name)
    assert follower.get(timeout=RESULT_SECONDS) == "done"
    shop.await_held(row.name, 0)
    entries = [entry["event"] for entry in shop.ledger() if entry.get("user") == row.name]
    # A killed body writes no end; of the others none overlapped.
    assert entries.count("end") < entries.count("start") or shop.most_at_once(row.name) == 1


def leave_all(shop: Shop, pool: str, *, late: bool) -> None:
    """Let a task end in each way that ``pool`` has, and fail with all that went wrong."""
    failures = []
    for row in POOLS[pool]:
        try:
            leave(shop, row, late=late)
        except AssertionError as error:
            failures.append(f"{row.name}: {error}")
    assert not failures, "\n".join(failures)


#: Each pool with one acknowledgement. CI has each pool with both.
POOLS_AND_LATE = [
    pytest.param(pool, late, id=f"{pool}-{name}", marks=() if late == here else only_in_ci)
    for pool, here in zip(POOLS, (True, False, False, True), strict=True)
    for late, name in ((False, "early_ack"), (True, "late_ack"))
]


@pytest.mark.parametrize(("pool", "late"), POOLS_AND_LATE)
def test_the_slot_is_free_after_every_exit(
    make_shop: Callable[..., Shop], pool: str, late: bool
) -> None:
    shop = make_shop(conf={"task_acks_late": late, "worker_prefetch_multiplier": 1})
    shop.worker(pool=pool, concurrency=2 if pool != "solo" else 1)
    leave_all(shop, pool, late=late)


@pytest.mark.parametrize("broker", RABBITMQ)
def test_the_slot_is_free_after_every_exit_on_rabbitmq(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, conf={"task_acks_late": True, "worker_prefetch_multiplier": 1})
    shop.worker(pool="prefork", concurrency=2)
    leave_all(shop, "prefork", late=True)


@pytest.mark.parametrize("late", [False, True], ids=["early_ack", "late_ack"])
def test_a_killed_child_whose_task_is_redelivered_runs_again_at_once(
    make_shop: Callable[..., Shop], late: bool
) -> None:
    shop = make_shop(conf={"task_acks_late": late, "task_reject_on_worker_lost": True})
    worker = shop.worker(concurrency=1)
    gate = shop.gate_file()
    result = shop.send("work", user="42", gate=str(gate))
    shop.await_held("42", 1)
    gate.touch() if not late else None
    os.kill(worker.children()[0], signal.SIGKILL)
    if late:
        eventually(lambda: len(shop.ledger("start")) == 2, RESULT_SECONDS)
        gate.touch()
        assert result.get(timeout=RESULT_SECONDS) == "done"
    shop.await_held("42", 0, FREE_SECONDS)


def test_a_killed_child_whose_task_is_retried_runs_again(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(conf={"task_retry_on_worker_lost": True})
    worker = shop.worker(concurrency=1, env={"SHOP_RETRY_DELAY": "0.2"})
    gate = shop.gate_file()
    result = shop.send("work", user="42", gate=str(gate))
    shop.await_held("42", 1)
    os.kill(worker.children()[0], signal.SIGKILL)
    eventually(lambda: len(shop.ledger("start")) == 2, RESULT_SECONDS)
    gate.touch()
    assert result.get(timeout=RESULT_SECONDS) == "done"
    assert [entry["retries"] for entry in shop.ledger("start")] == [0, 1]
    shop.await_held("42", 0, FREE_SECONDS)


def test_a_task_revoked_or_expired_while_it_waits_takes_no_slot(shop: Shop) -> None:
    worker = shop.worker(concurrency=2)
    gate = shop.gate_file()
    blocker = shop.send("work", user="42", gate=str(gate))
    shop.await_held("42", 1)
    revoked = shop.send("work", user="42")
    expired = shop.send("work", user="42", options={"expires": 0.8})
    eventually(lambda: sum(shop.fairness.stats.rejections().tiers.values()) >= 2)
    revoked.revoke()
    for result in (revoked, expired):
        eventually(lambda result=result: result.state == "REVOKED", RESULT_SECONDS)
    gate.touch()
    assert blocker.get(timeout=RESULT_SECONDS) == "done"
    shop.await_held("42", 0)
    assert set(shop.runs()) == {blocker.id}
    assert worker.terminate() == 0


@pytest.mark.parametrize("pool", and_in_ci(["prefork", "threads"], "gevent", "solo"))
def test_a_warm_shutdown_finishes_and_frees(shop: Shop, pool: str) -> None:
    worker = shop.worker(pool=pool, concurrency=2 if pool != "solo" else 1)
    gate = shop.gate_file()
    result = shop.send("work", user="42", gate=str(gate))
    shop.await_held("42", 1)
    worker.signal(signal.SIGTERM)
    worker.wait_for_log("Warm shutdown")
    gate.touch()
    try:
        eventually(lambda: not worker.alive, RESULT_SECONDS)
    except AssertionError:
        # Celery logs the stack of each thread, and the log is printed.
        worker.signal(signal.SIGUSR1)
        worker.wait_for_log("MainThread")
        raise
    assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.held("42") == 0


@pytest.mark.parametrize(
    "conf",
    [
        {"task_acks_late": False},
        {"task_acks_late": True},
        {"task_acks_late": True, "worker_soft_shutdown_timeout": 0.5},
    ],
    ids=["cold, early_ack", "cold, late_ack", "soft and too short, late_ack"],
)
def test_a_shutdown_that_kills_bodies_frees_at_once(
    make_shop: Callable[..., Shop], conf: dict[str, Any]
) -> None:
    shop = make_shop(conf=conf)
    worker = shop.worker(concurrency=2)
    shop.send("work", user="42", gate=str(shop.gate_file()))
    shop.await_held("42", 1)
    worker.signal(signal.SIGQUIT)
    eventually(lambda: not worker.alive, RESULT_SECONDS)
    shop.await_held("42", 0, FREE_SECONDS)


@pytest.mark.parametrize("pool", and_in_ci(["prefork"], "threads", "gevent", "solo"))
def test_a_dead_worker_s_slot_is_free_within_one_lease(
    make_shop: Callable[..., Shop], pool: str
) -> None:
    shop = make_shop(fairness={"lease_seconds": 3})
    doomed = shop.worker(pool=pool, concurrency=1, queues=["celery"])
    shop.send("work", user="42", gate=str(shop.gate_file()))
    shop.await_held("42", 1)
    doomed.kill()
    # The clock that leases live by is moved by whoever lives.
    shop.worker(concurrency=1, queues=["other"])
    shop.await_held("42", 0, timeout_seconds=at_most(5.0))


@pytest.mark.parametrize("pool", and_in_ci(["prefork", "gevent"], "threads", "solo"))
def test_a_body_longer_than_a_lease_keeps_its_slot(
    make_shop: Callable[..., Shop], pool: str
) -> None:
    shop = make_shop(fairness={"lease_seconds": 1})
    shop.worker(pool=pool, concurrency=1)
    gate = shop.gate_file()
    result = shop.send("work", user="42", gate=str(gate), seconds=0)
    shop.await_held("42", 1)
    started = time.time()

    def three_leases_later() -> None:
        assert time.time() - started > 3

    def still_held() -> None:
        # Another worker's heartbeat: it moves the clock that leases live by.
        parts_of(shop.fairness).limiter.renew([])
        if shop.held("42") != 1:
            raise LeaseEnded
        three_leases_later()

    eventually(still_held, at_most(10))
    gate.touch()
    assert result.get(timeout=RESULT_SECONDS) == "done"
    shop.await_held("42", 0)


class LeaseEnded(Exception):
    """A lease ended while its body ran."""
