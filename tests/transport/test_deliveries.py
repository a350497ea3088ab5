"""One message of a claim after the other: what cannot be read, and what a consumer does meanwhile.

Invariant: whatever becomes of one message, the others of its claim are delivered or wait again.
"""

from __future__ import annotations

import json

import pytest
from kombu import Connection
from redis import Redis

from tests.support.waiting import eventually
from tests.transport.conftest import Connect, Inbox, leases, publish

pytestmark = pytest.mark.redis

DEAD, KNOWN = "{fairness}:dead:jobs", "{fairness}:known"


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
        letters = [json.loads(each.partition("\n")[2]) for each in client.lrange(DEAD, 0, -1)]
        assert sorted(each["properties"]["delivery_tag"] for each in letters) == sorted(tags)
        assert client.scard(KNOWN) == len(tags)

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
    assert [line.partition(": ")[0] for line in said] == [
        f"the task of lease {how}.1 is a dead letter of queue jobs" for how in BROKEN
    ]
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
