"""From the stock transport to this one and back: nothing is lost, nothing comes twice."""

from __future__ import annotations

import kombu
import pytest

from celery_fairness.transport import migration
from celery_fairness.transport.migration import adopt, to_stock

QUEUE = kombu.Queue("moves", kombu.Exchange(""), routing_key="moves")
TENANT = {"fairness": {"v": 1, "tenant": "7", "tier": "enterprise"}}
FAR_AWAY = "2099-01-01T00:00:00+00:00"


@pytest.fixture
def both(redis_url, request):
    """A stock connection and a fair one to the same Redis."""
    options = {"global_keyprefix": getattr(request, "param", "")}
    with (
        kombu.Connection(redis_url, transport_options=options) as stock,
        kombu.Connection(f"fair{redis_url}", transport_options=options) as fair,
    ):
        yield stock, fair


def publish(connection, amount, **options):
    producer = connection.Producer()
    for number in range(amount):
        producer.publish({"number": number}, routing_key="moves", **options)


def consume(connection, amount):
    """The numbers that came, in their order; each is acknowledged."""
    numbers = []

    def receive(body, message):
        numbers.append(body["number"])
        message.ack()

    with connection.Consumer([QUEUE], callbacks=[receive], prefetch_count=20):
        while len(numbers) < amount:
            connection.drain_events(timeout=5)
    return numbers


@pytest.mark.parametrize("both", ["", "shop."], indirect=True)
def test_messages_of_a_stock_producer_are_taken_over_in_their_order(both, client):
    stock, fair = both
    publish(stock, 250, headers=TENANT)
    assert consume(fair, 250) == list(range(250))
    assert client.keys("*moves") == []


def test_what_comes_while_a_worker_sleeps_is_seen_too(both):
    stock, fair = both
    publish(fair, 1)
    with fair.Consumer([QUEUE], callbacks=[lambda body, message: message.ack()]):
        fair.drain_events(timeout=5)
        with pytest.raises(TimeoutError):
            fair.drain_events(timeout=0.05)
        publish(stock, 1)
        fair.drain_events(timeout=3)


def test_priorities_of_stock_lists_are_kept(both):
    stock, fair = both
    publish(stock, 1, priority=0)
    publish(stock, 1, priority=9)
    assert adopt(fair.default_channel, ["moves"]) == 2
    with fair.SimpleQueue("moves") as queue:
        assert queue.get(timeout=3).properties["priority"] == 9


def test_a_worker_that_died_between_the_two_steps_doubles_nothing(both, client, monkeypatch):
    stock, fair = both
    publish(stock, 3)

    class Dies(migration.Redis):
        def lrem(self, *args):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(migration, "Redis", Dies)
        with pytest.raises(KeyboardInterrupt):
            adopt(fair.default_channel, ["moves"])
    assert client.llen("moves") == 3
    assert consume(fair, 3) == [0, 1, 2]
    assert client.hlen("{fairness}:waiting") == 0
    assert client.llen("moves") == 0


def test_what_cannot_be_read_stays_and_holds_nobody_up(both, client, caplog):
    stock, fair = both
    client.lpush("moves", "no message")
    publish(stock, 2)
    assert adopt(fair.default_channel, ["moves"]) == 2
    assert client.lrange("moves", 0, -1) == ["no message"]
    assert "a message in moves is left there" in caplog.text


def test_the_way_back_moves_what_waits_and_what_waits_for_its_time(both, client):
    stock, fair = both
    publish(fair, 150, headers=TENANT, priority=3)
    publish(fair, 5, headers={"eta": FAR_AWAY})
    assert to_stock(fair.default_channel, "moves") == 155
    assert client.scard("{fairness}:known") == 0
    assert client.zcard("{fairness}:later:moves") == 0
    assert len(consume(stock, 155)) == 155


def test_the_way_back_is_not_held_up_by_limits(both):
    stock, fair = both
    publish(fair, 20, headers={"fairness": {"v": 1, "tenant": "9", "tier": "free"}})
    assert to_stock(fair.default_channel, "moves") == 20
    assert consume(stock, 20) == list(range(20))
