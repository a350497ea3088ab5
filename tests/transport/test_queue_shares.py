"""A worker's shares of its places: what it claims of each queue, and which bells it hears."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from tests.transport.conftest import Connect, Inbox, publish
from tests.transport.test_passing import claims, turn_until_asleep

pytestmark = pytest.mark.redis

Begin = Callable[..., Inbox]


@pytest.fixture
def begin(connect: Connect) -> Iterator[Begin]:
    """Make a worker: ``begin(slots, a=…, b=…, lends=…)`` with its places for two queues."""
    begun = []

    def make(slots: int, lends: bool = False, **places: int) -> Inbox:
        worker = Inbox(connect(), "a", "b")
        worker.channel.serves_worker = True
        worker.channel.session.start(lambda: slots, places, lends)
        begun.append(worker)
        return worker

    yield make
    for worker in begun:
        worker.channel.session.slots = None


def by_queue(worker: Inbox) -> Counter[str]:
    return Counter(body[0] for body in worker.bodies)


def fill(connect: Connect, queue: str, amount: int = 5) -> None:
    publish(connect(), queue, *(f"{queue}{number}" for number in range(amount)))


def test_a_worker_takes_no_more_of_a_queue_than_its_share(connect: Connect, begin: Begin) -> None:
    fill(connect, "a")
    fill(connect, "b")
    worker = begin(10, a=2, b=1)
    worker.await_count(3)
    worker.nothing_comes()
    assert by_queue(worker) == {"a": 2, "b": 1}
    (of_b,) = (message for message in worker.messages if message.payload[0] == "b")
    of_b.ack()
    assert worker.await_count(4)[3] == "b1"


def test_places_that_nobody_uses_stay_idle(connect: Connect, begin: Begin) -> None:
    fill(connect, "b")
    worker = begin(4, a=3, b=1)
    assert worker.await_count(1) == ["b0"]
    worker.nothing_comes()
    fill(connect, "a", 1)
    assert worker.await_count(2, 0.5) == ["b0", "a0"]


def test_who_has_room_again_claims_at_once(connect: Connect, begin: Begin, client: Redis) -> None:
    """It sleeps on the bells of the other queue meanwhile, for up to a second."""
    fill(connect, "b")
    worker = begin(2, a=1, b=1)
    for number in range(1, 5):
        worker.await_count(number, 0.5)
        turn_until_asleep(worker, client)
        worker.messages[-1].ack()
    assert worker.await_count(5, 0.5) == [f"b{number}" for number in range(5)]
    assert [client.pttl(key) > 0 for key in client.scan_iter("*room:*")] in ([], [True])


def test_who_has_no_room_stays_asleep_and_leaves_the_bell_to_others(
    connect: Connect, begin: Begin, client: Redis
) -> None:
    fill(connect, "b", 1)
    worker = begin(2, a=1, b=1)
    worker.await_count(1)
    turn_until_asleep(worker, client)
    fill(connect, "b")
    before = claims(client)
    for _ in range(5):
        worker.turn(0.05)
    assert claims(client) == before
    other = Inbox(connect(fairness={"max_deliveries": 7}), "b")
    other.await_count(5, 0.5)


def test_what_is_lent_is_given_back_within_one_task(connect: Connect, begin: Begin) -> None:
    fill(connect, "b")
    worker = begin(3, lends=True, a=2, b=1)
    assert worker.await_count(3) == ["b0", "b1", "b2"]
    fill(connect, "a", 2)
    worker.nothing_comes()
    for number in range(2):
        worker.messages[number].ack()
    assert worker.await_count(5)[3:] == ["a0", "a1"]
    # Their places are all of A now: the next that is free is of B.
    worker.messages[2].ack()
    assert worker.await_count(6)[5:] == ["b3"]


def test_a_share_is_of_tasks_that_run_and_not_of_those_that_were_acknowledged(
    connect: Connect, begin: Begin
) -> None:
    fill(connect, "b", 2)
    worker = begin(2, a=1, b=1)
    worker.await_count(1)
    (held,) = worker.channel.session.lease_table.held()
    held.attended = True
    worker.messages[0].ack()
    worker.nothing_comes()


def test_other_consumers_of_the_process_have_no_share(connect: Connect, begin: Begin) -> None:
    fill(connect, "b")
    worker = begin(1, a=1, b=0)
    other = Inbox(worker.connection, "b")
    other.await_count(5)
    assert worker.bodies == []
