"""The same tasks on both paths: a tenant's limit holds, and the others' tasks start."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.conftest import (
    RESULT_SECONDS,
    Shop,
)
from tests.support.waiting import eventually


@pytest.mark.parametrize("broker", ["fairredis", "redis"])
def test_a_tenant_at_its_limit_keeps_nobody_waiting(
    make_shop: Callable[..., Shop],
    broker: str,
) -> None:
    shop = make_shop(broker, fairness={"tiers": {"free": {"concurrency": 1}}})
    shop.worker(concurrency=3)
    gate = shop.gate_file()
    flood = [shop.send("work", user="42", gate=str(gate)) for _ in range(4)]
    eventually(lambda: shop.ledger("start"), RESULT_SECONDS)
    assert shop.send("work", user="43").get(timeout=RESULT_SECONDS) == "done"
    assert len(shop.runs()) == 2
    gate.touch()
    assert [each.get(timeout=RESULT_SECONDS) for each in flood] == ["done"] * 4
    assert shop.most_at_once("42") == 1
