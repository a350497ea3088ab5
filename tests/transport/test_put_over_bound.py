"""Publishing over a bound: an error in the producer, alone and in a batch, and nothing in Redis."""

from __future__ import annotations

from typing import Any

import pytest
from kombu.utils.json import dumps
from redis import Redis

from celery_fairness import BacklogFull
from tests.transport.conftest import BATCHES, Connect, Inbox, charged, publish

pytestmark = pytest.mark.redis

BOUNDED: dict[str, Any] = {
    "tiers": {"free": {"max_waiting": 2}},
    "queues": {"jobs": {"max_waiting": 3}},
}
FULL_TENANT, FULL_QUEUE = ("tenant:a", 2, 2), ("queue:jobs", 3, 3)


def size(client: Redis) -> int:
    """Return how many tasks wait in the queue."""
    return int(client.hget("{fairness}:waiting", "jobs") or 0)


def test_a_publish_over_a_bound_raises_and_the_next_one_after_a_start_does_not(
    connect: Connect, client: Redis
) -> None:
    connection = connect(fairness=BOUNDED)
    publish(connection, "jobs", 1, 2, headers=charged("a"))
    before = sorted(client.scan_iter("*")), client.hgetall("{fairness}:tasks")
    with pytest.raises(BacklogFull, match="send it when fewer wait") as caught:
        publish(connection, "jobs", 3, headers=charged("a"))
    assert (caught.value.key, caught.value.limit, caught.value.waiting) == FULL_TENANT
    assert (sorted(client.scan_iter("*")), client.hgetall("{fairness}:tasks")) == before
    publish(connection, "jobs", 4)
    with pytest.raises(BacklogFull) as caught:
        publish(connection, "jobs", 5)
    assert caught.value.args == FULL_QUEUE
    inbox = Inbox(connection, "jobs", prefetch_count=1)
    inbox.await_count(1)
    publish(connection, "jobs", 6)
    assert size(client) == 3


@BATCHES
@pytest.mark.parametrize("max_size", [1, 3, 100])
def test_of_a_batch_what_has_room_is_put_and_the_first_that_has_none_is_told(
    connect: Connect, client: Redis, max_size: int
) -> None:
    connection = connect(fairness=BOUNDED)
    producer = connection.Producer()

    def publish_all() -> None:
        with producer.batch(max_size=max_size):
            for number in range(5):
                headers = charged("a" if number < 4 else "b")
                producer.publish(number, exchange="", routing_key="jobs", headers=headers)

    with pytest.raises(BacklogFull) as caught:
        publish_all()
    assert caught.value.args == FULL_TENANT
    assert size(client) == (3 if max_size == 100 else 2)
    # The producer is whole, and so is the next batch.
    with producer.batch(max_size=max_size):
        headers = charged("c") | {"retries": 1}
        producer.publish(9, exchange="", routing_key="jobs", headers=headers)


@pytest.mark.one_redis("a stock producer")
def test_a_producer_on_the_stock_transport_is_rejected_nothing(
    connect: Connect, client: Redis
) -> None:
    publish(connect(fairness=BOUNDED), "jobs", 1, 2, headers=charged("a"))
    for number in (3, 4):
        properties = {"delivery_tag": f"plain-{number}", "delivery_info": {"exchange": ""}}
        message = {"body": number, "headers": charged("a"), "properties": properties}
        client.lpush("jobs", dumps(message))
    inbox = Inbox(connect(fairness=BOUNDED), "jobs")
    inbox.await_count(1)
    assert (client.llen("jobs"), size(client)) == (0, 3)
