"""What programs that read the length of a queue show on ``fairredis://``."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import ChannelError

from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import at_most, eventually

#: The lists of the stock transport: one for each step of the priorities.
STEPS = ("", "\x06\x163", "\x06\x166", "\x06\x169")


@pytest.fixture
def shop(make_shop: Callable[..., Shop]) -> Shop:
    """A shop in which three tasks wait, one of them at its limit and one with a priority."""
    made = make_shop("fairredis", fairness={"tiers": {"free": {"concurrency": 1}}})
    for number in range(3):
        made.send("work", user="42", options={"priority": 3 * number})
    return made


def lengths(channel: Any) -> list[int]:
    """Return the lengths of the lists that a program on the stock transport reads."""
    return [int(channel.client.llen(f"celery{step}")) for step in STEPS]


def test_a_passive_declaration_counts_the_waiting_tasks(shop: Shop) -> None:
    """So do exporters for AMQP brokers, and `celery amqp`."""
    with shop.app.connection() as connection:
        channel = connection.default_channel
        declared = channel.queue_declare(queue="celery", passive=True)
        assert (declared.message_count, declared.consumer_count) == (3, 0)
        assert channel._size("celery") == 3
        with pytest.raises(ChannelError, match="NOT_FOUND"):
            channel.queue_declare(queue="missing", passive=True)


def test_the_lists_of_the_stock_transport_are_empty(shop: Shop) -> None:
    """Flower, celery-exporter and KEDA's scaler for lists read these."""
    with shop.app.connection() as connection:
        assert lengths(connection.default_channel) == [0, 0, 0, 0]


def test_a_program_chooses_how_to_count_by_a_name_of_the_transport_that_it_does_not_know(
    shop: Shop,
) -> None:
    """Flower and celery-exporter leave out brokers that they do not know."""
    with shop.app.connection() as connection:
        assert connection.info()["transport"] == "fairredis"
        assert connection.as_uri().startswith("fairredis://")


def test_a_monitor_on_the_stock_transport_sees_workers_and_events_but_no_length(
    shop: Shop, redis_url: str
) -> None:
    """celery-exporter makes an app of its own from an address."""
    worker = shop.worker(concurrency=1, pool="threads", args=["-E"])
    heard: list[dict[str, Any]] = []
    with Celery(broker=redis_url, set_as_current=False) as monitor:
        inspect = monitor.control.inspect([worker.hostname()], timeout=at_most(1), limit=1)

        def queues() -> list[str]:
            (answer,) = (inspect.active_queues() or {worker.hostname(): []}).values()
            return [each["name"] for each in answer]

        assert "celery" in eventually(queues, RESULT_SECONDS)
        with monitor.connection() as connection:
            assert lengths(connection.default_channel) == [0, 0, 0, 0]
            receiver = monitor.events.Receiver(
                connection, handlers={"task-succeeded": heard.append}
            )
            listens = threading.Thread(target=receiver.capture, kwargs={"wakeup": False})
            listens.start()

            def a_success_is_heard() -> None:
                shop.send("work", user="43").get(timeout=RESULT_SECONDS)
                assert [each["hostname"] for each in heard][:1] == [worker.hostname()]

            try:
                eventually(a_success_is_heard, RESULT_SECONDS)
            finally:
                receiver.should_stop = True
                listens.join()


def test_a_program_that_only_has_the_address_does_not_know_the_transport() -> None:
    """An app of celery-exporter imports no module of the user."""
    code = (
        "from celery import Celery\n"
        "with Celery(broker='fairredis://127.0.0.1:1/0').connection() as connection:\n"
        "    connection.info()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No such transport: fairredis" in done.stderr
