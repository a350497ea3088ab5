"""Redis loses its memory under a running worker: what runs is known to the worker alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis

from tests.dispatch.conftest import PREFIX, assert_nothing_left, send
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

KINDS = "tests.dispatch.kinds"


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_what_runs_goes_on_and_counts_before_anything_is_claimed(
    make_fair_shop: Callable[..., Shop], memory: Redis, pool: str
) -> None:
    # Its first renewal is not due before the end of the test.
    shop = make_fair_shop(fairness={"lease_seconds": 600})
    worker = shop.worker(app=KINDS, pool=pool, concurrency=3)
    gate = shop.gate_file()
    first = send(shop, "kinds.late", "42", gate=str(gate))
    eventually(lambda: shop.runs() == {first.id: 1}, RESULT_SECONDS)
    memory.flushdb()
    second = send(shop, "kinds.late", "42", gate=str(gate))
    other = send(shop, "kinds.late", "43", gate=str(gate))
    eventually(lambda: other.id in shop.runs(), RESULT_SECONDS)
    assert shop.runs() == {first.id: 1, other.id: 1}
    assert memory.zcard(f"{PREFIX}leases:tenant:42") == 1
    gate.touch()
    for result in (first, second, other):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {first.id: 1, second.id: 1, other.id: 1}
    assert "leases registered again: 1" in worker.log_text()
    assert_nothing_left(memory)
