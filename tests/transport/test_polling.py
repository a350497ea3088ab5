"""The poll of a worker's loop: it hears of the connections that there are, and of no others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue
from kombu.asynchronous import Hub
from redis import Redis

from tests.support.waiting import at_most, eventually
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


def test_a_socket_that_a_forked_process_holds_is_not_heard_of(
    connect: Connect, turning: Turning
) -> None:
    """The system goes on polling it; its events would wake the loop again and again."""
    connection = connect()
    publish(connection, "jobs", 1)
    loop = turning(connection)
    eventually(lambda: waits_for_a_bell(loop) and loop.got == [1])
    with forked():
        loop.channel.client.connection.disconnect()
        eventually(lambda: waits_for_a_bell(loop))
        assert not loop.hub.poller.poll(0.05)
        publish(connection, "jobs", 2)
        eventually(lambda: (loop.turn(), loop.got == [1, 2])[1])


@pytest.mark.timeout(at_most(20))
def test_an_event_without_an_open_request_does_not_stop_the_loop(
    connect: Connect, turning: Turning
) -> None:
    """A place that becomes free in a turn has no request before the next turn."""
    connection = connect()
    loop = turning(connection)
    eventually(lambda: waits_for_a_bell(loop))
    publish(connection, "jobs", 1)
    eventually(lambda: (loop.turn(), loop.got == [1])[1])
    with pytest.raises(Empty):
        connection.transport.on_readable(loop.channel.client.connection._sock.fileno())
    publish(connection, "jobs", 2)
    eventually(lambda: (loop.turn(), loop.got == [1, 2])[1])


@pytest.mark.parametrize("by_hub", [True, False], ids=["hub", "drain"])
def test_what_is_said_to_all_is_heard_before_anything_is_claimed(
    connect: Connect, client: Redis, by_hub: bool
) -> None:
    """A worker knows what is revoked before it claims its first task."""
    connection = connect()
    queues = [Queue("q"), Queue("told", Exchange("all", type="fanout"), exclusive=True)]
    consumer = connection.Consumer(queues, callbacks=[lambda body, message: message.ack()])
    consumer.consume()
    with client.monitor() as monitor:
        if by_hub:
            hub = Hub()
            connection.register_with_event_loop(hub)
            for before_poll in list(hub.on_tick):
                before_poll()
        else:
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.1)
        sent = (each["command"].split()[0].upper() for each in monitor.listen())
        assert next(each for each in sent if each in ("PSUBSCRIBE", "FCALL")) == "PSUBSCRIBE"
