"""A worker that was frozen for longer than its leases: what others took over is theirs."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from redis import Redis

from tests.dispatch.conftest import PREFIX, assert_nothing_left, send, states
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

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
