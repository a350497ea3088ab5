"""A message that is sent again equals the message before, field by field.

Each way to send a message again, on each broker, with every option of ``apply_async`` and every
AMQP property. ``docs/reference/message-headers.md`` has a table of the fields that differ.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_fairness import RateLimitPolicy
from tests.integration.conftest import BROKERS, RESULT_SECONDS, Shop
from tests.integration.test_gate_limits import KEY, events_of, key_taken
from tests.integration.test_parked import await_parked
from tests.support.carried import make_carried
from tests.support.waiting import eventually

FAIR = {"tiers": {"free": {"concurrency": 9}}, "snooze_seconds": 1, "snooze_jitter_seconds": 0}
SECRET = "correct-horse"
#: Every AMQP property that ``apply_async`` passes on.
PROPERTIES: dict[str, Any] = {
    "app_id": "mine",
    "cluster_id": "",
    "correlation_id": "corr",
    "delivery_mode": 1,
    "message_id": "m-1",
    "priority": 3,
    "reply_to": "somewhere",
    "timestamp": 1_700_000_000,
    "type": "kind",
    "user_id": "guest",
}
OPTIONS: dict[str, Any] = {
    **PROPERTIES,
    "argsrepr": "(***)",
    "kwargsrepr": "{***}",
    "compression": "zlib",
    "group_id": "group",
    "group_index": 3,
    "headers": {
        "x_plain": "1",
        "x_deep": {"a": [1, {"b": None}]},
        "headers": {"x_nested": "1", "baggage": "b"},
        "celery_beat_task": True,
    },
    "ignore_result": True,
    "origin": "me@here",
    "parent_id": "parent",
    "replaced_task_nesting": 2,
    "retry": True,
    "retry_policy": {"max_retries": 1},
    "root_id": "root",
    "serializer": "yaml",
    "shadow": "another.name",
    "soft_time_limit": 50,
    "stamped_headers": ["stamp"],
    "stamp": "value",
    "time_limit": 60,
}
#: RabbitMQ routes a message to these queues too. A copy must not go there again.
ROUTED = {"CC": ["another"]}
#: A task with an expiry of its own has no ``expires``, from which Celery would make it.
EXPIRING: tuple[dict[str, Any], ...] = (
    {"expires": datetime.now(UTC) + timedelta(seconds=3600)},
    {"expiration": 300},
)
#: Fields that belong to a delivery or to its broker, and not to a message.
_OF_DELIVERY = {
    *("properties.delivery_tag", "properties.fairness_claim", "properties.body_encoding"),
    *("request.delivery_info", "properties.delivery_info", "properties.application_headers"),
    "request.fairness_eta",
}
#: The fields that differ, by the way in which a message is sent again.
MUST = {
    "reschedule": {"request.eta", "request.fairness_copy", "properties.expiration"},
    "wait": {"request.fairness_copy", "properties.expiration"},
    "429": {
        *("request.eta", "request.fairness_copy", "request.fairness_accepted"),
        "properties.expiration",
    },
    "retry": {
        *("request.eta", "request.fairness_copy", "request.fairness_accepted", "request.retries"),
        "properties.expiration",
    },
}


def flat(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a message by their names."""
    found = {"body": facts["body"], "content": facts["content"]}
    for part in ("request", "properties"):
        found.update({f"{part}.{name}": value for name, value in facts[part].items()})
    found = {n: value for n, value in found.items() if n not in _OF_DELIVERY}
    # RabbitMQ writes them into a message that waited in the broker.
    return {n: value for n, value in found.items() if not n.startswith("request.x-")}


def carried(shop: Shop, task_id: str) -> list[dict[str, Any]]:
    lines = [each for each in shop.ledger("carried") if each["id"] == task_id]
    return [flat(each["facts"]) for each in lines]


def send(shop: Shop, how: str, *limits: RateLimitPolicy, **options: Any) -> str:
    task = shop.app.tasks["shop.carried"]
    options["headers"] = {**OPTIONS["headers"], **ROUTED}
    # YAML holds no signature.
    link, error = (
        json.loads(json.dumps(shop.app.signature(name))) for name in ("shop.plain", "shop.total")
    )
    sent = task.apply_async(
        (SECRET, [1]),
        {"user": "42", "how": how, "secret": SECRET},
        link=[link],
        link_error=[error],
        limits=list(limits),
        **{**OPTIONS, **options},
    )
    return str(sent.id)


@contextlib.contextmanager
def rejected_once(shop: Shop, way: str) -> Iterator[None]:
    """Let the limit reject the task that the block sends."""
    before = len(events_of(shop))
    with key_taken(shop):
        yield
        if way == "wait":
            await_parked(shop, 1)
        else:
            eventually(lambda: len(events_of(shop)) > before, RESULT_SECONDS)


def differences(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    names = first.keys() | second.keys()
    values = {name: (first.get(name, "absent"), second.get(name, "absent")) for name in names}
    return {name: each for name, each in values.items() if each[0] != each[1]}


@pytest.mark.parametrize("broker", [*BROKERS, "fairredis"])
def test_what_is_sent_again_equals_what_was_sent(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    conf = {"accept_content": ["json", "yaml"], "task_send_sent_event": True}
    shop = make_shop(broker, conf=conf, fairness=FAIR)
    make_carried(shop.app)
    worker = shop.worker(app="tests.support.carried", pool="prefork", concurrency=2)
    ways = ["429", "retry"] if broker == "fairredis" else list(MUST)
    for way in ways:
        for expiring in EXPIRING:
            if way in ("429", "retry"):
                sent = send(shop, way, **expiring)
                first, second = eventually(
                    lambda sent=sent: len(found := carried(shop, sent)) == 2 and found,
                    RESULT_SECONDS,
                )
            else:
                limit = RateLimitPolicy(KEY, concurrency=1, on_limit=way)
                at_once = send(shop, "ok", limit, **expiring)
                (first,) = eventually(lambda sent=at_once: carried(shop, sent), RESULT_SECONDS)
                with rejected_once(shop, way):
                    again = send(shop, "ok", limit, **expiring)
                (second,) = eventually(lambda sent=again: carried(shop, sent), RESULT_SECONDS)
            differ = differences(first, second)
            if broker.startswith("rabbitmq"):
                assert differ.pop("request.CC") == (["another"], "absent")
            assert set(differ) <= MUST[way], (way, differ)
            # A queue that delays messages takes the property away.
            if way != "wait" and broker != "rabbitmq_quorum":
                # An expiry of its own begins again with each publication.
                assert ("properties.expiration" in differ) == ("expires" in expiring)
    assert SECRET not in worker.log_text()
