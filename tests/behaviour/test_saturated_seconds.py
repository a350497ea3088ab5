"""Workers look whether the limits of their app are used up, while they renew their leases."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_fairness.control.health import metric_table as table
from tests.behaviour.conftest import PATHS
from tests.integration.conftest import Shop
from tests.support.waiting import at_most, eventually


@pytest.mark.parametrize("broker", PATHS)
def test_a_limit_whose_only_slot_is_taken_counts(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness={"lease_seconds": 1})
    shop.worker(concurrency=1, pool="threads")
    gate = shop.gate_file()
    sent = shop.send("narrow", gate=str(gate))

    def seconds() -> float:
        (family,) = [
            each
            for each in shop.fairness.stats.metrics()
            if each.metric is table.LIMIT_SATURATED_SECONDS
        ]
        (sample,) = [each for each in family.samples if each.labels == ("narrow",)]
        return sample.value

    eventually(lambda: seconds() >= 1.0)
    gate.touch()
    sent.get(timeout=at_most(20))
