"""Partitions on several Redis servers: turns across them, and servers that do not answer."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue
from kombu.exceptions import OperationalError

from celery_fairness.errors import SettingsError
from celery_fairness.store.partitions import Partitions
from celery_fairness.store.servers import Server
from celery_fairness.transport.session import sessions
from tests.support.redis_server import HOST, RedisServer
from tests.support.waiting import at_most, eventually
from tests.transport.conftest import (
    Connect,
    Inbox,
    charged,
    drain,
    median_wait,
    publish,
    spread_of,
    take,
    tenants_of,
)

pytestmark = [pytest.mark.redis, pytest.mark.one_redis("servers")]

COUNT = 8
SEVERAL: dict[str, Any] = {"partitions": COUNT, "tiers": "unlimited"}
PLACES = Partitions("fairness", count=COUNT)


def url_of(servers: list[RedisServer]) -> str:
    return "fairservers://" + ";".join(f"{HOST}:{each.port}/0" for each in servers)


@pytest.fixture
def open_there(connect: Connect, several_servers: list[RedisServer]) -> Any:
    """``open_there()``: connect to three servers."""

    def opened(fairness: dict[str, Any] = SEVERAL, **options: Any) -> Connection:
        return connect(url_of(several_servers), fairness=fairness, **options)

    return opened


def tenant_on(server: int, number: int = 0) -> str:
    """Return a tenant of a server, whose first partition has its number."""
    return tenants_of(PLACES, server, number + 1)[number]


@pytest.mark.parametrize("prefetch", [1, 4, 20])
def test_tenants_of_all_servers_take_turns(
    open_there: Any, several_servers: list[RedisServer], prefetch: int
) -> None:
    connection = open_there()
    tenants = tenants_of(PLACES, 0, 4) + [
        tenants_of(PLACES, partition, 1)[0] for partition in range(1, 8)
    ]
    for tenant in tenants:
        publish(connection, "jobs", *range(20), headers=charged(tenant))
    for place, server in enumerate(several_servers):
        with server.client(decode_responses=True) as client:
            there = {key.partition(":")[0] for key in client.scan_iter("*lane*")}
            own = [names.prefix[:-1] for names in PLACES.names[place::3]]
            assert there == set(own)
    inbox = Inbox(connection, "jobs", prefetch_count=prefetch)
    served = drain(inbox, 20 * len(tenants))
    assert Counter(served) == dict.fromkeys(tenants, 20)
    assert spread_of(served, tenants) <= 5


def test_a_task_wakes_a_worker_that_sleeps(open_there: Any) -> None:
    assert median_wait(open_there()) < 0.2


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_a_frozen_server_stops_its_own_tenants_alone(
    open_there: Any, several_servers: list[RedisServer], frozen: int
) -> None:
    connection = open_there()
    tenants = [tenant_on(place, number) for place in range(3) for number in range(4)]
    for tenant in tenants:
        publish(connection, "jobs", *range(30), headers=charged(tenant))
    theirs = [tenant_on(frozen, number) for number in range(4)]
    others = [each for each in tenants if each not in theirs]
    inbox = Inbox(connection, "jobs", prefetch_count=4)
    served = take(inbox, 60)
    several_servers[frozen].pause()
    gaps, began = [], time.monotonic()
    while sum(served.count(each) for each in others) < 30 * len(others):
        served += take(inbox, 1)
        began, gap = time.monotonic(), time.monotonic() - began
        gaps.append(gap)
    # The places of its open request are free again after a tenth of a second.
    assert max(gaps) < at_most(0.3)
    assert set(served[-40:]) <= set(others)
    several_servers[frozen].resume()
    served += take(inbox, len(tenants) * 30 - len(served))
    assert Counter(served) == dict.fromkeys(tenants, 30)
    inbox.nothing_comes()


@pytest.mark.parametrize("begins", ["before the outage", "in the outage"])
def test_a_worker_logs_which_partitions_wait_whatever_missed_the_answer(
    open_there: Any,
    several_servers: list[RedisServer],
    begins: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection = open_there()
    publish(connection, "jobs", 0, headers=charged(tenant_on(1)))
    (session,) = sessions()
    if begins == "before the outage":
        session.start(lambda: 1)
    several_servers[1].pause()
    with caplog.at_level("ERROR", "celery_fairness"):
        with pytest.raises(connection.connection_errors):
            publish(connection, "jobs", 1, headers=charged(tenant_on(1)))
        if begins == "in the outage":
            # The caller of a producer has the error.
            assert "tenants" not in caplog.text
            session.start(lambda: 1)
    assert f"127.0.0.1:{several_servers[1].port} (partitions 1, 4, 7): Timeout" in caplog.text


def test_a_put_for_a_frozen_server_raises_and_others_go_on(
    open_there: Any, several_servers: list[RedisServer]
) -> None:
    connection = open_there()
    publish(connection, "jobs", 0, headers=charged(tenant_on(0)))
    several_servers[1].pause()
    producer = connection.Producer(serializer="json")
    began = time.monotonic()
    with pytest.raises(connection.connection_errors):
        publish(connection, "jobs", 1, headers=charged(tenant_on(1)))
    first = time.monotonic() - began
    assert first < 3.0
    began = time.monotonic()
    with pytest.raises(connection.connection_errors, match=f"{several_servers[1].port} does not"):
        publish(connection, "jobs", 1, headers=charged(tenant_on(1)))
    publish(connection, "jobs", 2, headers=charged(tenant_on(2)))
    assert time.monotonic() - began < 0.5
    several_servers[1].resume()

    def is_put() -> None:
        try:
            producer.publish(3, exchange="", routing_key="jobs", headers=charged(tenant_on(1)))
        except connection.connection_errors as error:
            raise AssertionError(str(error)) from None

    eventually(is_put)


def test_a_publish_waits_for_its_server_by_its_policy(
    open_there: Any, several_servers: list[RedisServer]
) -> None:
    connection = open_there()
    publish(connection, "jobs", 0, headers=charged(tenant_on(1)))
    several_servers[1].kill()
    pauses: list[float] = []

    def send(body: int, server: int, most: int | None) -> None:
        policy = {"interval_start": 0, "interval_step": 0.01, "interval_max": 0.02}
        policy |= {"max_retries": most, "errback": lambda _, seconds: pauses.append(seconds)}
        headers = charged(tenant_on(server))
        publish(connection, "jobs", body, headers=headers, retry=True, retry_policy=policy)

    with pytest.raises(OperationalError, match="does not answer"):
        send(1, 1, 3)
    # The first is the failed try itself.
    assert pauses == [0, 0, 0.01, 0.02]
    pauses.clear()
    send(2, 2, 0)
    assert pauses == []
    waits = threading.Thread(target=send, args=(3, 1, None))
    waits.start()
    eventually(lambda: len(pauses) > 5)
    several_servers[1].restart()
    waits.join(at_most(10.0))
    inbox = Inbox(connection, "jobs")
    assert sorted(inbox.await_count(2)) == [2, 3]


def test_a_process_that_has_met_its_home_sends_without_it(
    open_there: Any, several_servers: list[RedisServer]
) -> None:
    declared = [Queue("jobs", Exchange("direct jobs"), routing_key="jobs")]

    def send(connection: Connection, server: int) -> None:
        policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
        headers = charged(tenant_on(server))
        publish(
            *(connection, "jobs", server),
            declare=declared,
            headers=headers,
            retry=True,
            retry_policy=policy,
        )

    connection = open_there()
    for server in range(3):
        send(connection, server)
    several_servers[0].pause()
    with pytest.raises(OperationalError):
        send(connection, 0)
    began = time.monotonic()
    for server in (1, 2):
        # Its connection to the home was closed after that error.
        send(connection, server)
        send(open_there(), server)
    assert time.monotonic() - began < at_most(1.0)
    several_servers[0].resume()
    eventually(lambda: not sessions()[0].servers.any_away)
    send(connection, 0)
    inbox = Inbox(connection, "jobs")

    def are_here() -> None:
        inbox.turn()
        # The put that raised may be in the socket of the frozen server.
        assert sorted(inbox.bodies)[-8:] == [0, 0, 1, 1, 1, 2, 2, 2]

    eventually(are_here)


def test_a_producer_that_begins_while_a_server_is_away_declares_and_sends(
    open_there: Any, several_servers: list[RedisServer]
) -> None:
    several_servers[1].kill()
    connection = open_there()
    connection.SimpleQueue("jobs").close()
    publish(connection, "jobs", 1, headers=charged(tenant_on(2)))
    assert take(Inbox(connection, "jobs"), 1) == [tenant_on(2)]


def test_another_list_is_an_error_with_both(
    connect: Connect, open_there: Any, several_servers: list[RedisServer]
) -> None:
    connection = open_there()
    for place in range(3):
        publish(connection, "jobs", 1, headers=charged(tenant_on(place)))
    first, second, third = several_servers
    for other, expected, got in (
        ([first, second], "number 1 of 3", "number 1 of 2"),
        ([second, first, third], "number 2 of 3", "number 1 of 3"),
        ([first, third, second], "number 3 of 3", "number 2 of 3"),
    ):
        with pytest.raises(SettingsError, match=f"expected the list.*{expected}, got: {got}"):
            publish(
                connect(url_of(other), fairness=SEVERAL), "jobs", 1, headers=charged(tenant_on(1))
            )
    with pytest.raises(SettingsError, match=r"expected the list.*number 1 of 3, got: alone"):
        publish(connect(f"fairredis://{HOST}:{first.port}/0", fairness=SEVERAL), "jobs", 1)


def test_fewer_partitions_than_servers_is_an_error(open_there: Any) -> None:
    with pytest.raises(SettingsError, match=r"expected at least 3, .* got: 2"):
        publish(open_there({"partitions": 2}), "jobs", 1)


def test_a_server_that_lost_its_memory_gets_its_leases_again(
    open_there: Any, several_servers: list[RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    connection = open_there()
    for place in range(3):
        publish(connection, "jobs", 1, 2, headers=charged(tenant_on(place)))
    inbox = Inbox(connection, "jobs")
    inbox.await_count(6)
    epochs = list(sessions()[0].renewals.epochs)
    several_servers[1].kill()
    several_servers[1].restart()

    def registered() -> None:
        inbox.turn()
        assert any("registered again: 2" in line for line in caplog.messages)

    eventually(registered)
    later = sessions()[0].renewals.epochs
    assert [place for place in range(3) if epochs[place] != later[place]] == [1]
    publish(connection, "jobs", 3, headers=charged(tenant_on(1)))
    inbox.await_count(7)


def test_a_home_that_ends_stops_its_own_tenants_alone(
    open_there: Any, several_servers: list[RedisServer]
) -> None:
    connection = open_there()
    others = [tenant_on(place, number) for place in (1, 2) for number in range(3)]
    publish(connection, "jobs", 1, headers=charged(tenant_on(0)))
    inbox = Inbox(connection, "jobs", prefetch_count=4)
    take(inbox, 1)
    for _ in range(3):
        # It sleeps at the bells.
        inbox.turn()
    several_servers[0].kill()
    for tenant in others:
        publish(connection, "jobs", *range(3), headers=charged(tenant))
    began = time.monotonic()
    served = take(inbox, 3 * len(others))
    # Without a bell, it looks at each partition once a second.
    assert time.monotonic() - began < 2.5
    assert Counter(served) == dict.fromkeys(others, 3)
    several_servers[0].restart()
    waits = []
    for number in range(8):
        inbox.turn(0.1)

        def is_put(number: int = number) -> None:
            try:
                publish(connection, "jobs", number, headers=charged(tenant_on(number % 3)))
            except connection.connection_errors as error:
                raise AssertionError(str(error)) from None

        eventually(is_put)
        began = time.monotonic()
        take(inbox, 1)
        waits.append(time.monotonic() - began)
    assert sorted(waits)[len(waits) // 2] < 0.2


@pytest.mark.parametrize("has_slept", [False, True])
def test_a_home_that_ends_does_not_stop_a_channel_that_is_busy(
    open_there: Any, several_servers: list[RedisServer], has_slept: bool
) -> None:
    connection = open_there()
    inbox = Inbox(connection, "jobs", prefetch_count=4)
    for _ in range(3 if has_slept else 0):
        inbox.turn()
    others = [tenant_on(place, number) for place in (1, 2) for number in range(3)]
    for tenant in others:
        publish(connection, "jobs", *range(10), headers=charged(tenant))
    served = take(inbox, 8)
    # It waits at no bell, and its connection to them closes.
    several_servers[0].kill()
    served += take(inbox, 10 * len(others) - len(served))
    assert Counter(served) == dict.fromkeys(others, 10)


def test_a_partition_may_move_during_a_turn(
    open_there: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = open_there()
    inbox = Inbox(connection, "jobs")
    merged, servers = inbox.channel.merged, inbox.channel.session.servers
    ready = merged._ready

    with monkeypatch.context() as patched:

        def moves() -> Any:
            found = ready()
            # As a thread does that reads the slots of a cluster.
            patched.setattr(servers, "of", lambda _: Server())
            return found

        patched.setattr(merged, "_ready", moves)
        merged.turn()
    publish(connection, "jobs", 1, headers=charged(tenant_on(1)))
    inbox.await_count(1)
