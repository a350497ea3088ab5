"""``celery purge`` leaves nothing that waits."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from celery_fairness import RateLimitPolicy
from celery_fairness.errors import NotFound
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually

KEY = "api.example.com"
ONE = RateLimitPolicy(KEY, concurrency=1)
BROKERS = ("redis", "fairredis", pytest.param("rabbitmq_classic", marks=pytest.mark.rabbitmq))
SETTINGS = {"snooze_seconds": 600, "tiers": {"free": {"concurrency": None}}}


def waiting(shop: Shop) -> int:
    try:
        return shop.fairness.limits.inspect(KEY).waiting_count
    except NotFound:
        return 0


def await_waiting(shop: Shop, count: int) -> None:
    def waits() -> None:
        assert waiting(shop) == count

    eventually(waits, RESULT_SECONDS)


def by_command(shop: Shop) -> int:
    """Purge as people do; returns how many messages it says."""
    done = shop.command("purge", "-f")
    assert done.returncode == 0, done.stderr
    purged = re.search(r"Purged (\d+) message", done.stdout)
    return int(purged[1]) if purged else 0


def by_api(shop: Shop) -> int:
    with shop.app.connection_for_write() as connection:
        return int(shop.app.control.purge(connection))


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("purge", [by_command, by_api])
def test_a_purge_reaches_what_waits_for_a_limit(
    make_shop: Callable[..., Shop], broker: str, purge: Callable[[Shop], int]
) -> None:
    shop = make_shop(broker, fairness=SETTINGS)
    shop.worker(pool="threads", concurrency=2)
    gate = shop.gate_file()
    limited = {"limits": [ONE]}
    holder = shop.send("work", user="42", gate=str(gate), options=limited)

    def held() -> None:
        assert {entry["user"] for entry in shop.ledger("start")} == {"42"}

    eventually(held, RESULT_SECONDS)
    for n in range(4):
        shop.send("work", user=f"u{n}", options=limited)
    await_waiting(shop, 4)
    later = 0
    if broker == "fairredis":
        # On others a worker holds it, and keeps it.
        later = 1
        shop.send("work", user="later", options={"countdown": 600})
    # A parked task that is published to end, before the queue is purged, counts again.
    assert 4 + later <= purge(shop) <= 8 + later
    await_waiting(shop, 0)
    gate.touch()
    assert holder.get(timeout=RESULT_SECONDS) == "done"
    last = shop.send("work", user="last", options=limited)
    assert last.get(timeout=RESULT_SECONDS) == "done"
    assert {entry["user"] for entry in shop.ledger("start")} == {"42", "last"}
