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


@pytest.mark.parametrize("broker", ["fairredis", "redis"])
def test_a_body_corrects_what_its_start_has_counted(
    make_shop: Callable[..., Shop],
    broker: str,
) -> None:
    shop = make_shop(broker)
    shop.worker(concurrency=2)

    def counted() -> int:
        rate = shop.fairness.limits.inspect("tokens").rate
        assert rate is not None
        return rate.current_count

    assert shop.send("tokens", 60, user="42").get(timeout=RESULT_SECONDS) is False
    assert counted() == 60
    # It would not fit beside the estimate of the next one.
    assert shop.send("tokens", 40, used=7, user="42").get(timeout=RESULT_SECONDS) is True
    assert counted() == 67
    assert shop.send("tokens", 33, used=50, user="43").get(timeout=RESULT_SECONDS) is True
    assert counted() == 117


def test_a_report_outside_of_a_worker_changes_nothing(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop("fairredis")
    assert shop.fairness.limits.used("tokens", 5) is False
    with pytest.raises(ValueError, match="units: expected a whole number from 0"):
        shop.fairness.limits.used("tokens", -1)
