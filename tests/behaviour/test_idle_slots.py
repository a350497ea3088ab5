"""A gate sends tasks back while their tenant's slot is free: its worker logs what that costs."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

LINE = re.compile(
    r"WARNING/\S+\] tasks waited (\d+) s in all while their tenant had a free slot "
    r'\(tenants: (\d+)\): .*; set tier_on_limit = "wait"'
)
#: Longer than what is worth a line; the bodies are over long before.
SNOOZE = {"snooze_seconds": 3, "snooze_jitter_seconds": 0}


def lines(log: str) -> list[tuple[int, int]]:
    return [(int(waited), int(tenants)) for waited, tenants in LINE.findall(log)]


def send_two_of_each(shop: Shop, users: list[str]) -> None:
    """Let a second task of each be sent back, and the slot of its tenant be free soon after."""
    gate = shop.gate_file()
    first = [shop.send("work", user=user, gate=str(gate)) for user in users]
    for user in users:
        shop.await_held(user, 1)
    second = [shop.send("add", 1, 2, user=user) for user in users]
    eventually(
        lambda: shop.fairness.stats.rejections().tiers.get("free", 0) >= len(users), RESULT_SECONDS
    )
    gate.touch()
    for result in (*first, *second):
        result.get(timeout=RESULT_SECONDS)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_logs_the_seconds_once_an_hour(make_shop: Callable[..., Shop], pool: str) -> None:
    shop = make_shop(fairness=SNOOZE)
    worker = shop.worker(pool=pool, concurrency=4)
    send_two_of_each(shop, ["a", "b", "c"])
    eventually(lambda: lines(worker.log_text()) != [], RESULT_SECONDS)
    ((waited, tenants),) = lines(worker.log_text())
    # Two waits are worth a line, and none was longer than its snooze.
    assert tenants in (2, 3)
    assert 5 <= waited <= 9
    send_two_of_each(shop, ["d", "e", "f"])
    assert len(lines(worker.log_text())) == 1


@pytest.mark.parametrize("limits", [{}, {"tier_on_limit": "wait"}])
def test_a_wait_for_a_slot_that_was_taken_is_not_counted(
    make_shop: Callable[..., Shop], limits: dict[str, str]
) -> None:
    # Sent back, or parked: the slot is given back just before the task asks again.
    shop = make_shop(fairness={"snooze_seconds": 0.2, "snooze_jitter_seconds": 0, **limits})
    worker = shop.worker(pool="threads", concurrency=4)
    for _ in range(2):
        send_two_of_each(shop, ["a", "b", "c"])
    assert lines(worker.log_text()) == []
