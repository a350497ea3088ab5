"""What kombu expects of a transport: publish, consume, acknowledge, purge, delete."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kombu import Exchange, Queue
from kombu.exceptions import ChannelError
from kombu.simple import SimpleQueue
from redis import Redis

from tests.support.waiting import at_most, eventually
from tests.transport.conftest import BATCHES, Connect, Inbox, leases, publish, settled

pytestmark = pytest.mark.redis


def test_a_message_arrives_and_is_gone_once_acknowledged(connect: Connect, client: Redis) -> None:
    connection = connect()
    publish(connection, "jobs", {"hello": "world"}, headers={"k": 1}, correlation_id="c1")
    inbox = Inbox(connection, "jobs")
    assert inbox.await_count(1) == [{"hello": "world"}]
    (message,) = inbox.messages
    assert message.headers["k"] == 1
    assert message.properties["correlation_id"] == "c1"
    assert leases(client) == 1
    message.ack()
    settled(client)


def test_many_messages_arrive_in_order(connect: Connect, client: Redis) -> None:
    connection = connect()
    publish(connection, "jobs", *range(100))
    inbox = Inbox(connection, "jobs")
    assert inbox.await_count(100) == list(range(100))
    for message in inbox.messages:
        message.ack()
    settled(client)


def test_a_rejected_message_is_gone(connect: Connect, client: Redis) -> None:
    connection = connect()
    publish(connection, "jobs", 1)
    inbox = Inbox(connection, "jobs")
    inbox.await_count(1)
    inbox.messages[0].reject()
    settled(client)


def test_a_requeued_message_comes_again_behind_the_others(connect: Connect, client: Redis) -> None:
    connection = connect()
    publish(connection, "jobs", 1, 2, 3)
    inbox = Inbox(connection, "jobs", prefetch_count=1)
    inbox.await_count(1)
    assert not inbox.messages[0].delivery_info.get("redelivered")
    inbox.messages[0].requeue()
    for count in (2, 3, 4):
        inbox.await_count(count)
        inbox.messages[-1].ack()
    assert inbox.bodies == [1, 2, 3, 1]
    assert inbox.messages[-1].delivery_info["redelivered"]
    settled(client)


def test_recover_gives_back_in_order_what_was_not_acknowledged(
    connect: Connect, client: Redis
) -> None:
    connection = connect()
    publish(connection, "jobs", *range(12))
    inbox = Inbox(connection, "jobs", prefetch_count=10)
    inbox.await_count(10)
    inbox.messages[0].ack()
    inbox.channel.basic_recover(requeue=True)
    inbox.messages.clear()
    assert inbox.await_count(10) == list(range(1, 11))
    assert leases(client) == 10


def test_a_closed_channel_gives_back_in_order(connect: Connect, client: Redis) -> None:
    first, second = connect(), connect()
    publish(first, "jobs", *range(20))
    inbox = Inbox(first, "jobs", prefetch_count=5)
    inbox.await_count(5)
    inbox.channel.close()
    assert leases(client) == 0
    inbox = Inbox(second, "jobs", prefetch_count=20)
    assert inbox.await_count(20) == list(range(20))


def test_an_ack_is_sent_though_the_loop_turns_no_more(connect: Connect, client: Redis) -> None:
    connection = connect()
    publish(connection, "jobs", 1)
    inbox = Inbox(connection, "jobs")
    inbox.await_count(1)
    inbox.messages[0].ack()
    # The next renewal, which sends ends too, is due after five seconds.
    eventually(lambda: leases(client) == 0, at_most(3.0))


def test_a_channel_closes_after_the_ends_that_a_thread_sends(
    connect: Connect, client: Redis
) -> None:
    """A process may end right after it has closed its channel."""
    connection = connect()
    publish(connection, "jobs", 1)
    inbox = Inbox(connection, "jobs")
    inbox.await_count(1)
    session, taken, goes_on = inbox.channel.session, threading.Event(), threading.Event()

    def call(verb: str, args: list[str]) -> Any:
        taken.set()
        goes_on.wait(at_most(10))
        for _ in range(300):
            client.ping()
        return session.renewals._connection.execute(verb, session.prefix, args)

    session.renewals._call = call
    inbox.messages[0].ack()
    assert taken.wait(at_most(10))
    goes_on.set()
    inbox.channel.close()
    assert leases(client) == 0


def test_an_ack_just_before_the_end_of_a_session_is_sent(connect: Connect, client: Redis) -> None:
    connection = connect()
    publish(connection, "jobs", 1)
    inbox = Inbox(connection, "jobs")
    inbox.await_count(1)
    inbox.messages[0].ack()
    inbox.channel.session.close()
    settled(client)


def test_the_prefetch_count_is_the_most_that_is_held(connect: Connect, client: Redis) -> None:
    connection = connect()
    publish(connection, "jobs", *range(10))
    inbox = Inbox(connection, "jobs", prefetch_count=3)
    inbox.await_count(3)
    inbox.nothing_comes()
    assert leases(client) == 3
    inbox.messages[1].ack()
    assert inbox.await_count(4) == [0, 1, 2, 3]
    inbox.consumer.qos(prefetch_count=5)
    inbox.await_count(6)
    inbox.nothing_comes()


def test_without_acks_a_delivery_is_the_end(connect: Connect, client: Redis) -> None:
    connection = connect()
    publish(connection, "jobs", *range(40))
    inbox = Inbox(connection, "jobs", no_ack=True, prefetch_count=4)
    assert inbox.await_count(40) == list(range(40))
    settled(client)
    assert not inbox.channel.claimed


@pytest.mark.parametrize("no_ack", [False, True])
def test_a_message_can_be_taken_one_by_one(connect: Connect, client: Redis, no_ack: bool) -> None:
    connection = connect()
    queue = Queue("jobs", exchange="", routing_key="jobs")(connection.channel())
    assert queue.get() is None
    publish(connection, "jobs", "a", "b")
    first = queue.get(no_ack=no_ack)
    assert first.payload == "a"
    assert leases(client) == (0 if no_ack else 1)
    if not no_ack:
        first.ack()
    second = queue.get(no_ack=no_ack)
    assert second.payload == "b"
    if not no_ack:
        second.requeue()
        queue.get().ack()
    assert queue.get() is None
    settled(client)


def test_a_simple_queue(connect: Connect, client: Redis) -> None:
    connection = connect()
    with SimpleQueue(connection, "simple") as queue:
        for number in range(5):
            queue.put({"n": number})
        assert queue.qsize() == 5
        for number in range(5):
            message = queue.get(timeout=at_most(3))
            assert message.payload == {"n": number}
            message.ack()
        with pytest.raises(queue.Empty):
            queue.get(timeout=0.05)
        with pytest.raises(queue.Empty):
            queue.get(block=False)
        queue.put(1)
        assert queue.clear() == 1
    settled(client)


def test_a_simple_queue_without_acks(connect: Connect, client: Redis) -> None:
    connection = connect()
    with SimpleQueue(connection, "simple", no_ack=True) as queue:
        queue.put("x")
        assert queue.get(timeout=at_most(3)).payload == "x"
    settled(client)


def test_several_queues_are_served_in_turn(connect: Connect) -> None:
    connection = connect()
    for name in "abc":
        publish(connection, name, *(f"{name}{n}" for n in range(3)))
    inbox = Inbox(connection, "a", "b", "c", prefetch_count=1)
    for count in range(1, 10):
        inbox.await_count(count)
        inbox.messages[-1].ack()
    for turn in range(3):
        assert {body[0] for body in inbox.bodies[3 * turn : 3 * turn + 3]} == set("abc")


def test_a_direct_exchange_goes_by_the_whole_key(connect: Connect) -> None:
    connection = connect()
    exchange = Exchange("work", type="direct")
    a, b = Queue("qa", exchange, "a"), Queue("qb", exchange, "b")
    inbox = Inbox(connection, a, b)
    producer = connection.Producer(exchange=exchange)
    producer.publish(1, routing_key="a")
    producer.publish(2, routing_key="b")
    producer.publish(3, routing_key="c")
    inbox.await_count(2)
    went = {m.payload: m.delivery_info["routing_key"] for m in inbox.messages}
    assert went == {1: "a", 2: "b"}


def test_a_topic_exchange_goes_by_patterns(connect: Connect) -> None:
    connection = connect()
    exchange = Exchange("news", type="topic")
    sport = Queue("sport", exchange, "*.sport")
    everything = Queue("everything", exchange, "#")
    one, all_ = Inbox(connection, sport), Inbox(connection, everything)
    producer = connection.Producer(exchange=exchange)
    for key in ("uk.sport", "uk.politics", "uk.sport.golf"):
        producer.publish(key, routing_key=key)
    all_.await_count(3)
    one.await_count(1)
    assert sorted(all_.bodies) == ["uk.politics", "uk.sport", "uk.sport.golf"]
    assert one.bodies == ["uk.sport"]


def test_a_fanout_exchange_goes_to_everybody_who_listens(connect: Connect, client: Redis) -> None:
    connection = connect()
    exchange = Exchange("all", type="fanout")
    inboxes = [Inbox(connect(), Queue(f"q{n}", exchange), "own", no_ack=True) for n in range(2)]
    for inbox in inboxes:
        inbox.nothing_comes()  # They have subscribed.
    connection.Producer(exchange=exchange).publish("hello")
    for inbox in inboxes:
        assert inbox.await_count(1) == ["hello"]
    assert leases(client) == 0


def test_a_queue_bound_elsewhere_gets_the_very_next_message(connect: Connect) -> None:
    exchange = Exchange("work", type="topic")
    sender, listener = connect(), connect()
    producer = sender.Producer(exchange=exchange)
    first = Inbox(listener, Queue("first", exchange, "jobs"))
    producer.publish(1, routing_key="jobs")
    second = Inbox(listener, Queue("second", exchange, "jobs"))
    producer.publish(2, routing_key="jobs")
    first.await_count(2)
    assert second.await_count(1) == [2]


def test_a_passive_declare_knows_the_queue_and_its_size(connect: Connect) -> None:
    channel = connect().channel()
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.queue_declare("jobs", passive=True)
    publish(connect(), "jobs", 1, 2)
    assert channel.queue_declare("jobs", passive=True).message_count == 2


LATER = {"eta": "2999-01-01T00:00:00+00:00"}


def test_what_waits_for_its_time_is_counted_purged_and_deleted(
    connect: Connect, client: Redis
) -> None:
    connection = connect()
    channel = connection.channel()
    queue = Queue("jobs", Exchange("work"), "jobs")(channel)
    queue.declare()
    publish(connection, "jobs", 1, 2, headers=LATER)
    assert channel._has_queue("jobs")
    publish(connection, "jobs", 3)
    assert channel._size("jobs") == 3
    assert queue.purge() == 3
    assert not channel._has_queue("jobs")
    publish(connection, "jobs", 1, headers=LATER)
    publish(connection, "jobs", *range(300))
    assert channel._size("jobs") == 301
    queue.delete()
    assert channel._size("jobs") == 0
    settled(client)


def test_a_queue_that_is_not_empty_is_not_deleted_if_it_should_be(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    queue = Queue("jobs", Exchange("work"), "jobs")(channel)
    queue.declare()
    publish(connection, "jobs", 1, headers=LATER)
    queue.delete(if_empty=True)
    assert channel._size("jobs") == 1


def test_a_purge_leaves_what_is_held(connect: Connect, client: Redis) -> None:
    connection = connect()
    publish(connection, "jobs", 1, 2)
    inbox = Inbox(connection, "jobs", prefetch_count=1)
    inbox.await_count(1)
    assert inbox.channel.queue_purge("jobs") == 1
    inbox.messages[0].ack()
    settled(client)


def test_after_a_cancel_a_message_stays(connect: Connect) -> None:
    connection = connect()
    inbox = Inbox(connection, "jobs")
    other = Inbox(connection, "other")
    inbox.nothing_comes()
    inbox.consumer.cancel()
    publish(connection, "jobs", 1)
    other.nothing_comes()
    assert not inbox.messages
    assert inbox.channel._size("jobs") == 1


def test_consumers_and_channels_of_one_process_share_a_queue(
    connect: Connect, client: Redis
) -> None:
    connections = [connect() for _ in range(3)]
    inboxes = [Inbox(each, "jobs", prefetch_count=1) for each in connections]
    publish(connect(), "jobs", *range(30))
    seen: list[int] = []
    while len(seen) < 30:
        for inbox in inboxes:
            inbox.turn()
            while inbox.messages:
                message = inbox.messages.pop()
                seen.append(message.payload)
                message.ack()
    assert sorted(seen) == list(range(30))
    settled(client)


def test_two_channels_of_one_connection(connect: Connect) -> None:
    connection = connect()
    a, b = Inbox(connection, "a"), Inbox(connection, "b")
    publish(connection, "a", 1)
    publish(connection, "b", 2)
    assert a.await_count(1) == [1]
    assert b.await_count(1) == [2]


def test_a_consumer_that_fails_keeps_what_it_was_given_and_no_more(
    connect: Connect, client: Redis
) -> None:
    connection = connect()
    publish(connection, "jobs", *range(5))
    seen = []

    def fails_at_two(message) -> None:
        seen.append(message)
        if message.payload == 2:
            raise RuntimeError("no")

    inbox = Inbox(connection, "jobs")
    inbox.consumer.on_message = fails_at_two
    with pytest.raises(RuntimeError, match="no"):
        inbox.await_count(5)
    assert [message.payload for message in seen] == [0, 1, 2]
    eventually(lambda: leases(client) == 3)
    for message in seen:
        message.ack()
    inbox.consumer.on_message = inbox.messages.append
    assert inbox.await_count(2) == [3, 4]


def test_a_queue_with_an_expiry_is_declared_and_used(connect: Connect) -> None:
    connection = connect()
    queue = Queue("short", exchange="", routing_key="short", expires=60.0, max_length=10)
    inbox = Inbox(connection, queue)
    publish(connection, "short", 1)
    assert inbox.await_count(1) == [1]
    inbox.messages[0].ack()


@pytest.mark.parametrize("queue", ["with space", "größe-日本", "a:b|c{d}", "x" * 300])
def test_a_queue_may_have_any_name(connect: Connect, client: Redis, queue: str) -> None:
    connection = connect()
    publish(connection, queue, 1)
    publish(connection, queue, 2, headers=LATER)
    channel = connection.channel()
    assert channel._size(queue) == 2
    inbox = Inbox(connection, queue)
    assert inbox.await_count(1) == [1]
    inbox.messages[0].requeue()
    inbox.await_count(2)
    inbox.messages[1].ack()
    assert channel._purge(queue) == 1
    settled(client)


def test_bodies_of_every_kind_arrive(connect: Connect) -> None:
    connection = connect()
    inbox = Inbox(connection, "jobs")
    large = "x" * 1_000_000
    for body in ("häß 日本 \U0001f600", large, {"a": [None, 1.5, {"ü": "ö"}]}, ""):
        publish(connection, "jobs", body)
        inbox.messages.clear()
        assert inbox.await_count(1) == [body]
    raw = bytes(range(256)) * 10
    publish(
        connection,
        "jobs",
        raw,
        serializer=None,
        content_type="application/data",
        content_encoding="binary",
    )
    inbox.messages.clear()
    inbox.await_count(1)
    assert bytes(inbox.messages[0].body) == raw


def test_a_compressed_body_arrives(connect: Connect) -> None:
    connection = connect()
    publish(connection, "jobs", "x" * 5000, compression="zlib")
    inbox = Inbox(connection, "jobs")
    assert inbox.await_count(1) == ["x" * 5000]


@BATCHES
@pytest.mark.parametrize("max_size", [1, 4, 100])
def test_a_batch_is_published_as_a_whole(connect: Connect, client: Redis, max_size: int) -> None:
    connection = connect()
    exchange = Exchange("news", type="topic")
    inboxes = [Inbox(connection, Queue(name, exchange, "#")) for name in ("one", "two")]
    producer = connection.Producer(exchange=exchange)
    assert connection.transport.supports_batch_publish
    with producer.batch(max_size=max_size):
        for number in range(10):
            producer.publish(number, routing_key="x", retry=False)
            client.function_flush()
    for inbox in inboxes:
        assert inbox.await_count(10) == list(range(10))


@BATCHES
def test_a_batch_that_fails_publishes_nothing(connect: Connect) -> None:
    connection = connect()
    producer = connection.Producer()

    def publish_and_fail() -> None:
        with producer.batch():
            producer.publish(1, exchange="", routing_key="jobs")
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        publish_and_fail()
    assert connection.channel()._size("jobs") == 0


def test_a_publish_to_a_named_exchange_is_one_round_trip(connect, client):
    connection = connect()
    queue = Queue("bound", exchange=Exchange("ex"), routing_key="k")
    producer = connection.Producer()
    producer.publish("first", exchange="ex", routing_key="k", declare=[queue])
    client.config_resetstat()
    producer.publish("second", exchange="ex", routing_key="k")
    calls = {name: row["calls"] for name, row in client.info("commandstats").items()}
    assert calls["cmdstat_fcall"] == 1
    assert "cmdstat_smembers" not in calls


@pytest.mark.parametrize(
    ("kind", "first", "second"), [("direct", "k", "k"), ("topic", "a.*", "b.*")]
)
def test_a_queue_that_somebody_else_binds_gets_the_next_message(
    connect, client, kind, first, second
):
    mine, theirs = connect(), connect()
    exchange = Exchange("ex", type=kind)
    sent_with = second.replace("*", "x")
    one = Queue("one", exchange=exchange, routing_key=first)
    producer = mine.Producer()
    producer.publish("known", exchange="ex", routing_key=first.replace("*", "x"), declare=[one])
    Queue("two", exchange=exchange, routing_key=second)(theirs.default_channel).declare()
    producer.publish({"text": "né"}, exchange="ex", routing_key=sent_with)
    message = theirs.default_channel.basic_get("two", no_ack=True)
    assert message is not None
    assert message.payload == {"text": "né"}
    assert theirs.default_channel.basic_get("two", no_ack=True) is None


def test_a_queue_that_takes_the_place_of_another_gets_the_next_message(
    connect: Connect, client: Redis
) -> None:
    theirs = connect().channel()
    exchange = Exchange("ex", type="direct")
    old = Queue("old", exchange=exchange, routing_key="key")(theirs)
    old.declare()
    producer = connect().Producer()
    producer.publish(1, exchange="ex", routing_key="key")
    Queue("new", exchange=exchange, routing_key="key")(theirs).declare()
    old.delete()
    producer.publish(2, exchange="ex", routing_key="key")
    assert client.hgetall("{fairness}:waiting") == {"new": "1"}


def test_claims_may_stop_after_kombu_has_asked_for_a_place(connect: Connect) -> None:
    """A signal handler may run between the question and the request: nothing is sent then."""
    inbox = Inbox(connect(), "jobs")
    channel: Any = inbox.channel
    poller = channel.connection.cycle
    may_consume = channel.qos.can_consume

    def stopped_just_after() -> bool:
        answer = bool(may_consume())
        channel.session.stopping = True
        return answer

    channel.qos.can_consume = stopped_just_after
    poller.on_poll_start()
    assert not channel._in_poll
    channel.qos.can_consume, channel.session.stopping = may_consume, False
    publish(connect(), "jobs", 1)
    assert inbox.await_count(1) == [1]


def test_what_is_claimed_when_claims_stop_waits_again(connect: Connect, client: Redis) -> None:
    """A signal handler may run between the request and its answer: others may have it at once."""
    publish(connect(), "jobs", 1, 2)
    inbox = Inbox(connect(), "jobs")
    channel: Any = inbox.channel
    channel.connection.cycle.on_poll_start()
    eventually(lambda: leases(client) == 2)
    channel.session.stopping = True
    eventually(lambda: (inbox.turn(), leases(client) == 0)[1])
    assert inbox.bodies == []
    other = Inbox(connect(), "jobs")
    channel.session.stopping = False
    assert other.await_count(2) == [1, 2]


def test_the_name_of_a_queue_of_parked_tasks_is_rejected(connect: Connect, client: Redis) -> None:
    channel = connect().channel()
    with pytest.raises(ValueError, match="does not begin with @parked:, got: '@parked:jobs'"):
        channel.queue_declare("@parked:jobs")
    with pytest.raises(ValueError, match="queue: expected text"):
        channel.basic_publish(channel.prepare_message("{}"), "", "@parked:jobs")
    assert not client.keys("*@parked*")
