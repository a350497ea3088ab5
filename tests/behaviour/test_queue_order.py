"""The transport option ``queue_order_strategy`` holds in a claim of many tasks as of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from kombu.utils.scheduling import round_robin_cycle

from tests.integration.conftest import Shop
from tests.support.waiting import at_most, eventually
from tests.transport.conftest import Connect, Inbox, charged, publish

pytestmark = pytest.mark.redis


class TwoOfEach(round_robin_cycle):
    """A user's own order: two tasks of a queue, then two of the next that has any."""

    def __init__(self, it: Any = None) -> None:
        super().__init__(it)
        self.served: list[str] = []

    def rotate(self, last_used: str) -> Any:
        """Note which queue was served; after the second task the next one comes first."""
        self.served.append(last_used)
        if self.served[-2:] == [last_used] * 2:
            self.served.clear()
            return super().rotate(last_used)
        return last_used


#: A strategy is named by a kombu name or by ``module:class``.
OWN = f"{__name__}:TwoOfEach"


def served_of(
    connect: Connect, strategy: str, queues: Sequence[str], places: int, count: int
) -> str:
    """Return the last letters of the queues of ``count`` messages, in the order they came."""
    options = {"queue_order_strategy": strategy}
    inbox = Inbox(connect(transport_options=options), *queues, prefetch_count=places)
    served: list[str] = []

    def come() -> None:
        inbox.turn()
        for message in inbox.messages:
            served.append(message.delivery_info["routing_key"])
            message.ack()
        inbox.messages.clear()
        assert len(served) >= count, served

    eventually(come, at_most(20.0), poll_seconds=0)
    return "".join(queue[-1] for queue in served[:count])


@pytest.mark.parametrize("places", [1, 4, 8])
@pytest.mark.parametrize(
    ("strategy", "queues", "expected"),
    [
        ("priority", ["z", "empty", "a"], "z" * 10 + "a" * 10),
        ("sorted", ["z", "empty", "a"], "a" * 10 + "z" * 10),
        ("round_robin", ["z", "empty", "a"], "za" * 10),
        (OWN, ["z", "empty", "a"], "zzaa" * 5),
    ],
)
def test_the_order_of_queues_holds(
    connect: Connect,
    strategy: str,
    queues: list[str],
    expected: str,
    places: int,
) -> None:
    for queue in ("a", "z"):
        publish(connect(), queue, *range(10))
    assert served_of(connect, strategy, queues, places, 20) == expected


def test_a_queue_whose_tenants_are_at_their_limits_keeps_back_no_other(
    connect: Connect,
) -> None:
    """A free tenant runs one task at once."""
    publish(connect(), "high", 1, 2, headers=charged("busy"))
    publish(connect(), "low", 3, 4)
    options = {"queue_order_strategy": "priority"}
    inbox = Inbox(connect(transport_options=options), "high", "low", prefetch_count=4)
    assert inbox.await_count(3) == [1, 3, 4]
    inbox.messages[0].ack()
    assert inbox.await_count(4) == [1, 3, 4, 2]


def test_a_tenant_at_its_limit_goes_on_in_the_first_queue(connect: Connect) -> None:
    publish(connect(), "low", "low", "low", headers=charged("one"))
    options = {"queue_order_strategy": "priority"}
    inbox = Inbox(connect(transport_options=options), "high", "low", prefetch_count=4)
    inbox.await_count(1)
    publish(connect(), "high", "high", "high", headers=charged("one"))
    for count in (2, 3, 4):
        inbox.messages[-1].ack()
        inbox.await_count(count)
    assert inbox.bodies == ["low", "high", "high", "low"]


@pytest.mark.parametrize(("pool", "places"), [("threads", 4), ("prefork", 2)])
def test_a_worker_empties_the_first_queue_first(
    make_shop: Callable[..., Shop],
    pool: str,
    places: int,
) -> None:
    conf = {"broker_transport_options": {"queue_order_strategy": "priority"}}
    shop = make_shop("fairredis", conf=conf)
    queue_of = {
        shop.send("work", options={"queue": queue}).id: queue
        for queue in ("low", "high")
        for _ in range(15)
    }
    shop.worker(pool=pool, concurrency=places, queues=["high", "low"])

    def started() -> str:
        starts = [queue_of[entry["id"]][0] for entry in shop.ledger("start")]
        assert len(starts) == 30
        return "".join(starts)

    starts = eventually(started, at_most(30.0))
    # Bodies that start together may write their lines in any order.
    assert starts[: 15 - places] == "h" * (15 - places), starts
