"""Workers pass what happened on to Celery's event bus, where ``celery events`` listens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.conftest import BROKERS, RESULT_SECONDS, Shop
from tests.support.waiting import eventually


def assert_a_pause_is_heard(shop: Shop) -> None:
    """Start a worker with ``-E``, and hear by what ``celery events`` uses that a tenant pauses."""
    heard: list[dict[str, Any]] = []
    shop.worker(args=["-E"])
    with shop.app.connection_for_read() as connection:
        receiver = shop.app.events.Receiver(connection, handlers={"*": heard.append})
        listens = threading.Thread(target=receiver.capture, kwargs={"wakeup": False})
        listens.start()

        def paused_is_heard() -> None:
            shop.fairness.tenants.pause("42")
            shop.fairness.tenants.resume("42")
            kinds = [event["type"] for event in heard]
            assert "fairness-paused" in kinds, kinds

        try:
            eventually(paused_is_heard, RESULT_SECONDS)
        finally:
            receiver.should_stop = True
            listens.join()
    event = next(each for each in heard if each["type"] == "fairness-paused")
    assert event["data"]["key"] == "tenant:42"
    assert event["id"].startswith("evt_")


@pytest.mark.parametrize("broker", BROKERS)
def test_a_listener_of_celery_hears_what_happens_behind_the_gate(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    assert_a_pause_is_heard(make_shop(broker))
