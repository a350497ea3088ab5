"""Real workers of an installation with several partitions, and a key of many tenants (ADR 30)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_fairness import RateLimitPolicy
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

USERS = [f"user{number}" for number in range(40)]
KEY = "api:stripe"
#: The clock of Redis has whole milliseconds.
CLOCK_SECONDS = 0.002
#: Starts a second of a rate or a throttle.
PER_SECOND = 10


def several(count: int) -> dict[str, Any]:
    return {"partitions": count, "tier_cache_seconds": 0, "tiers": "unlimited"}


def limited(limit: int) -> dict[str, Any]:
    return {"limits": [RateLimitPolicy(KEY, concurrency=limit)]}


@pytest.mark.parametrize(("count", "limit"), [(4, 1), (16, 5)])
def test_a_shared_limit_holds_over_all_partitions(
    make_fair_shop: Callable[..., Shop], count: int, limit: int
) -> None:
    shop = make_fair_shop(fairness=several(count))
    for _ in range(2):
        shop.worker(pool="threads", concurrency=8)
    gate, options = shop.gate_file(), limited(limit)
    results = [shop.send("work", user=user, gate=str(gate), options=options) for user in USERS]
    eventually(lambda: len(shop.ledger("start")) == limit, RESULT_SECONDS)
    waits = next(result.id for result in results if result.id not in shop.runs())
    text = shop.command("fairness", "task", "explain", waits).stdout
    assert f"{KEY}: concurrency, waits for a permit: the home of the key grants {limit}" in text
    gate.touch()
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in results}
    assert shop.most_at_once() == limit


def test_permits_of_killed_workers_are_used_again(make_fair_shop: Callable[..., Shop]) -> None:
    shop = make_fair_shop(fairness=several(4))
    first = shop.worker(pool="threads", concurrency=8)
    gate = shop.gate_file()
    options = limited(2)
    results = [shop.send("work", user=user, gate=str(gate), options=options) for user in USERS[:6]]
    eventually(lambda: len(shop.ledger("start")) == 2, RESULT_SECONDS)
    first.kill()
    # Their messages were acknowledged before they ran.
    lost = shop.runs()
    gate.touch()
    shop.forget_ledger()
    shop.worker(pool="threads", concurrency=8)
    for result in results:
        if result.id not in lost:
            assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.most_at_once() <= 2


@pytest.mark.parametrize(
    ("kind", "slack"),
    # A start may be late by a tenth of the spacing without a delay of the next one.
    [("rate", 0.0), ("throttle", 0.1)],
)
def test_a_shared_rate_holds_over_all_partitions_and_is_used(
    make_fair_shop: Callable[..., Shop], kind: str, slack: float
) -> None:
    shop = make_fair_shop(fairness=several(4))
    options = {"limits": [RateLimitPolicy(KEY, **{kind: f"{PER_SECOND}/s"})]}
    sent_at = time.time()
    results = [shop.send("work", user=user, options=options) for user in USERS]
    for _ in range(2):
        shop.worker(pool="threads", concurrency=8)
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in results}
    starts = sorted(entry["at"] for entry in shop.ledger("start"))
    # A body may begin long after its start was counted, and never before.
    at_least = (1 - slack) / PER_SECOND
    due = [n // PER_SECOND if kind == "rate" else n * at_least for n in range(len(starts))]
    assert all(at - sent_at > n - CLOCK_SECONDS for at, n in zip(starts, due, strict=True))
    assert starts[-1] - starts[0] < due[-1] * 2


@pytest.mark.parametrize(("kind", "shown"), [("rate", "1/PT1H"), ("throttle", "1/PT1H")])
def test_explain_says_that_a_task_waits_for_the_turn_of_its_partition(
    make_fair_shop: Callable[..., Shop], kind: str, shown: str
) -> None:
    shop = make_fair_shop(fairness=several(4))
    shop.worker(pool="threads", concurrency=8)
    options = {"limits": [RateLimitPolicy(KEY, **{kind: "1/h"})]}
    results = [shop.send("work", user=user, options=options) for user in USERS[:8]]
    eventually(lambda: len(shop.ledger("start")) == 1, RESULT_SECONDS)
    waits = next(result.id for result in results if result.id not in shop.runs())
    waits_for = f"{kind}, waits for its partition's turn: the home of the key lends {shown}"

    def text() -> str:
        return shop.command("fairness", "task", "explain", waits).stdout

    eventually(lambda: f"blocked by {KEY}: {waits_for}, available in" in text(), RESULT_SECONDS)
    assert shop.command("fairness", "check").returncode == 0
    assert len(shop.ledger("start")) == 1
