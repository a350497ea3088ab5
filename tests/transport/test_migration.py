"""From the stock transport to this one and back: nothing is lost, nothing comes twice."""

from __future__ import annotations

import json

import kombu
import pytest
from redis.exceptions import ConnectionError as ServerAway
from redis.exceptions import ResponseError

from celery_fairness.scheduler import calls
from celery_fairness.transport import migration
from celery_fairness.transport.migration import Moved, adopt, to_fair, to_stock
from celery_fairness.transport.session import sessions
from tests.support.library import call
from tests.support.waiting import at_most
from tests.transport.conftest import Inbox

pytestmark = pytest.mark.one_redis("a stock producer")

QUEUE = kombu.Queue("moves", kombu.Exchange(""), routing_key="moves")
TENANT = {"fairness": {"v": 1, "tenant": "7", "tier": "enterprise"}}
NO_PLACE = '{"properties": {"delivery_info": [1]}}'
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
            connection.drain_events(timeout=at_most(5))
    return numbers


@pytest.mark.parametrize("both", ["", "shop."], indirect=True)
def test_messages_of_a_stock_producer_are_taken_over_in_their_order(both, client):
    stock, fair = both
    publish(stock, 250, headers=TENANT)
    assert consume(fair, 250) == list(range(250))
    assert client.keys("*moves") == []


def test_a_stock_producer_may_name_the_tenant_in_a_header_of_its_own(redis_url, client):
    options = {"fairness": {"tenant_header": ["x-tenant-id"]}}
    with (
        kombu.Connection(redis_url) as stock,
        kombu.Connection(f"fair{redis_url}", transport_options=options) as fair,
    ):
        channel = fair.default_channel
        channel.session.completed = lambda name, given: {**given, "tier": "pro"}
        publish(stock, 1, headers={"x-tenant-id": "42"})
        assert adopt(channel, ["moves"]) == 1
        assert client.hget("{fairness}:tenant_state:tenant:42", "tier") == "pro"
        with fair.SimpleQueue("moves") as queue:
            header = queue.get(timeout=at_most(3)).headers["fairness"]
    assert (header["tenant"], header["tenant_from"]) == ("42", "x-tenant-id")


def test_what_comes_while_a_worker_sleeps_is_seen_too(both):
    stock, fair = both
    publish(fair, 1)
    with fair.Consumer([QUEUE], callbacks=[lambda body, message: message.ack()]):
        fair.drain_events(timeout=at_most(5))
        with pytest.raises(TimeoutError):
            fair.drain_events(timeout=0.05)
        publish(stock, 1)
        fair.drain_events(timeout=at_most(3))


def test_priorities_of_stock_lists_are_kept(both):
    stock, fair = both
    publish(stock, 1, priority=0)
    publish(stock, 1, priority=9)
    assert adopt(fair.default_channel, ["moves"]) == 2
    with fair.SimpleQueue("moves") as queue:
        assert queue.get(timeout=at_most(3)).properties["priority"] == 9


def test_who_looked_before_another_took_it_over_doubles_nothing(both, client, monkeypatch):
    """The other has claimed and ended the task meanwhile, so nobody knows its tag any more."""
    stock, fair = both
    publish(stock, 1)
    channel = fair.default_channel
    read = migration._read

    def read_late(*args):
        with monkeypatch.context() as patched:
            patched.setattr(migration, "_read", read)
            assert adopt(channel, ["moves"]) == 1
        assert consume(fair, 1) == [0]
        channel.session.flush()
        return read(*args)

    monkeypatch.setattr(migration, "_read", read_late)
    assert adopt(channel, ["moves"]) == 0
    assert client.hlen("{fairness}:waiting") == 0
    assert client.llen("moves") == 0


def test_what_cannot_be_read_is_moved_aside_and_holds_nobody_up(both, client, caplog):
    stock, fair = both
    unreadable = [
        "no message",
        "[]",
        "5",
        "{}",
        '{"properties": []}',
        NO_PLACE,
        b"\xff",
        "[" * 100_000,
    ]
    publish(stock, 2)
    client.rpush("moves", *unreadable * 20)
    channel = fair.default_channel
    assert adopt(channel, ["moves"]) == 100
    assert adopt(channel, ["moves"]) == 62
    assert client.llen("moves") == 0
    assert client.llen("{fairness}:quarantined:moves") == 160
    assert client.hget("{fairness}:counters", "quarantined") == "160"
    assert [record.getMessage().partition(" now")[0] for record in caplog.records] == [
        f"{number} entries of moves cannot be read and are in {{fairness}}:quarantined:moves"
        for number in (100, 60)
    ]
    assert consume(fair, 2) == [0, 1]


@pytest.mark.parametrize("tag", ["1", "a b", "", "a\n", "\ud800", 5, None])
def test_each_message_of_a_list_arrives_whatever_its_tag(both, client, tag):
    """Some producers use one tag for all their messages, or what is none."""
    stock, fair = both
    publish(stock, 3)
    messages = [json.loads(each) for each in client.lrange("moves", 0, -1)]
    client.delete("moves")
    for message in messages:
        message["properties"]["delivery_tag"] = tag
    # The same message twice is two tasks, as on the stock transport.
    client.rpush("moves", *map(json.dumps, messages), json.dumps(messages[0]))
    assert adopt(fair.default_channel, ["moves"]) == 4
    assert consume(fair, 4) == [2, 0, 1, 2]


def test_what_redis_rejects_stays_and_is_taken_over_later(both, client):
    stock, fair = both
    publish(stock, 2)
    channel = fair.default_channel
    client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(ServerAway, match="NOREPLICAS"):
            adopt(channel, ["moves"])
    finally:
        client.config_set("min-replicas-to-write", 0)
    assert client.llen("moves") == 2
    assert consume(fair, 2) == [0, 1]


def test_messages_are_taken_over_where_the_memory_is_full(both, client):
    stock, fair = both
    publish(stock, 2)
    client.rpush("moves", "no message")
    before = client.config_get("maxmemory")["maxmemory"]
    client.config_set("maxmemory", 1)
    try:
        assert adopt(fair.default_channel, ["moves"]) == 3
    finally:
        client.config_set("maxmemory", before)
    assert consume(fair, 2) == [0, 1]


def test_the_way_back_moves_what_waits_and_what_waits_for_its_time(both, client):
    stock, fair = both
    publish(fair, 150, headers=TENANT, priority=3)
    publish(fair, 5, headers={"eta": FAR_AWAY})
    assert to_stock(fair.default_channel, "moves").moved == 155
    left = ("tasks", "messages", "ids", "scheduled:moves", "running")
    assert not client.exists(*(f"{{fairness}}:{each}" for each in left))
    assert len(consume(stock, 155)) == 155


def test_the_way_back_is_not_held_up_by_limits(both):
    stock, fair = both
    publish(fair, 20, headers={"fairness": {"v": 1, "tenant": "9", "tier": "free"}})
    assert to_stock(fair.default_channel, "moves").moved == 20
    assert consume(stock, 20) == list(range(20))


def test_the_way_back_waits_for_what_a_killed_worker_held(both, client, connect):
    _, fair = both
    publish(fair, 3)
    dead = connect(fairness={"lease_seconds": 1})
    Inbox(dead, "moves", prefetch_count=2).await_count(2)
    # As a kill does: nobody renews.
    for session in sessions():
        session.renewals.close()
    back = connect(fairness={"lease_seconds": 1})
    assert to_stock(back.default_channel, "moves").moved == 3


def test_the_way_back_returns_who_still_holds_a_task(both, client, connect):
    _, fair = both
    publish(fair, 2)
    alive = connect(fairness={"lease_seconds": 1})
    Inbox(alive, "moves", prefetch_count=1).await_count(1)
    (row,) = client.hvals("{fairness}:running")
    back = connect(fairness={"lease_seconds": 1})
    owner = row.split(" ")[1]
    assert to_stock(back.default_channel, "moves") == Moved(
        queue="moves", to="redis", moved=1, waiting=0, held_by=(owner,)
    )


def test_a_worker_leaves_the_lists_of_a_moved_queue_alone(both, client, caplog):
    stock, fair = both
    publish(fair, 2)
    assert to_stock(fair.default_channel, "moves").moved == 2
    assert adopt(fair.default_channel, ["moves"]) == 0
    assert client.llen("moves") == 2
    assert "messages of queue moves stay in its plain lists" in caplog.text
    publish(fair, 1)
    assert consume(fair, 1) == [0]
    publish(stock, 1)
    assert to_fair(fair.default_channel, "moves").moved == 3
    assert consume(fair, 3) == [0, 1, 0]


def test_a_worker_that_looked_before_the_move_leaves_the_lists_alone_too(both, client, monkeypatch):
    stock, fair = both
    publish(stock, 1)
    read = migration._read

    def read_late(*args):
        to_stock(fair.default_channel, "moves")
        return read(*args)

    monkeypatch.setattr(migration, "_read", read_late)
    assert adopt(fair.default_channel, ["moves"]) == 0
    assert client.llen("moves") == 1


def test_an_interrupted_move_gives_the_other_tasks_back_at_once(both, monkeypatch):
    stock, fair = both
    publish(fair, 5)
    move, moved = migration._move, []

    def interrupted(*args, **which):
        if len(moved) == 2:
            raise KeyboardInterrupt
        moved.append(args)
        return move(*args, **which)

    with monkeypatch.context() as patched:
        patched.setattr(migration, "_move", interrupted)
        with pytest.raises(KeyboardInterrupt):
            to_stock(fair.default_channel, "moves")
    assert consume(fair, 3) == [2, 3, 4]
    assert consume(stock, 2) == [0, 1]


@pytest.mark.parametrize("headers", [{}, {"eta": FAR_AWAY}])
def test_the_way_back_loses_nothing_to_a_key_of_another_type(both, client, headers):
    _, fair = both
    publish(fair, 3, headers=headers)
    client.set("moves", "somebody's")
    with pytest.raises(ResponseError, match="WRONGTYPE the key of the plain list moves"):
        to_stock(fair.default_channel, "moves")
    assert client.get("moves") == "somebody's"
    client.delete("moves")
    assert to_stock(fair.default_channel, "moves").moved == 3


def test_the_tasks_of_a_paused_tenant_stay_and_are_counted(both, client):
    _, fair = both
    publish(fair, 3, headers=TENANT)
    pause = calls.stop_args("pause", "tenant:7", 60_000, 15_000, "on")
    call(client, calls.STOP, "{fairness}:", pause)
    assert to_stock(fair.default_channel, "moves").waiting == 3


def test_a_key_of_another_type_under_a_queue_s_name_stops_nobody(both, client, caplog):
    stock, fair = both
    publish(stock, 2)
    client.set("moves\x06\x163", "somebody's")
    assert adopt(fair.default_channel, ["moves"]) == 2
    assert "stay there for now, Redis rejects them: WRONGTYPE" in caplog.text


#: Headers and properties of each kind, of a message whose body is compressed.
WHOLE = {
    "headers": {
        **TENANT,
        "task": "shop.work",
        "argsrepr": "(***)",
        "deep": {"a": [1, {"b": None}], "headers": {"x": "é"}},
        "headers": {"sentry-trace": "1"},
        "typed": {"__type__": "uuid", "__value__": {"hex": "0" * 32}},
    },
    "serializer": "yaml",
    "compression": "zlib",
    "priority": 3,
    "delivery_mode": 1,
    "expiration": 60,
    "reply_to": "somewhere",
    "correlation_id": "c",
    "message_id": "m",
    "timestamp": 1_700_000_000,
    "type": "kind",
    "user_id": "me",
    "app_id": "mine",
}


def envelope(text):
    """A message as it lies in Redis, without what belongs to one delivery."""
    found = json.loads(text)
    del found["properties"]["delivery_tag"]
    return found


@pytest.mark.parametrize("order", ["high_first", "low_first"])
def test_a_message_is_moved_whole(connect, redis_url, client, order):
    stock, fair = connect(redis_url), connect(fairness={"priority_order": order})
    publish(stock, 1, **WHOLE)
    (key,) = (each for each in client.keys("moves*"))
    sent = envelope(client.lindex(key, 0))
    assert sent["properties"]["app_id"] == "mine"
    channel = fair.default_channel
    assert adopt(channel, ["moves"]) == 1
    (adopted,) = client.hvals("{fairness}:messages")
    assert envelope(adopted) == sent
    assert to_stock(channel, "moves").moved == 1
    (key,) = (each for each in client.keys("moves*"))
    moved, listed = (envelope(client.lindex(key, 0)) for _ in range(2))
    if order == "high_first":
        # There the number would mean the opposite.
        assert moved["properties"].pop("priority") == 0
        moved["properties"]["priority"] = 3
    assert moved == sent
    assert to_fair(channel, "moves").moved == 1
    (back,) = client.hvals("{fairness}:messages")
    assert envelope(back) == listed
