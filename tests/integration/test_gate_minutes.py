"""Workers on brokers that do not claim fairly count what their gates do, by minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.integration.conftest import BROKERS, RESULT_SECONDS, Shop
from tests.integration.test_gate import await_refusals, slot_taken

QUICK = {"snooze_seconds": 0.2, "snooze_jitter_seconds": 0.2, "lease_seconds": 60}


def counted(shop: Shop, what: str) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for minute in shop.fairness.minutes():
        for each in minute.counts:
            found[each.queue, each.tier] += getattr(each, what)
    return +found


@pytest.mark.parametrize("broker", BROKERS)
def test_starts_and_refusals_of_workers_are_counted_by_tier_and_queue(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness=QUICK)
    shop.worker(pool="prefork", concurrency=2)
    with slot_taken(shop, "42"):
        refused = shop.send("work", "ok", user="42")
        await_refusals(shop, 1)
    others = [shop.send("work", "ok", user=f"u{n}") for n in range(3)]
    # A task of nobody that has no limits is not asked about.
    others += [shop.send("plain")]
    for result in (refused, *others):
        result.get(timeout=RESULT_SECONDS)
    assert shop.runs()[refused.id] == 1
    # The slot that was taken from outside was of no task.
    assert counted(shop, "started") == {("celery", "free"): 4}
    assert counted(shop, "refused") == {("celery", "free"): shop.fairness.refusals()["free"]}
