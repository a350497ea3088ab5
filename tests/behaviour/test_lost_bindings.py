"""Redis lost the routing table of an exchange: its sender routes again, or gets an error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue
from redis import Redis

from celery_fairness import Unroutable
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.waiting import eventually
from tests.transport.conftest import Connect, Inbox

pytestmark = pytest.mark.redis
TASK = {"task": "jobs.work", "id": "1"}
EXCHANGES = [Exchange("events", "direct"), Exchange("events", "topic")]


def bound(exchange: Exchange) -> Queue:
    """Return a queue that the exchange leads to."""
    return Queue("jobs", exchange, routing_key="jobs.new")


def send(connection: Connection, exchange: Exchange, body: Any, **options: Any) -> None:
    """Publish as Celery does, without declaring anything."""
    producer = connection.Producer(auto_declare=False)
    options = {"routing_key": "jobs.new", "headers": TASK, **options}
    producer.publish(body, exchange=exchange.name, retry=True, **options)


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda each: each.type)
@pytest.mark.parametrize("has_sent", [False, True])
def test_a_sender_that_declared_the_queue_routes_its_tasks_again(
    connect: Connect, client: Redis, exchange: Exchange, has_sent: bool
) -> None:
    connection = connect()
    queue = bound(exchange)
    queue(connection.default_channel).declare()
    if has_sent:
        send(connection, exchange, "before")
    client.flushall()
    send(connection, exchange, "after")
    assert Inbox(connect(), "jobs").await_count(1) == ["after"]


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda each: each.type)
def test_another_sender_gets_an_error_until_the_consumer_has_bound_its_queue_again(
    connect: Connect, client: Redis, exchange: Exchange
) -> None:
    inbox = Inbox(connect(), bound(exchange))
    inbox.nothing_comes()
    sender = connect()
    send(sender, exchange, "before")
    inbox.await_count(1)
    client.flushall()
    with pytest.raises(Unroutable, match=r"'events'.*'jobs\.new'.*send the task again") as caught:
        send(sender, exchange, "lost")
    assert (caught.value.exchange, caught.value.routing_key) == ("events", "jobs.new")

    def is_sent() -> bool:
        inbox.turn()
        try:
            send(sender, exchange, "after")
        except Unroutable:
            return False
        return True

    eventually(is_sent)
    assert inbox.await_count(2) == ["before", "after"]


def test_a_task_that_matches_no_binding_is_an_error_and_is_not_sent(
    connect: Connect, client: Redis
) -> None:
    connection = connect()
    bound(EXCHANGES[1])(connection.default_channel).declare()
    with pytest.raises(Unroutable, match=r"routing key 'other'"):
        send(connection, EXCHANGES[1], "lost", routing_key="other")
    assert connection.default_channel._size("jobs") == 0


def test_what_is_no_task_goes_to_nobody_without_an_error(connect: Connect) -> None:
    """Events, and replies to remote control whose asker has gone."""
    connection = connect()
    for kind in ("direct", "topic", "fanout"):
        Exchange(f"events.{kind}", kind)(connection.default_channel).declare()
        send(connection, Exchange(f"events.{kind}", kind), "event", headers={})
    send(connection, Exchange("events.fanout", "fanout"), "broadcast task")


def test_the_users_own_dead_letter_queue_takes_what_is_not_routed(connect: Connect) -> None:
    connection = connect(transport_options={"deadletter_queue": "strays"})
    Exchange("events", "direct")(connection.default_channel).declare()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        send(connection, EXCHANGES[0], "stray")
    assert Inbox(connect(), "strays").await_count(1) == ["stray"]


def test_workers_bind_their_queues_again(make_shop: Callable[..., Shop], client: Redis) -> None:
    shop = make_shop(
        "fairredis",
        conf={
            "task_default_queue": "events",
            "task_default_exchange": "events",
            "task_default_exchange_type": "topic",
            "task_default_routing_key": "events.new",
        },
        fairness={"lease_seconds": 2},
    )
    shop.worker(pool="threads", concurrency=2)
    assert shop.send("work", user="1").get(timeout=RESULT_SECONDS) == "done"
    client.flushdb()

    def send_without_declaring() -> Any:
        options = {"exchange": "events", "routing_key": "events.new"}
        try:
            return shop.app.send_task("shop.work", kwargs={"user": "2"}, **options)
        except Unroutable:
            return None

    result = eventually(send_without_declaring)
    assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.send("work", user="3").get(timeout=RESULT_SECONDS) == "done"
