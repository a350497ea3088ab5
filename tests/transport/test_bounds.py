"""How much each channel of a worker's process claims, and when: places are the tasks' alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_fairness.transport import poller
from tests.transport.conftest import Connect, Inbox, publish

pytestmark = pytest.mark.redis


@pytest.fixture
def worker_and_other(connect: Connect) -> Iterator[tuple[Inbox, Inbox]]:
    """The consumer of a worker's tasks, with one place, and another one in the same process."""
    connection = connect()
    worker, other = Inbox(connection, "tasks"), Inbox(connection, "own")
    worker.channel.serves_worker = True
    worker.channel.session.start(lambda: 1)
    yield worker, other
    worker.channel.session.slots = None


def test_a_second_consumer_is_served_while_the_places_are_taken(
    connect: Connect, worker_and_other: tuple[Inbox, Inbox]
) -> None:
    worker, other = worker_and_other
    publish(connect(), "tasks", 1, 2)
    worker.await_count(1)
    publish(connect(), "own", *range(20))
    other.await_count(20)
    assert worker.bodies == [1]
    worker.messages[0].ack()
    assert worker.await_count(2) == [1, 2]


def test_what_a_second_consumer_holds_takes_no_place(
    connect: Connect, worker_and_other: tuple[Inbox, Inbox]
) -> None:
    worker, other = worker_and_other
    publish(connect(), "own", 1, 2, 3)
    other.await_count(3)
    publish(connect(), "tasks", 1)
    worker.await_count(1)
    assert len(worker.channel.session.lease_table.held()) == 4
    other.messages[0].ack()
    publish(connect(), "tasks", 2)
    worker.nothing_comes()


def test_green_bodies_run_between_deliveries_and_the_next_claim_goes_with_half_of_the_places(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_is_open: list[bool] = []

    class Worker(Inbox):
        def receive(self, message: Any) -> None:
            self.messages.append(message)
            claim_is_open.append(self.channel.session.claim_is_open)

    worker = Worker(connect(), "tasks")
    worker.consumer.on_message = worker.receive
    worker.channel.serves_worker = True
    worker.channel.session.start(lambda: 4)
    # A body that waits for nothing ends when the loop first yields.
    monkeypatch.setattr(poller, "sleep", lambda _: worker.messages[-1].ack())
    publish(connect(), "tasks", *range(6))
    worker.await_count(4)
    assert claim_is_open == [False, False, True, True]
    worker.messages[3].ack()
    assert worker.await_count(6) == [0, 1, 2, 3, 4, 5]
    worker.channel.session.slots = None
