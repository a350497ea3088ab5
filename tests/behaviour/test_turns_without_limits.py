"""With ``tiers="unlimited"`` no tenant has a limit, and on ``fairredis`` tenants take turns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

PROCESSES = 2
FLOOD = 20


@pytest.mark.parametrize(
    ("broker", "place"),
    [
        # The two processes may write their starts in any order.
        pytest.param("fairredis", range(FLOOD // 2), id="the quiet tenant has its turn"),
        pytest.param("redis", range(FLOOD - 3, FLOOD + 1), id="a gate gives no turns"),
    ],
)
def test_a_flood_takes_every_process_until_another_tenants_turn(
    make_shop: Callable[..., Shop], broker: str, place: range
) -> None:
    shop = make_shop(broker, fairness={"tiers": "unlimited"})
    shop.worker(concurrency=PROCESSES)
    gate = str(shop.gate_file())
    flood = [shop.send("work", user="fred", gate=gate) for _ in range(FLOOD)]

    def starts() -> list[str]:
        return [entry["user"] for entry in shop.ledger("start")]

    def is_full() -> None:
        assert starts() == ["fred"] * PROCESSES

    eventually(is_full, RESULT_SECONDS)
    quiet = shop.send("work", user="petra")
    is_full()
    Path(gate).touch()
    assert [each.get(timeout=RESULT_SECONDS) for each in [*flood, quiet]] == ["done"] * (FLOOD + 1)
    assert starts().index("petra") in place
    assert shop.most_at_once("fred") == PROCESSES
