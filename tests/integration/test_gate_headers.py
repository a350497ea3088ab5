"""What producers without this package send to workers behind a gate, and what nobody can read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pytest
from celery.result import AsyncResult
from kombu import Producer

from tests.integration.conftest import BROKERS, RESULT_SECONDS, Shop
from tests.integration.test_gate_limits import assert_all_free, await_count
from tests.integration.test_parked import await_parked

NARROW = {"key": "narrow", "concurrency": 1}
#: Nothing is waited for but what is parked.
LONG = {"snooze_seconds": 600, "snooze_jitter_seconds": 0, "lease_seconds": 60}
MANY = {**LONG, "tiers": {"free": {"concurrency": 9}}}
#: All are charged to a tenant of their own.
WRONG: list[Any] = [
    "nonsense",
    5,
    ["a", {"b": None}],
    {},
    {"v": 2, "tenant": "42"},
    {"v": "1", "tenant": "42"},
    {"v": 1, "tenant": {"a": 1}},
    {"v": 1, "tenant": "x" * 201},
    {"v": 1, "tenant": "42", "cost": -1},
    {"v": 1, "tenant": "42", "service": "a b"},
    {"v": 1, "tenant": "42", "limits": 5},
    {"v": 1, "tenant": "42", "limits": [{"key": "narrow", "concurrency": -1}, NARROW]},
    {"v": 1, "tenant": "42", "partition": 7, "limits": [NARROW]},
]


def send(
    shop: Shop,
    header: Any = None,
    own: Mapping[str, Any] = MappingProxyType({}),
    properties: Mapping[str, Any] = MappingProxyType({}),
    **kwargs: Any,
) -> AsyncResult:
    """Send as a program does that knows neither this package nor the tasks."""
    message = shop.app.amqp.as_task_v2(str(uuid4()), "shop.narrow", kwargs=kwargs)
    headers = {**message.headers, **own}
    if header is not None:
        headers["fairness"] = header
    queue = shop.app.amqp.queues["celery"]
    with shop.app.connection_for_write() as connection:
        Producer(connection).publish(
            message.body,
            exchange=queue.exchange,
            routing_key=queue.routing_key,
            declare=[queue],
            headers=headers,
            serializer="json",
            **{**message.properties, **properties},
        )
    return AsyncResult(message.headers["id"], app=shop.app)


@pytest.mark.parametrize("broker", BROKERS)
def test_what_nobody_can_read_runs_once_and_never_above_the_limits_of_its_task(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = make_shop(broker, fairness=MANY)
    worker = shop.worker(pool="threads", concurrency=6)
    gate = shop.gate_file()
    first = send(shop, {"v": 1, "tenant": "7"}, gate=str(gate))
    shop.await_held("7", 1)
    sent = [send(shop, header, user="42") for header in WRONG]
    # Each was rejected, and waits in Redis as it came.
    await_parked(shop, len(WRONG), "narrow")
    assert len(shop.ledger("start")) == 1
    gate.touch()
    for result, header in zip(sent, WRONG, strict=True):
        assert result.get(timeout=RESULT_SECONDS) == header
    assert first.get(timeout=RESULT_SECONDS) == {"v": 1, "tenant": "7"}
    assert shop.most_at_once("narrow") == 1
    assert set(shop.runs().values()) == {1}
    assert shop.fairness.stats.counters()["invalid"] >= len(WRONG)
    assert_all_free(shop, "narrow", "tenant:_invalid", "tenant:7")
    worker.wait_for_log("task shop.narrow is attributed to the tenant _invalid: ")


@pytest.mark.parametrize("broker", BROKERS)
def test_a_producer_names_the_tenant_in_a_header_or_property_of_its_own(
    make_shop: Callable[..., Shop], broker: str
) -> None:
    names = {"tenant_header": ["x-tenant-id", "app_id"]}
    shop = make_shop(broker, fairness={**LONG, **names, "tier_on_limit": "wait"})
    worker = shop.worker(pool="threads", concurrency=6)
    gate = shop.gate_file()
    first = send(shop, own={"x-tenant-id": 7}, user="8", gate=str(gate))
    shop.await_held("7", 1)
    parked = send(shop, properties={"app_id": "7"}, user="8")
    hostile = send(shop, own={"x-tenant-id": True}, properties={"app_id": "9"}, user="8")
    await_parked(shop, 2, "narrow")
    found = shop.fairness.tasks.explain(parked.id)
    assert (found.state, found.key, found.tenant_from) == ("parked", "tenant:7", "app_id")
    assert shop.fairness.tasks.explain(hostile.id).key == "tenant:_invalid"
    gate.touch()
    headers = [each.get(timeout=RESULT_SECONDS) for each in (first, parked, hostile)]
    assert [(each.get("tenant"), each["tenant_from"]) for each in headers] == [
        *(("7", "x-tenant-id"), ("7", "app_id"), (None, "x-tenant-id")),
    ]
    assert headers[2]["invalid"] == "x-tenant-id: expected str, int or UUID, got: bool"
    assert_all_free(shop, "narrow", "tenant:_invalid", "tenant:7")
    worker.wait_for_log("task shop.narrow is attributed to the tenant _invalid: x-tenant-id: ")


def test_limits_that_a_producer_does_not_know_hold_by_the_tenant_of_the_arguments(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop("redis", fairness=MANY)
    shop.worker(pool="prefork", concurrency=3)
    gate = shop.gate_file()
    sent = [send(shop, user=user, gate=str(gate)) for user in ("41", "42", "43")]
    await_count(shop, "limited", 2)
    assert sorted(shop.held(user) for user in ("41", "42", "43")) == [0, 0, 1]
    free = send(shop, {"v": 1, "tenant": "41", "limits": []})
    assert free.get(timeout=RESULT_SECONDS) == {"v": 1, "tenant": "41", "limits": []}
    gate.touch()
    for result in sent:
        result.get(timeout=RESULT_SECONDS)
    assert set(shop.runs().values()) == {1}
    assert_all_free(shop, "narrow")
