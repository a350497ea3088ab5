"""Queues declared with ``x-expires``: they end when nobody uses them, and only then."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Exchange, Producer, Queue
from kombu.exceptions import ChannelError
from redis import Redis

from tests.support.waiting import at_most, eventually
from tests.transport.conftest import Connect, Inbox, publish

pytestmark = pytest.mark.redis

UNUSED = "{fairness}:queue_expiry"
INFINITE = float("inf")


def short(expires: float | None = 60.0) -> Queue:
    return Queue("short", Exchange("short"), "short", expires=expires)


def ends_at(client: Redis) -> float:
    return float(client.zscore(UNUSED, "short"))


def end_now(client: Redis) -> None:
    """Let the time of the queue be over."""
    client.zadd(UNUSED, {"short": 1})


def look(channel: Any) -> None:
    """Turn the second in which a consumer looks at queues that expire."""
    channel._look_at = 0.0
    channel.maybe_refresh_binding_expiry()


def test_a_queue_that_expires_ends_when_nobody_uses_it(connect: Connect, client: Redis) -> None:
    connection = connect()
    short()(connection.channel()).declare()
    publish(connection, "short", 1, 2, 3)
    assert client.zrange(UNUSED, 0, -1) == ["short"]
    channel = connect().channel()
    assert channel.queue_declare("short", passive=True).message_count == 3
    consumer = Inbox(connect(), "others")
    end_now(client)
    look(consumer.channel)
    assert not client.exists(UNUSED)
    with pytest.raises(ChannelError):
        channel.queue_declare("short", passive=True)
    assert not client.keys("*lane:*short")


def test_a_queue_that_expires_is_kept_by_who_uses_it(connect: Connect, client: Redis) -> None:
    connection = connect()
    channel: Any = connection.channel()
    short()(channel).declare()
    connection.Consumer([short()], channel=channel).consume()
    producer = Producer(channel)
    for use in (
        lambda: producer.publish(1, exchange="", routing_key="short"),
        lambda: channel.basic_get("short", no_ack=True),
        short()(channel).declare,
        lambda: look(channel),
    ):
        end_now(client)
        use()
        assert ends_at(client) > 1e12, use


def test_a_consumer_keeps_its_queue_for_a_lease_whatever_a_producer_says(
    connect: Connect, client: Redis
) -> None:
    inbox = Inbox(connect(fairness={"lease_seconds": 30}), short(1.0))
    look(inbox.channel)
    kept_until = ends_at(client)
    producing = connect()
    short(1.0)(producing.channel()).declare()
    publish(producing, "short", 1)
    assert ends_at(client) == kept_until
    assert kept_until > client.time()[0] * 1000 + 25_000


def test_a_use_of_one_queue_does_not_put_off_what_keeps_another(connect: Connect) -> None:
    connection = connect()
    channel: Any = connection.channel()
    connection.Consumer([short(6.0)], channel=channel).consume()
    look(channel)
    before = channel._look_at
    Queue("long", Exchange("long"), "long", expires=3600.0)(channel).declare()
    assert channel._look_at == before


def test_a_body_that_blocks_the_loop_keeps_what_is_consumed(
    connect: Connect, client: Redis
) -> None:
    """Nothing turns the loop here while the thread renews."""
    inbox = Inbox(connect(fairness={"lease_seconds": 1}), short())
    publish(connect(), "short", 1)
    inbox.await_count(1)
    client.zadd(UNUSED, {"short": 1e12})
    eventually(lambda: ends_at(client) > 1e12, at_most(5.0))
    inbox.consumer.cancel()
    assert inbox.channel.session.consumed == {}


def test_a_queue_ends_in_parts_and_one_look_ends_one(connect: Connect, client: Redis) -> None:
    connection = connect()
    short()(connection.channel()).declare()
    publish(connection, "short", *range(150))
    consumer = Inbox(connect(), "others")
    end_now(client)
    look(consumer.channel)
    assert client.hget("{fairness}:waiting", "short") == "50"
    consumer.channel.maybe_refresh_binding_expiry()
    assert client.hget("{fairness}:waiting", "short") is None


def test_a_queue_that_is_declared_without_an_end_by_another_process_has_none(
    connect: Connect, client: Redis
) -> None:
    before = connect()
    short(1.0)(before.channel()).declare()
    after = connect()
    channel = after.channel()
    short(None)(channel).declare()
    publish(after, "short", 1)
    publish(before, "short", 2)
    assert ends_at(client) == INFINITE
    assert channel.queue_declare("short", passive=True).message_count == 2


def test_a_consumer_says_again_that_its_queue_has_no_end(connect: Connect, client: Redis) -> None:
    """A process of before may have declared it anew meanwhile, after a lost connection."""
    inbox = Inbox(connect(), short(None))
    end_now(client)
    look(inbox.channel)
    assert ends_at(client) == INFINITE


def test_a_channel_says_once_that_its_queue_has_no_end(
    connect: Connect, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel: Any = connect().channel()
    looks: list[dict[str, int]] = []
    look_before = channel._look

    def count(kept_ms: dict[str, int], declared: bool = False) -> float:
        looks.append(kept_ms)
        return float(look_before(kept_ms, declared))

    monkeypatch.setattr(channel, "_look", count)
    for _ in range(3):
        short(None)(channel).declare()
    assert looks == [{"short": 0}]
    short()(channel).declare()
    short(None)(channel).declare()
    assert looks[1:] == [{"short": 60_000}, {"short": 0}]
