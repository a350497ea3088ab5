"""The transport option ``polling_interval`` delays no message if no event loop polls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest
from redis import Redis

from tests.integration.conftest import Shop
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from tests.transport.conftest import Connect, publish

pytestmark = pytest.mark.redis

#: Far longer than a message may take, also on a busy machine.
INTERVAL_SECONDS = 60.0
QUICK_SECONDS = 20.0


@pytest.fixture
def connection(connect: Connect) -> Any:
    return connect(transport_options={"polling_interval": INTERVAL_SECONDS})


@contextmanager
def published_while_somebody_waits(
    connect: Connect, server: RedisServer, queue: str, body: str
) -> Iterator[None]:
    """Publish once a consumer waits on the server; its first look has found nothing then."""
    producer = connect()
    producer.connect()

    def somebody_waits(client: Redis) -> bool:
        return any("b" in each["flags"] for each in client.client_list())

    def run() -> None:
        with server.client(decode_responses=True) as client:
            eventually(lambda: somebody_waits(client), QUICK_SECONDS)
        publish(producer, queue, body)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_consumer_that_drains_events_gets_a_message_at_once(
    connect: Connect, connection: Any, redis_server: RedisServer
) -> None:
    received: list[Any] = []
    queue = connection.SimpleQueue("jobs")
    consumer = connection.Consumer([queue.queue], on_message=received.append, no_ack=True)
    begun = monotonic()
    with consumer, published_while_somebody_waits(connect, redis_server, "jobs", "hello"):
        connection.drain_events(timeout=QUICK_SECONDS)
    assert [message.payload for message in received] == ["hello"]
    assert monotonic() - begun < QUICK_SECONDS
    queue.close()


def test_a_simple_queue_gets_a_message_at_once(
    connect: Connect, connection: Any, redis_server: RedisServer
) -> None:
    with (
        connection.SimpleQueue("jobs") as queue,
        published_while_somebody_waits(connect, redis_server, "jobs", "hello"),
    ):
        message = queue.get(timeout=QUICK_SECONDS)
    assert message.payload == "hello"
    message.ack()


def test_a_wait_ends_when_its_time_is_over(connection: Any) -> None:
    with connection.SimpleQueue("jobs") as queue:
        begun = monotonic()
        with pytest.raises(queue.Empty):
            queue.get(timeout=0.2)
        assert monotonic() - begun < QUICK_SECONDS


def test_a_get_does_not_wait(connect: Connect, connection: Any) -> None:
    channel = connection.channel()
    publish(connect(), "jobs", "hello")
    begun = monotonic()
    assert channel.basic_get("jobs", no_ack=True).payload == "hello"
    assert channel.basic_get("jobs") is None
    assert monotonic() - begun < QUICK_SECONDS


def test_tasks_that_come_one_after_the_other_start_at_once(
    make_shop: Callable[..., Shop],
) -> None:
    """A gevent worker has no event loop; it looks whether it is to stop every two seconds."""
    conf = {"broker_transport_options": {"polling_interval": INTERVAL_SECONDS}}
    shop = make_shop("fairredis", conf=conf)
    shop.worker(pool="gevent", concurrency=1)
    begun = monotonic()
    for _ in range(20):
        assert shop.send("plain").get(timeout=INTERVAL_SECONDS) == "plain"
    assert monotonic() - begun < QUICK_SECONDS
