"""Busy queues of one consumer have equal starts, with any number of empty queues among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.integration.conftest import Shop
from tests.support.waiting import at_most, eventually
from tests.transport.conftest import Connect, Inbox, charged, publish

pytestmark = pytest.mark.redis

#: Starts of each busy queue that a test looks at.
EACH = 12


def largest_lead(served: Sequence[str], busy: Sequence[str]) -> int:
    """Return by how many starts one busy queue was ever ahead of another."""
    starts = Counter(dict.fromkeys(busy, 0))
    most = 0
    for queue in served:
        starts[queue] += 1
        most = max(most, max(starts.values()) - min(starts.values()))
    return most


def served_of(
    connect: Connect, queues: Sequence[str], places: int, count: int, random: Random
) -> list[str]:
    """Return the queues of ``count`` messages; a random one of those here is acknowledged."""
    inbox = Inbox(connect(), *queues, prefetch_count=places)
    here: list[Any] = []
    served: list[str] = []

    def come() -> None:
        inbox.turn()
        arrived, inbox.messages[:] = list(inbox.messages), []
        here.extend(arrived)
        served.extend(message.delivery_info["routing_key"] for message in arrived)
        for _ in range(random.randint(1, places)):
            if here:
                here.pop(random.randrange(len(here))).ack()
        assert len(served) >= count, served

    eventually(come, at_most(20.0), poll_seconds=0)
    inbox.consumer.cancel()
    for message in here:
        message.ack()
    return served[:count]


@pytest.mark.parametrize("places", [1, 2, 3, 8])
@pytest.mark.parametrize("empty", [0, 1, 10])
def test_busy_queues_take_turns_beside_empty_ones(
    connect: Connect,
    empty: int,
    places: int,
) -> None:
    """Two to four busy queues, each at any position."""
    random = Random(f"{empty} {places}")
    for scene in range(3):
        busy = [f"busy{scene}-{number}" for number in range(random.randint(2, 4))]
        queues = [*busy, *(f"empty{number}" for number in range(empty))]
        random.shuffle(queues)
        for queue in busy:
            # A claim may take more than is looked at.
            publish(connect(), queue, *range(EACH + 16))
        served = served_of(connect, queues, places, EACH * len(busy), random)
        assert largest_lead(served, busy) <= 1, (queues, served)


def test_a_queue_that_was_empty_has_its_turn_at_once(connect: Connect) -> None:
    """It neither waits behind the others, nor catches up on what it did not want."""
    publish(connect(), "old", *range(40))
    inbox = Inbox(connect(), "old", "new", *(f"empty{n}" for n in range(5)), prefetch_count=1)
    served: list[str] = []

    def take(count: int) -> list[str]:
        for _ in range(count):
            inbox.await_count(1)
            message = inbox.messages.pop()
            served.append(message.delivery_info["routing_key"])
            message.ack()
        return served[-count:]

    take(10)
    publish(connect(), "new", *range(20))
    assert take(2).count("new") >= 1
    assert take(20).count("new") == 10


def test_workers_that_share_queues_serve_them_alike(connect: Connect) -> None:
    busy = ("a", "b")
    for queue in busy:
        publish(connect(), queue, *range(60))
    empty = [f"empty{number}" for number in range(6)]
    inboxes = [
        Inbox(connect(), "a", *empty, "b", prefetch_count=1),
        Inbox(connect(), *empty, "b", "a", prefetch_count=2),
        Inbox(connect(), "b", "a", *empty, prefetch_count=3),
    ]
    served: list[str] = []
    while len(served) < 80:
        for inbox in inboxes:
            inbox.turn()
            while inbox.messages:
                message = inbox.messages.pop(0)
                served.append(message.delivery_info["routing_key"])
                message.ack()
    # Each may be one ahead.
    assert largest_lead(served, busy) <= len(inboxes)


@pytest.mark.parametrize(
    ("pool", "places"), [("solo", 1), ("threads", 1), ("threads", 3), ("prefork", 2), ("gevent", 2)]
)
def test_every_pool_serves_busy_queues_alike(
    make_shop: Callable[..., Shop],
    pool: str,
    places: int,
    tmp_path: Path,
) -> None:
    shop = make_shop("fairredis")
    busy = ("busy1", "busy2")
    queue_of = {
        shop.send("work", options={"queue": queue}).id: queue for queue in busy for _ in range(20)
    }
    empty = [f"empty{number}" for number in range(5)]
    shop.worker(pool=pool, concurrency=places, queues=["busy1", *empty, "busy2"])

    def served() -> list[str]:
        starts = [queue_of[entry["id"]] for entry in shop.ledger("start")]
        assert len(starts) == 40
        return starts

    starts = eventually(served, at_most(30.0))
    assert largest_lead(starts[:36], busy) <= 1 + places, starts


def test_a_queue_whose_tasks_are_dropped_keeps_back_no_other(connect: Connect) -> None:
    """A claim drops a bounded number, and then has no work left for the queues behind it."""
    once: Any = {"key": "once", "rate": {"limit": 1, "period": "PT1H"}, "on_limit": "drop"}
    api: Any = {"key": "api", "concurrency": 1}
    inbox = Inbox(connect(), "drops", "other", prefetch_count=8)
    producer = connect()
    publish(producer, "drops", 1, headers=charged("d", limits=[once]))
    inbox.await_count(1)
    publish(producer, "other", 2, headers=charged("a", limits=[api]))
    inbox.await_count(2)
    publish(producer, "drops", *range(1000), headers=charged("d", limits=[once]))
    # The first waits at its limit.
    publish(producer, "other", 3, headers=charged("b", limits=[api]))
    publish(producer, "other", 4, headers=charged("c"))
    assert inbox.await_count(3)[2] == 4
    assert producer.channel().queue_declare("drops", passive=True).message_count > 500
