"""The poll of a worker's loop: it hears of the connections that there are, and of no others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty
from select import select
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue
from kombu.asynchronous import Hub

from celery_fairness.store.spin import Spin
from tests.support.waiting import eventually
from tests.transport.conftest import Connect, publish

pytestmark = pytest.mark.redis


@contextmanager
def forked() -> Iterator[None]:
    """A process that has every socket of this one, as a process of the pool has."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    try:
        yield
    finally:
        os.close(writer)
        os.waitpid(child, 0)


class Loop:
    """A worker's loop, turned by hand."""

    def __init__(self, connection: Connection, queue: str) -> None:
        self.got: list[Any] = []
        self.hub = Hub()
        self.consumer = connection.Consumer([Queue(queue)], callbacks=[self._take])
        self.consumer.consume()
        connection.register_with_event_loop(self.hub)

    def _take(self, body: Any, message: Any) -> None:
        message.ack()
        self.got.append(body)

    def ask(self) -> None:
        """Do what a turn of the loop does before it waits."""
        for before_poll in list(self.hub.on_tick):
            before_poll()

    def turn(self) -> None:
        self.hub.run_once()

    @property
    def channel(self) -> Any:
        return self.consumer.channel


#: Makes a loop; on a connection of its own where none is given.
Turning = Callable[..., Loop]


@pytest.fixture
def turning(connect: Connect) -> Iterator[Turning]:
    """A factory: ``turning(connection)`` is a loop that consumes from ``jobs``."""
    made: list[Loop] = []

    def make(connection: Connection | None = None) -> Loop:
        made.append(Loop(connection or connect(), "jobs"))
        return made[-1]

    yield make
    for loop in made:
        loop.channel.session.body_blocks_loop = False
        loop.hub.close()


def waits_for_a_bell(loop: Loop) -> bool:
    loop.ask()
    if loop.channel._in_poll and loop.channel._claim is None:
        return True
    loop.turn()
    return False


@pytest.mark.timeout(20)
def test_a_socket_that_a_forked_process_holds_is_not_heard_of(
    connect: Connect, turning: Turning
) -> None:
    connection = connect()
    publish(connection, "jobs", 1)
    loop = turning(connection)
    eventually(lambda: waits_for_a_bell(loop) and loop.got == [1])
    with forked():
        number = loop.channel.client.connection._sock.fileno()
        loop.channel.client.connection.disconnect()
        eventually(lambda: waits_for_a_bell(loop))
        assert loop.channel.client.connection._sock.fileno() == number
        assert number not in dict(loop.hub.poller.poll(0.05) or ())
        publish(connection, "jobs", 2)
        eventually(lambda: (loop.turn(), loop.got == [1, 2])[1])


@pytest.mark.timeout(20)
def test_a_turn_adds_no_socket_that_the_loop_knows(
    connect: Connect, turning: Turning, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect()
    loop = turning(connection)
    eventually(lambda: waits_for_a_bell(loop))
    added: list[Any] = []
    monkeypatch.setattr(loop.hub, "add_reader", lambda *args: added.append(args))
    publish(connection, "jobs", 1)
    eventually(lambda: (loop.turn(), loop.got == [1])[1])
    assert added == []
    # Another connection is another socket, whoever had its number before.
    monkeypatch.undo()
    number = loop.channel.client.connection._sock.fileno()
    loop.hub.readers[number] = (print, ())
    eventually(lambda: waits_for_a_bell(loop))
    assert loop.hub.readers[number][1] == (number,)
    loop.channel.client.connection.disconnect()
    eventually(lambda: waits_for_a_bell(loop))
    assert loop.channel.client.connection._sock.fileno() in loop.hub.readers
    publish(connection, "jobs", 2)
    eventually(lambda: (loop.turn(), loop.got == [1, 2])[1])


@pytest.mark.timeout(20)
def test_nothing_is_read_where_nobody_was_asked(connect: Connect, turning: Turning) -> None:
    connection = connect()
    loop = turning(connection)
    eventually(lambda: waits_for_a_bell(loop))
    # As where a place became free in this turn of the loop: the next one asks.
    publish(connection, "jobs", 1)
    eventually(lambda: (loop.turn(), loop.got == [1])[1])
    assert not loop.channel._in_poll
    number = loop.channel.client.connection._sock.fileno()
    with pytest.raises(Empty):
        connection.transport.on_readable(number)
    publish(connection, "jobs", 2)
    eventually(lambda: (loop.turn(), loop.got == [1, 2])[1])


@pytest.mark.parametrize("by_hub", [True, False], ids=["hub", "drain"])
def test_what_is_said_to_all_is_heard_before_anything_is_claimed(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, by_hub: bool
) -> None:
    connection = connect()
    channel = connection.default_channel
    queues = [Queue("q"), Queue("told", Exchange("all", type="fanout"), exclusive=True)]
    consumer = connection.Consumer(queues, callbacks=[lambda body, message: message.ack()])
    asked: list[str] = []
    for name in ("_subscribe", "_brpop_start"):
        own = getattr(channel, name)

        def noted(*args: Any, name: str = name, own: Any = own) -> Any:
            asked.append(name)
            return own(*args)

        monkeypatch.setattr(channel, name, noted)
    consumer.consume()
    if by_hub:
        hub = Hub()
        connection.register_with_event_loop(hub)
        for before_poll in list(hub.on_tick):
            before_poll()
    else:
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.1)
    assert asked[:2] == ["_subscribe", "_brpop_start"]


@pytest.fixture
def spun(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The connections on which an answer was looked for before the loop sleeps."""
    seen: list[Any] = []
    monkeypatch.setattr(Spin, "wait", lambda _, connection: seen.append(connection))
    return seen


@pytest.mark.parametrize("blocks", [True, False])
def test_where_bodies_run_in_the_loop_the_answer_to_a_claim_is_looked_for(
    turning: Turning, spun: list[Any], blocks: bool
) -> None:
    loop = turning()
    loop.channel.session.body_blocks_loop = blocks
    loop.ask()
    assert loop.channel._claim is not None
    assert (loop.channel._in_poll in spun) is blocks


def test_nobody_spins_for_a_bell(turning: Turning, spun: list[Any]) -> None:
    loop = turning()
    eventually(lambda: waits_for_a_bell(loop))
    loop.channel.session.body_blocks_loop = True
    spun.clear()
    loop.ask()
    assert spun == []


def test_nobody_spins_for_a_claim_whose_connection_is_gone(
    turning: Turning, spun: list[Any]
) -> None:
    loop = turning()
    loop.channel.session.body_blocks_loop = True
    loop.ask()
    spun.clear()
    loop.channel.client.connection.disconnect()
    loop.channel.spin()
    assert spun == []


def test_a_loop_without_a_hub_can_be_woken_in_each_turn(connect: Connect) -> None:
    connection = connect()
    connection.Consumer([Queue("jobs")]).consume()
    poller = connection.transport.cycle
    for _ in range(3):
        with suppress(Empty):
            poller.get(lambda *_: None, 0.01)
        poller.wake()
        poller.wake()
        assert select([poller._pipe[0]], [], [], 0)[0]
