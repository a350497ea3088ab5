"""The message of a parked task: as text, and as any message of Celery again."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from kombu import Exchange, Queue
from kombu.transport import memory

from celery_fairness.limiter.types import Promoted
from celery_fairness.message.headers import Copy
from celery_fairness.util.timestamps import expires_ms
from celery_fairness.worker.captured_message import CapturedMessage
from tests.support.parts import parts_of
from tests.unit.worker.gate.test_resender import EXPIRES, HEADER, OLD, raw, request, resender, work

__all__ = ["resender", "work"]


def promoted(resender, work, **more):
    message = resender.take(request(**more), OLD)
    return message, Promoted(Copy("m1", "p1"), message.to_text())


def test_taking_a_message_publishes_nothing(resender, work):
    message, _ = promoted(resender, work)
    assert not any(queue.qsize() for queue in memory.Channel.queues.values())
    assert expires_ms(message.headers["expires"]) == 1_893_456_000_000


@pytest.mark.parametrize("content_type", ["application/json", "application/x-python-serialize"])
def test_it_is_published_as_it_would_have_been(resender, work, content_type):
    resender.send(work, request(content_type=content_type), OLD, "p1", 0)
    sent = raw()
    assert sent["content-type"] == content_type
    text = resender.take(request(content_type=content_type), OLD).to_text()
    resender.promote(Promoted(Copy("m1", "p1"), text, 1_500, "api"))
    back = raw()
    waits = {"waited_ms": 1_500, "limit": "api"}
    assert back["headers"]["fairness_copy"] == {"message": "m1", "serial": "p1", **waits}
    back["headers"]["fairness_copy"] = sent["headers"]["fairness_copy"]
    for message in (sent, back):
        message["properties"].pop("delivery_tag")
        message["properties"].pop("expiration", None)
    assert back == sent
    assert back["headers"]["fairness"] == HEADER
    assert back["headers"]["expires"] == EXPIRES
    assert back["properties"]["priority"] == 7


def test_headers_of_each_type_of_amqp_stay(resender, work):
    odd = {
        "x_time": datetime(2026, 1, 1, tzinfo=UTC),
        "x_decimal": Decimal("1.5"),
        "x_bytes": b"\xff",
        "x_table": {"a": [1, {"b": None}]},
        "x_unknown": {"__type__": "unknown", "__value__": 1},
    }
    text = resender.take(request(**odd), OLD).to_text()
    found = CapturedMessage.from_text(text).headers
    assert {name: found[name] for name in odd if name != "x_unknown"} == {
        name: value for name, value in odd.items() if name != "x_unknown"
    }
    assert found["x_unknown"] == odd["x_unknown"]


def test_the_brokers_own_expiry_is_left_out(resender, work):
    message, parked = promoted(resender, work)
    assert "expiration" not in message.properties
    resender.promote(parked)
    assert "expiration" not in raw()["properties"]


@pytest.mark.parametrize("content_type", ["application/json", "application/x-yaml"])
def test_it_is_read_without_being_published(resender, work, content_type):
    text = resender.take(request(content_type=content_type), OLD).to_text()
    message = CapturedMessage.from_text(text).received({content_type})
    args, kwargs, embedded = message.decode()
    assert (list(args), kwargs, embedded["chain"][0]["task"]) == (
        ["r"],
        {"user": "42"},
        "shop.chain",
    )
    assert (message.headers["id"], message.headers["fairness"]) == ("t1", HEADER)
    assert message.delivery_info == {"exchange": "", "routing_key": "analysis_default"}
    assert message.properties["correlation_id"] == "c1"


@pytest.mark.parametrize(
    ("driver", "ranks"), [("redis", [9, 9, 2, 0]), ("amqp", [0, 0, 7, 9]), ("memory", [0, 0, 7, 9])]
)
def test_its_rank_is_the_order_of_its_broker(resender, work, driver, ranks):
    resender._driver = driver
    found = []
    for priority in (None, 0, 7, 99):
        message = resender.take(request(properties={"priority": priority}), OLD)
        found.append(resender.rank_of(message))
    assert found == ranks


# After an even number of seconds the last exchange is that of a level.
@pytest.mark.parametrize("exchange", ["celery_delayed_delivery", "celery_delayed_0"])
def test_a_message_that_the_broker_delayed_names_its_queue(resender, work, exchange):
    delayed = {"exchange": exchange, "routing_key": "0." * 27 + "1.special"}
    message, _ = promoted(resender, work, place=delayed)
    assert (message.exchange, message.routing_key) == ("celery_delayed_delivery", "special")


@pytest.mark.parametrize(
    ("current", "queue"),
    [("analysis_default", "analysis_priority"), ("special", "special")],
)
@pytest.mark.parametrize("known", [True, False])
def test_an_upgraded_tenants_task_moves_when_it_is_promoted(
    resender, work, shop, current, queue, known
):
    _, parked = promoted(resender, work, place={"routing_key": current, "exchange": ""})
    if not known:
        # Whoever publishes it needs no code of the task.
        shop.app.tasks.unregister("shop.work")
    shop.fairness.tenants.set_tier("42", "pro")
    parts_of(shop.fairness).tier_cache.set_version(shop.limiter.config_version())
    resender.promote(parked)
    sent = shop.one()
    assert (sent.queue, sent.headers["fairness"]["tenant"]) == (queue, "42")


def test_it_moves_through_the_exchange_of_its_new_queue(resender, work, shop):
    _, parked = promoted(resender, work)
    exchange = Exchange("topics", type="topic")
    shop.app.amqp.queues.add(Queue("analysis_priority", exchange, routing_key="a.b"))
    shop.fairness.tenants.set_tier("42", "pro")
    parts_of(shop.fairness).tier_cache.set_version(shop.limiter.config_version())
    resender.promote(parked)
    sent = shop.one()
    came = sent.properties["delivery_info"]
    assert (sent.queue, came["exchange"], came["routing_key"]) == (
        *("analysis_priority", "topics", "a.b"),
    )


def test_it_stays_where_its_new_queue_is_not_declared(resender, work, shop):
    _, parked = promoted(resender, work)
    shop.app.amqp.queues.create_missing = False
    shop.app.amqp.queues.pop("analysis_priority", None)
    shop.fairness.tenants.set_tier("42", "pro")
    parts_of(shop.fairness).tier_cache.set_version(shop.limiter.config_version())
    resender.promote(parked)
    assert shop.one().queue == "analysis_default"
