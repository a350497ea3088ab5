"""A queue past its ``x-expires`` is gone: its next use finds nothing of what waited in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kombu import Queue
from kombu.exceptions import ChannelError
from redis import Redis

from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from tests.transport.conftest import Connect, Inbox, publish

pytestmark = pytest.mark.redis

EXPIRES_SECONDS = 0.3
#: Two calls on a busy machine take less.
PATIENT_SECONDS = 2.0


def short(expires: float | None = EXPIRES_SECONDS) -> Queue:
    return Queue("short", exchange="", routing_key="short", expires=expires)


def server_seconds(client: Redis) -> float:
    seconds, microseconds = client.time()
    return seconds + microseconds / 1_000_000


@pytest.fixture
def ended(connect: Connect, redis_server: RedisServer) -> None:
    """A queue with messages whose time is over, and which nobody has asked for since."""
    connection = connect()
    channel = connection.channel()
    short()(channel).declare()
    # More than one call of a script forgets.
    for body in range(120):
        channel.basic_publish(channel.prepare_message(str(body)), exchange="", routing_key="short")
    with redis_server.client(decode_responses=True) as client:
        over = server_seconds(client) + EXPIRES_SECONDS
        eventually(lambda: server_seconds(client) > over)


def size(channel: Any) -> int:
    return int(channel.queue_declare("short", passive=True).message_count)


def is_there(channel: Any) -> bool:
    try:
        return size(channel) > 0
    except ChannelError:
        return False


def not_there(channel: Any) -> None:
    assert not is_there(channel)


def declared(channel: Any) -> None:
    assert short()(channel).declare() == "short"
    not_there(channel)


def declared_without_an_end(channel: Any) -> None:
    short(None)(channel).declare()
    not_there(channel)


def got(channel: Any) -> None:
    assert channel.basic_get("short") is None


def got_by_one_that_knows_its_end(channel: Any) -> None:
    short()(channel).declare()
    assert channel.basic_get("short") is None


def put(channel: Any) -> None:
    short(60.0)(channel).declare()
    channel.basic_publish(channel.prepare_message("new"), exchange="", routing_key="short")
    assert size(channel) == 1
    assert channel.basic_get("short", no_ack=True).body == b"new"


@pytest.mark.parametrize(
    "use",
    [not_there, declared, declared_without_an_end, got, got_by_one_that_knows_its_end, put],
)
def test_a_use_finds_nothing_of_a_queue_that_has_ended(
    ended: None, connect: Connect, use: Callable[[Any], None]
) -> None:
    use(connect().channel())


@pytest.mark.parametrize("declares", [True, False])
def test_a_consumer_gets_nothing_of_a_queue_that_has_ended(
    ended: None, connect: Connect, declares: bool
) -> None:
    inbox = Inbox(connect(), short(), auto_declare=declares)
    inbox.nothing_comes()


def test_a_consumer_gets_what_comes_after_the_end(ended: None, connect: Connect) -> None:
    inbox = Inbox(connect(), short())
    producer = connect()
    short()(producer.channel()).declare()
    publish(producer, "short", "new")
    assert inbox.await_count(1) == ["new"]
    inbox.nothing_comes()


def test_a_producer_that_puts_again_puts_into_a_new_queue(
    connect: Connect, redis_server: RedisServer
) -> None:
    """Its channel has declared the queue long before."""
    channel = connect().channel()
    short(PATIENT_SECONDS)(channel).declare()
    channel.basic_publish(channel.prepare_message("old"), exchange="", routing_key="short")
    with redis_server.client(decode_responses=True) as client:
        over = server_seconds(client) + PATIENT_SECONDS
        eventually(lambda: server_seconds(client) > over)
    channel.basic_publish(channel.prepare_message("new"), exchange="", routing_key="short")
    assert channel.basic_get("short", no_ack=True).body == b"new"
    assert channel.basic_get("short") is None


def test_a_count_is_no_use(connect: Connect, redis_server: RedisServer) -> None:
    """Neither does it keep the queue, nor make it one without an end."""
    channel = connect().channel()
    short(PATIENT_SECONDS)(channel).declare()
    channel.basic_publish(channel.prepare_message("old"), exchange="", routing_key="short")
    counting = connect().channel()
    assert size(counting) == 1
    eventually(lambda: not_there(counting))


def test_what_is_consumed_does_not_end(connect: Connect, redis_server: RedisServer) -> None:
    inbox = Inbox(connect(), short(), prefetch_count=1)
    producer = connect().channel()
    for body in ("one", "two"):
        message = producer.prepare_message(body)
        producer.basic_publish(message, exchange="", routing_key="short")
    with redis_server.client(decode_responses=True) as client:
        over = server_seconds(client) + 2 * EXPIRES_SECONDS
        eventually(lambda: server_seconds(client) > over)
    inbox.await_count(1)
    inbox.messages[0].ack()
    inbox.await_count(2)
