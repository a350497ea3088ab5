"""One message of a claim after the other: what cannot be read, and what a consumer does meanwhile.

Invariant: whatever becomes of one message, the others of its claim are delivered or wait again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from kombu import Connection, Queue
from redis import Redis

from celery_fairness.scheduler import calls
from tests.support.library import call
from tests.support.waiting import eventually
from tests.transport.conftest import Connect, Inbox, leases, publish, settled

pytestmark = pytest.mark.redis

PREFIX = "{fairness}:"


def put_broken(connection: Connection, how: str) -> None:
    """Put a message into ``jobs`` that kombu cannot read."""
    channel = connection.default_channel
    message = channel.prepare_message("a secret", properties={"delivery_tag": how})
    message["properties"]["delivery_info"] = {"exchange": "", "routing_key": "jobs"}
    if how == "type":
        message["headers"]["x"] = {"__type__": "of its producer alone", "__value__": "a secret"}
    elif how == "base64":
        message["properties"]["body_encoding"] = "base64"
        message["body"] = "a secret%"
    elif how == "codec":
        message["properties"]["body_encoding"] = "rot13"
    channel._put("jobs", message)


BROKEN = ["type", "base64", "codec"]


def assert_only_dead_letters(client: Redis, *tags: str) -> None:
    def are_dead() -> None:
        _, *rows = call(client, calls.DEAD_LETTERS, PREFIX, ["jobs", "0", "100"])
        letters = [json.loads(row[4]) for row in rows]
        assert sorted(each["properties"]["delivery_tag"] for each in letters) == sorted(tags)
        assert client.hlen(f"{PREFIX}tasks") == len(tags)

    eventually(are_dead)
    assert leases(client) == 0


def test_messages_that_cannot_be_read_are_dead_letters_and_the_others_arrive(
    connect: Connect, client: Redis, caplog
) -> None:
    connection = connect(fairness={"max_deliveries": 0})
    publish(connection, "jobs", 1)
    for how in BROKEN:
        put_broken(connection, how)
        publish(connection, "jobs", how)
    inbox = Inbox(connection, "jobs")
    assert inbox.await_count(4) == [1, *BROKEN]
    for message in inbox.messages:
        message.ack()
    assert_only_dead_letters(client, *BROKEN)
    said = [record.getMessage() for record in caplog.records]
    for how, line in zip(BROKEN, said, strict=True):
        assert line.startswith(f"the task of lease {how}.1.")
        assert " is a dead letter of queue jobs: " in line
    assert said[0].endswith("its message cannot be read: ValueError")
    assert "secret" not in caplog.text
    inbox.nothing_comes()


@pytest.mark.parametrize("no_ack", [False, True])
def test_what_cannot_be_read_is_not_taken(connect: Connect, client: Redis, no_ack: bool) -> None:
    connection = connect()
    for how in BROKEN:
        put_broken(connection, how)
    publish(connection, "jobs", 1)
    channel = connection.channel()
    message = channel.basic_get("jobs", no_ack=no_ack)
    assert message.payload == 1
    if not no_ack:
        message.ack()
    assert channel.basic_get("jobs") is None
    assert_only_dead_letters(client, *BROKEN)


class Taker:
    """A consumer that acknowledges, and does something else with what it receives first."""

    def __init__(self, connection: Connection, then: Callable[[Taker], Any]) -> None:
        self.connection = connection
        self.received: list[Any] = []
        self.channel = connection.channel()

        def take(message: Any) -> None:
            self.received.append(message.payload)
            message.ack()
            if len(self.received) == 1:
                then(self)

        queue = Queue("jobs", exchange="", routing_key="jobs")
        self.consumer = connection.Consumer([queue], channel=self.channel, on_message=take)
        self.consumer.consume()

    def turn(self) -> None:
        try:
            self.connection.drain_events(timeout=0.05)
        except TimeoutError:
            pass


def recover(taker: Taker) -> None:
    taker.channel.basic_recover(requeue=True)


def lose(taker: Taker) -> None:
    """As the thread that renews does, where another worker has the rest by now."""
    session = taker.channel.session
    for lease in [each.lease for each in session.lease_table.held()]:
        session._client.zrem("{fairness}:ends", lease)
        session._client.zrem("{fairness}:leases:_system", lease)
    session.renewals.renew(session.call)


@pytest.mark.parametrize(
    "then",
    [
        pytest.param(lambda taker: taker.channel.close(), id="closes"),
        pytest.param(lambda taker: taker.consumer.cancel(), id="cancels"),
        pytest.param(lambda taker: taker.connection.release(), id="releases"),
    ],
)
def test_a_consumer_that_wants_no_more_after_one_message_gets_no_more(
    connect: Connect, client: Redis, then: Callable[[Taker], Any]
) -> None:
    publish(connect(), "jobs", *range(5))
    taker = Taker(connect(), then)
    eventually(lambda: (taker.turn(), taker.received)[1], poll_seconds=0)
    assert taker.received == [0]
    eventually(lambda: leases(client) == 0)
    inbox = Inbox(connect(), "jobs")
    assert inbox.await_count(4) == [1, 2, 3, 4]
    for message in inbox.messages:
        message.ack()
    settled(client)


def test_what_was_given_back_while_one_was_delivered_is_delivered_once(
    connect: Connect, client: Redis
) -> None:
    publish(connect(), "jobs", *range(5))
    taker = Taker(connect(), recover)
    eventually(lambda: (taker.turn(), len(taker.received) >= 5)[1], poll_seconds=0)
    settled(client)
    assert taker.received == [0, 1, 2, 3, 4]


def test_what_was_lost_while_one_was_delivered_is_not_delivered(
    connect: Connect, client: Redis
) -> None:
    publish(connect(), "jobs", *range(5))
    taker = Taker(connect(), lose)
    eventually(lambda: (taker.turn(), taker.received)[1], poll_seconds=0)
    assert taker.received == [0]
