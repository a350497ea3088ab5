"""Connections, answers, scripts, servers and processes that are lost: nothing else is."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty

import pytest
from kombu import Connection, Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.utils.eventio import READ
from redis import Redis
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import TimeoutError as Late

from celery_fairness.scheduler import calls
from celery_fairness.transport.session import Session, sessions
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import at_most, eventually
from tests.transport.conftest import (
    Connect,
    Inbox,
    charged,
    leases,
    publish,
    quick_leases,
    running_leases,
    settled,
)

pytestmark = pytest.mark.redis

RUNNING, ENDS = "{fairness}:running", "{fairness}:ends"


@pytest.fixture
def proxy(redis_server: RedisServer, redis_url: str) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as made:
        yield made


def received(inbox: Inbox, count: int) -> list[object]:
    """Turn until ``count`` messages are here, over whatever connection there is."""

    def are_here() -> None:
        with contextlib.suppress(Lost, OSError):
            inbox.turn()
        assert len(inbox.messages) >= count, inbox.bodies

    eventually(are_here, at_most(10.0), poll_seconds=0)
    return sorted(inbox.bodies)


def session_of(inbox: Inbox) -> Session:
    return inbox.channel.session


def ask(inbox: Inbox) -> None:
    """Send what the channel wants to know, and read no answer."""
    inbox.connection.transport.cycle.on_poll_start()


def end_lease(client: Redis) -> None:
    """Let every lease end that nobody renews any more."""
    for lease in client.zrange(ENDS, 0, -1):
        client.zadd(ENDS, {lease: 0})


def test_a_connection_lost_while_a_bell_is_awaited(
    connect: Connect, proxy: Proxy, redis_url: str, client: Redis
) -> None:
    inbox = Inbox(connect("fair" + proxy.url(redis_url)), "jobs")
    inbox.nothing_comes()
    proxy.cut()
    publish(connect(), "jobs", 1)
    assert received(inbox, 1) == [1]
    inbox.messages[0].ack()
    settled(client)


def test_a_claim_that_never_arrived(
    connect: Connect, proxy: Proxy, redis_url: str, client: Redis
) -> None:
    inbox = Inbox(connect("fair" + proxy.url(redis_url)), "jobs", prefetch_count=5)
    inbox.nothing_comes()
    publish(connect(), "jobs", *range(5))
    with pytest.raises(Empty):
        inbox.channel._brpop_read()  # It hears the bell.
    proxy.hang()
    ask(inbox)
    proxy.cut()
    proxy.resume()
    assert received(inbox, 5) == list(range(5))
    for message in inbox.messages:
        message.ack()
    settled(client)


def test_an_answer_that_was_lost_is_given_again(connect: Connect, client: Redis) -> None:
    publish(connect(), "jobs", *range(5))
    connection = connect()
    inbox = Inbox(connection, "jobs", prefetch_count=3)
    ask(inbox)
    eventually(lambda: client.hlen(RUNNING) == 3)
    before = running_leases(client)
    inbox.channel.client.connection.disconnect()
    assert received(inbox, 3) == [0, 1, 2]
    assert {message.delivery_tag for message in inbox.messages} == before
    assert leases(client) == 3


def test_an_answer_lost_with_its_channel_is_given_to_the_next(
    connect: Connect, client: Redis
) -> None:
    publish(connect(), "jobs", *range(4))
    first = Inbox(connect(), "jobs", prefetch_count=3)
    ask(first)
    eventually(lambda: client.hlen(RUNNING) == 3)
    first.channel.client.connection.disconnect()
    first.channel.close()
    second = Inbox(connect(), "jobs", prefetch_count=4)
    assert received(second, 4) == [0, 1, 2, 3]
    for message in second.messages:
        message.ack()
    settled(client)


def test_what_a_closing_channel_is_answered_goes_back_to_its_place(
    connect: Connect, client: Redis
) -> None:
    publish(connect(), "jobs", *range(4))
    first = Inbox(connect(), "jobs", prefetch_count=3)
    session = session_of(first)
    # As a worker's solo pool says; the next claim is then sent before the answer is done with.
    session.body_blocks_loop = True
    ask(first)
    eventually(lambda: client.hlen(RUNNING) == 3)
    first.channel.close()
    assert first.messages == []
    assert not session.claim_is_open
    assert leases(client) == 0
    session.body_blocks_loop = False
    second = Inbox(connect(), "jobs")
    assert second.await_count(4) == [0, 1, 2, 3]


def test_a_message_is_taken_from_its_own_queue_whatever_was_lost(
    connect: Connect, client: Redis
) -> None:
    publish(connect(), "a", *range(3))
    publish(connect(), "b", "b")
    first = Inbox(connect(), "a")
    ask(first)
    eventually(lambda: client.hlen(RUNNING) == 3)
    first.channel.client.connection.disconnect()
    first.channel.close()
    message = connect().channel().basic_get("b")
    assert message.payload == "b"
    message.ack()
    assert Inbox(connect(), "a").await_count(3) == [0, 1, 2]


def test_an_answer_that_is_read_after_its_leases_ended_is_not_delivered(
    connect: Connect, client: Redis
) -> None:
    publish(connect(), "jobs", 1)
    slow = Inbox(connect(), "jobs")
    ask(slow)
    eventually(lambda: client.hlen(RUNNING) == 1)
    slow.channel._claimant.sent_at[0] -= 3600
    end_lease(client)
    other = Inbox(connect(fairness={"max_deliveries": 9}), "jobs")
    other.await_count(1)
    other.messages[0].ack()
    slow.nothing_comes()
    settled(client)


@pytest.mark.one_redis("the node names its own port, and not the proxy")
def test_an_end_whose_answer_is_late_is_told_again(
    connect: Connect, proxy: Proxy, redis_url: str, client: Redis, caplog
) -> None:
    publish(connect(), "jobs", 1)
    url = "fair" + proxy.url(redis_url)
    inbox = Inbox(connect(url, transport_options={"socket_timeout": 0.5}), "jobs")
    inbox.await_count(1)
    proxy.hang()
    inbox.messages[0].ack()
    eventually(lambda: "could not be sent" in caplog.text)
    assert leases(client) == 1
    proxy.resume()
    eventually(lambda: (inbox.turn(), not leases(client))[1], poll_seconds=0)
    settled(client)


@pytest.mark.one_redis("the node names its own port, and not the proxy")
def test_a_put_that_is_sent_twice_is_one_message(
    connect: Connect, proxy: Proxy, redis_url: str
) -> None:
    connection = connect("fair" + proxy.url(redis_url), transport_options={"socket_timeout": 0.5})
    publish(connection, "warm", 1)
    proxy.hang()
    with pytest.raises((Late, OperationalError)):
        publish(connection, "jobs", 1)
    proxy.resume()
    channel = connect().channel()
    eventually(lambda: channel._size("jobs") == 1)
    Inbox(connect(), "jobs").await_count(1)


@pytest.mark.one_redis("the node names its own port, and not the proxy")
def test_a_half_open_connection_is_found(
    connect: Connect, proxy: Proxy, redis_url: str, caplog
) -> None:
    options = {"health_check_interval": 0.1, "socket_timeout": 0.5}
    connection = connect("fair" + proxy.url(redis_url), transport_options=options)
    inbox = Inbox(connection, "jobs")
    inbox.nothing_comes()
    proxy.hang()
    publish(connect(), "jobs", 1)

    def is_dropped() -> None:
        inbox.turn()
        assert "got no reply" in caplog.text

    eventually(is_dropped, poll_seconds=0)
    proxy.cut()
    proxy.resume()
    assert received(inbox, 1) == [1]


@pytest.mark.parametrize("kind", ["claim", "put", "fanout", "publish"])
def test_each_kind_of_connection_that_goes_silent_is_given_up(
    connect: Connect, proxy: Proxy, redis_url: str, kind: str
) -> None:
    """The host vanishes, or a firewall forgets the connections: nothing closes them."""
    options = {"health_check_interval": 0.2, "socket_timeout": 0.4}
    connection = connect("fair" + proxy.url(redis_url), transport_options=options)
    everybody = Exchange("all", type="fanout")
    inbox = Inbox(connection, Queue("jobs"), Queue("told", everybody, exclusive=True))
    inbox.nothing_comes()
    producer = connection.Producer(exchange=everybody)
    producer.publish(0)
    assert received(inbox, 1) == [0]
    proxy.silence()
    sender = connect() if kind in ("claim", "fanout") else connection
    is_kept = kind in ("claim", "put")

    def sends() -> None:
        if is_kept:
            publish(sender, "jobs", 1)
        else:
            sender.Producer(exchange=everybody).publish(1)

    def comes() -> None:
        # Nobody keeps a message of a fanout exchange for those who do not listen.
        if not is_kept or kind == "put":
            with contextlib.suppress(Lost, Late, OSError, OperationalError):
                sends()
        with contextlib.suppress(Lost, Late, OSError):
            inbox.turn()
        assert 1 in inbox.bodies

    if kind == "claim":
        sends()
    eventually(comes, at_most(10.0), poll_seconds=0)


def test_every_address_has_the_same_default_times_and_the_options_replace_them(
    connect: Connect, redis_url: str
) -> None:
    for scheme in ("fairredis", "fairrediss", "fairsentinel"):
        channel = Connection(f"{scheme}://").get_transport_cls().Channel
        times = ("socket_timeout", "socket_connect_timeout", "health_check_interval")
        assert [getattr(channel, name) for name in times] == [2.0, 2.0, 2]
        assert channel.socket_keepalive
    own = {"socket_timeout": 7, "socket_connect_timeout": None, "socket_keepalive": False}
    params = connect(transport_options=own).channel()._connparams()
    assert {name: params[name] for name in own} == own
    params = connect().channel()._connparams()
    assert params["socket_timeout"] == params["socket_connect_timeout"] == 2.0


def test_a_wait_that_is_longer_than_the_timeout_of_the_socket_is_not_cut(
    connect: Connect,
) -> None:
    # The server answers an empty claim after a second.
    inbox = Inbox(connect(transport_options={"socket_timeout": 0.05}), "jobs")
    inbox.nothing_comes()
    waiting = inbox.channel._in_poll
    assert waiting is not None
    for _ in range(4):
        inbox.turn()
    publish(connect(), "jobs", 1)
    inbox.await_count(1)
    assert inbox.channel.client.connection is waiting


def test_scripts_that_the_server_forgot_are_sent_again(connect: Connect, client: Redis) -> None:
    connection = connect()
    inbox = Inbox(connection, "jobs", prefetch_count=1)
    for number in range(3):
        client.function_flush()
        publish(connection, "jobs", number)
        client.function_flush()
        inbox.await_count(number + 1)
        client.function_flush()
        inbox.messages[-1].ack()
    assert inbox.bodies == [0, 1, 2]
    settled(client)


def test_a_server_that_is_started_again_knows_everything(connect: Connect, tmp_path: Path) -> None:
    args = ("--appendonly", "yes", "--appendfsync", "always")
    with RedisServer(directory=tmp_path, args=args) as server:
        connection = connect("fair" + server.url)
        publish(connection, "jobs", 1, 2, headers=charged("a"))
        publish(connection, "jobs", 3, headers={"eta": "2999-01-01T00:00:00+00:00"})
        inbox = Inbox(connection, "jobs")
        inbox.await_count(1)
        inbox.nothing_comes()
        server.kill()
        server.restart()
        inbox.messages[0].ack()
        assert received(inbox, 2) == [1, 2]
        inbox.messages[1].ack()
        with server.client(decode_responses=True) as client:
            eventually(lambda: not leases(client))
            assert inbox.channel._size("jobs") == 1


def test_a_lease_is_renewed_until_it_is_settled(connect: Connect, client: Redis) -> None:
    fairness = quick_leases()
    # What it began with is long closed.
    first = connect(fairness=fairness)
    publish(first, "jobs", 1)
    first.release()
    inbox = Inbox(connect(fairness=fairness), "jobs")
    inbox.await_count(1)
    (lease,) = client.zrange(ENDS, 0, -1)
    began = client.zscore(ENDS, lease)
    eventually(lambda: client.zscore(ENDS, lease) > began + 400)
    assert not inbox.channel.session.lease_table.held()[0].lost
    inbox.messages[0].ack()
    settled(client)


def test_a_lease_that_ends_while_it_is_held_is_said_and_its_ack_changes_nothing(
    connect: Connect, client: Redis, caplog
) -> None:
    connection = connect()
    publish(connection, "jobs", 1)
    late = Inbox(connection, "jobs")
    late.await_count(1)
    end_lease(client)
    other = Inbox(connect(fairness={"max_deliveries": 9}), "jobs")
    other.await_count(1)
    assert other.messages[0].headers["redelivered"]
    session = session_of(late)
    session.renewals.renew(session.call)
    assert "has ended while its task runs" in caplog.text
    late.messages[0].ack()
    assert client.hlen(RUNNING) == leases(client) == 1
    other.messages[0].ack()
    settled(client)


LEASES = "{fairness}:leases:tenant:a"


@pytest.fixture
def five(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> Inbox:
    """A consumer that holds five tasks of one tenant, renewed two at a time."""
    monkeypatch.setattr("celery_fairness.transport.renewals.RENEW_AT_MOST", 2)
    connection = connect(fairness={"tiers": {"free": {"concurrency": 5}}})
    publish(connection, "jobs", *range(5), headers=charged("a"))
    inbox = Inbox(connection, "jobs")
    inbox.await_count(5)
    return inbox


def test_where_redis_lost_its_memory_what_is_held_counts_again(five: Inbox, client: Redis) -> None:
    session = session_of(five)
    said: list[str] = []
    session.renewals.on_memory_lost = lambda: said.append("lost")
    # Nothing was renewed before: the claim has told the epoch.
    client.flushall()
    session.renewals.renew(session.call)
    session.renewals.renew(session.call)
    assert said == ["lost"]
    assert client.zcard(LEASES) == 5
    assert not any(each.lost for each in session.lease_table.held())
    for message in five.messages:
        message.ack()
    eventually(lambda: not client.exists(LEASES))


def test_a_renewal_that_fails_after_its_first_call_enters_the_rest_later(
    five: Inbox, client: Redis
) -> None:
    session = session_of(five)
    said, calls = [], []
    session.renewals.on_memory_lost = lambda: said.append("lost")

    def fails_once(verb: str, args: list[str], partition: int) -> object:
        calls.append(verb)
        if len(calls) == 2:
            raise Lost("cut")
        return session.call(verb, args, partition)

    client.flushall()
    with pytest.raises(Lost):
        session.renewals.renew(fails_once)
    assert (client.zcard(LEASES), said) == (2, [])
    session.renewals.renew(fails_once)
    assert (client.zcard(LEASES), said) == (5, ["lost"])
    assert not any(each.lost for each in session.lease_table.held())


def test_a_task_that_waits_for_its_place_is_not_lost_with_redis_s_memory(
    five: Inbox, client: Redis
) -> None:
    session = session_of(five)
    held = session.lease_table.held()[0]
    held.since -= 3600
    client.flushall()
    assert not session.is_lost(held)
    assert client.zrange(LEASES, 0, -1) == [held.lease]


def test_after_redis_lost_its_memory_what_is_held_counts_before_anything_is_claimed(
    connect: Connect, client: Redis
) -> None:
    connection = connect()
    publish(connection, "jobs", 1, headers=charged("a"))
    inbox = Inbox(connection, "jobs")
    inbox.await_count(1)
    inbox.nothing_comes()
    client.flushall()
    publish(connection, "jobs", 2, headers=charged("a"))
    publish(connection, "jobs", 3, headers=charged("b"))
    assert received(inbox, 2) == [1, 3]
    assert client.zcard(LEASES) == 1
    inbox.messages[0].ack()
    assert received(inbox, 3) == [1, 2, 3]


def test_after_redis_lost_its_memory_one_message_is_got_within_the_limit(
    connect: Connect, client: Redis
) -> None:
    channel = connect().channel()
    connection = channel.connection.client
    publish(connection, "jobs", 1, headers=charged("a"))
    first = channel.basic_get("jobs")
    client.flushall()
    publish(connection, "jobs", 2, headers=charged("a"))
    assert channel.basic_get("jobs") is None
    first.ack()
    assert channel.basic_get("jobs").payload == 2


def test_an_answer_from_before_redis_lost_its_memory_counts_again(
    connect: Connect, client: Redis
) -> None:
    publish(connect(), "jobs", 1, headers=charged("a"))
    inbox = Inbox(connect(), "jobs")
    ask(inbox)
    eventually(lambda: client.hlen(RUNNING) == 1)
    session = session_of(inbox)
    session.renewals.renew(session.call)
    client.flushall()
    session.renewals.renew(session.call)
    inbox.await_count(1)
    # Sooner than a renewal is due, which is after a third of a lease.
    eventually(lambda: client.zcard(LEASES) == 1, at_most(4.0))


def test_an_answer_that_is_read_late_and_was_forgotten_is_delivered_and_counts(
    connect: Connect, client: Redis
) -> None:
    publish(connect(), "jobs", 1, headers=charged("a"))
    inbox = Inbox(connect(), "jobs")
    ask(inbox)
    eventually(lambda: client.hlen(RUNNING) == 1)
    inbox.channel._claimant.sent_at[0] -= 3600
    client.flushall()
    inbox.await_count(1)
    assert client.zcard(LEASES) == 1


def test_a_forked_child_neither_renews_nor_settles(connect: Connect, client: Redis) -> None:
    publish(connect(), "jobs", 1, 2, 3)
    inbox = Inbox(connect(), "jobs", prefetch_count=2)
    inbox.await_count(2)
    inbox.messages[0].ack()
    ask(inbox)
    eventually(lambda: client.hlen(RUNNING) == 2)
    child = os.fork()
    if child == 0:
        failed = 1
        with contextlib.suppress(BaseException):
            held = [
                session
                for session in sessions()
                if session.lease_table.held() or session.renewals.runs
            ]
            inbox.messages[1].ack()
            inbox.channel.close()
            connection = connect()
            publish(connection, "other", 4)
            other = Inbox(connection, "other")
            other.await_count(1)
            other.messages[0].ack()
            connection.release()
            failed = 1 if held else 0
        os._exit(failed)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert leases(client) == 2
    assert received(inbox, 3) == [1, 2, 3]
    for message in inbox.messages[1:]:
        message.ack()
    settled(client)


def test_more_threads_may_publish_than_a_channel_has_connections(connect: Connect) -> None:
    connection = connect()
    publish(connection, "jobs", 0)
    session = sessions()[0]
    start = threading.Barrier(30)

    def count() -> None:
        start.wait()
        for _ in range(5):
            session.call(calls.SIZE, calls.size_args("jobs"))

    with ThreadPoolExecutor(30) as pool:
        counts = [pool.submit(count) for _ in range(30)]
    assert [each.exception() for each in counts] == [None] * 30


def test_with_the_connection_goes_nothing_that_a_consumer_has_acknowledged(
    connect: Connect, proxy: Proxy, redis_url: str, client: Redis
) -> None:
    publish(connect(), "jobs", *range(60))
    inbox = Inbox(connect("fair" + proxy.url(redis_url)), "jobs", prefetch_count=4)
    done: list[int] = []

    def finished() -> None:
        with contextlib.suppress(Lost, OSError):
            inbox.turn()
        while inbox.messages:
            message = inbox.messages.pop(0)
            done.append(message.payload)
            message.ack()
            if len(done) % 7 == 0:
                proxy.cut()
        assert len(done) >= 60

    eventually(finished, at_most(20.0), poll_seconds=0)
    assert sorted(done) == list(range(60))
    settled(client)


def test_what_happens_at_a_closed_connections_number_is_not_read_from_it(
    connect: Connect,
) -> None:
    """A loop without a hub: its number may be another socket's the next moment."""
    connection = connect()
    publish(connection, "jobs", 0)
    got: list[object] = []
    with connection.Consumer([Queue("jobs")], callbacks=[lambda body, _: got.append(body)]) as c:
        while not got:
            connection.drain_events(timeout=at_most(5))
        cycle = connection.transport.cycle
        poll, channel = cycle.poller.poll, c.channel

        def poll_once(_timeout: float) -> list[tuple[int, int]]:
            cycle.poller.poll = poll
            number = channel.client.connection._sock.fileno()
            channel.client.connection.disconnect()
            return [(number, READ)]

        cycle.poller.poll = poll_once
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.05)
        publish(connection, "jobs", 1)
        while len(got) < 2:
            connection.drain_events(timeout=at_most(5))
    assert got == [0, 1]
