"""Every task holds its slot until its body ends, whatever its class."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis

from tests.dispatch.conftest import assert_nothing_left, send
from tests.dispatch.kinds import KINDS
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually


@pytest.mark.parametrize(
    ("pool", "late"),
    [("prefork", False), ("threads", True)],
    ids=["prefork_early_ack", "threads_late_ack"],
)
def test_tasks_of_every_kind_hold_their_slot_until_the_body_ends(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str, late: bool
) -> None:
    shop = make_fair_shop(conf={"task_acks_late": late})
    shop.worker(app="tests.dispatch.kinds", pool=pool, concurrency=len(KINDS) + 1)
    for how in ("ok", "error"):
        gates = {name: shop.gate_file() for name in KINDS}
        first = {n: send(shop, n, f"{n}.{how}", gate=str(gates[n]), how=how) for n in KINDS}
        for name in KINDS:
            shop.await_held(f"{name}.{how}", 1)
        # The tenant's next task waits, whatever free places there are.
        second = {n: send(shop, n, f"{n}.{how}", gate=str(gates[n])) for n in KINDS}
        eventually(lambda: len(shop.ledger("start")) == len(KINDS))
        for name in KINDS:
            assert shop.held(f"{name}.{how}") == 1
            gates[name].touch()
        for name in KINDS:
            assert first[name].get(timeout=RESULT_SECONDS, propagate=False) is not None
            assert first[name].state == ("SUCCESS" if how == "ok" else "FAILURE")
            assert second[name].get(timeout=RESULT_SECONDS) == "done"
            shop.await_held(f"{name}.{how}", 0)
            assert shop.most_at_once(f"{name}.{how}") == 1
        seen = {entry["name"] for entry in shop.ledger("own_acknowledge")}
        assert seen == {"kinds.requested", "kinds.requested_by_name"}
        shop.forget_ledger()
    assert_nothing_left(memory)


def test_a_plain_task_that_says_its_tenant_in_a_header_is_limited(
    fair_shop: Shop, memory: Redis
) -> None:
    fair_shop.worker(app="tests.dispatch.kinds", concurrency=4)
    gate = fair_shop.gate_file()
    results = [send(fair_shop, "kinds.plain", "42", gate=str(gate)) for _ in range(3)]
    fair_shop.await_held("42", 1)
    gate.touch()
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 3
    assert fair_shop.most_at_once("42") == 1
    assert_nothing_left(memory)


def test_a_task_without_a_tenant_has_no_limit(fair_shop: Shop, memory: Redis) -> None:
    fair_shop.worker(app="tests.dispatch.kinds", concurrency=3)
    gate = fair_shop.gate_file()
    results = [fair_shop.app.send_task("kinds.plain", kwargs={"gate": str(gate)}) for _ in range(3)]
    eventually(lambda: len(fair_shop.ledger("start")) == 3)
    gate.touch()
    assert [result.get(timeout=RESULT_SECONDS) for result in results] == ["done"] * 3
    assert_nothing_left(memory)
