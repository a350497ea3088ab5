"""Who a message is charged to, its priority, and the time for which it waits."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis

from celery_fairness.transport.session import sessions
from tests.transport.conftest import Connect, Inbox, charged, publish, settled

pytestmark = pytest.mark.redis


def waiting_tenants(client: Redis) -> set[str]:
    """Return the keys that are charged for what waits."""
    members = set()
    for ring in client.scan_iter("{fairness}:active:*"):
        members |= set(client.zrange(ring, 0, -1))
    return members


def test_a_tenant_at_its_limit_waits_and_others_go_on(connect: Connect, client: Redis) -> None:
    connection = connect()
    publish(connection, "jobs", "a1", "a2", headers=charged("a"))
    publish(connection, "jobs", "b1", headers=charged("b"))
    inbox = Inbox(connection, "jobs")
    assert sorted(inbox.await_count(2)) == ["a1", "b1"]
    inbox.nothing_comes()
    next(m for m in inbox.messages if m.payload == "a1").ack()
    assert inbox.await_count(3)[2] == "a2"
    for message in inbox.messages[1:]:
        message.ack()


@pytest.mark.parametrize(
    ("order", "expected"), [("high_first", [9, 5, 5, 1, 0, 0]), ("low_first", [0, 0, 1, 5, 5, 9])]
)
def test_priorities_order_the_tasks_of_one_tenant(
    connect: Connect, order: str, expected: list[int]
) -> None:
    connection = connect(fairness={"priority_order": order})
    sent = [5, 0, 9, None, 1, 5]
    for place, priority in enumerate(sent):
        publish(connection, "jobs", [priority or 0, place], priority=priority, headers=charged("a"))
    inbox = Inbox(connection, "jobs", prefetch_count=1)
    for count in range(1, 7):
        inbox.await_count(count)
        inbox.messages[-1].ack()
    assert [priority for priority, _ in inbox.bodies] == expected
    fives = [place for priority, place in inbox.bodies if priority == 5]
    assert fives == [0, 5]


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("tenant", ["a7", "b9", "a1", "b8", "b5", "b0"]),
        ("queue", ["b9", "b8", "a7", "b5", "a1", "b0"]),
    ],
)
def test_a_scope_says_whose_tasks_a_priority_orders(
    connect: Connect, scope: str, expected: list[str]
) -> None:
    # An ack may still be under way at the next claim, so no tenant is at its limit.
    roomy = {"free": {"concurrency": 9}}
    connection = connect(fairness={"priority_scope": scope, "tiers": roomy})
    for tenant, priority in (("a", 1), ("b", 0), ("b", 5), ("a", 7), ("b", 9), ("b", 8)):
        body = f"{tenant}{priority}"
        publish(connection, "jobs", body, priority=priority, headers=charged(tenant))
    inbox = Inbox(connection, "jobs", prefetch_count=1)
    for count in range(1, 7):
        inbox.await_count(count)
        inbox.messages[-1].ack()
    assert inbox.bodies == expected


def test_a_task_that_has_waited_for_priority_aging_goes_before_higher_priorities(
    connect: Connect, client: Redis
) -> None:
    roomy = {"free": {"concurrency": 9}}
    fairness = {"priority_scope": "queue", "priority_aging": 1, "tiers": roomy}
    connection = connect(fairness=fairness)
    publish(connection, "jobs", "old", priority=1, headers=charged("a"))
    publish(connection, "jobs", "new", priority=8, headers=charged("b"))
    heads = client.hgetall("{fairness}:tasks")
    (tag,) = (tag for tag, head in heads.items() if head.split(" ")[5] == "a")
    put_ms = heads[tag].split(" ")[10]
    client.hset("{fairness}:tasks", tag, heads[tag].replace(put_ms, str(int(put_ms) - 2_000)))
    inbox = Inbox(connection, "jobs", prefetch_count=1)
    inbox.await_count(1)
    inbox.messages[-1].ack()
    assert inbox.await_count(2) == ["old", "new"]


@pytest.mark.parametrize("priority", [-3, 99, "7", "x", 2.5])
def test_any_priority_is_taken(connect: Connect, priority: Any) -> None:
    connection = connect()
    publish(connection, "jobs", 1, priority=priority)
    inbox = Inbox(connection, "jobs")
    assert inbox.await_count(1) == [1]
    inbox.messages[0].ack()


HOSTILE = [
    None,
    0,
    "text",
    [],
    ["v", 1],
    {},
    {"v": "1", "tenant": "a"},
    {"v": 2, "tenant": "a"},
    {"v": True, "tenant": "a"},
    {"v": 1, "tenant": 1.5},
    {"v": 1, "tenant": ["a"]},
    {"v": 1, "tenant": "x" * 201},
    {"v": 1, "tenant": "\ud800"},
    {"v": 1, "tenant": "a", "tier": "a tier with spaces"},
    {"v": 1, "tenant": "a", "tier": 7},
    {"v": 1, "tenant": "a", "service": "a\nb"},
    {"v": 1, "tenant": "a", "cost": -1},
    {"v": 1, "tenant": "a", "cost": float("nan")},
    {"v": 1, "tenant": "a", "cost": float("inf")},
    {"v": 1, "tenant": "a", "cost": "1"},
    {"v": 1, "tenant": "a", "scheduled": "yes"},
    {"v": 1, "tenant": "a", "invalid": "no tenant"},
    {"v": 1, "tenant": "a", "more": "x" * 20_000},
]


@pytest.mark.parametrize("header", HOSTILE, ids=lambda header: repr(header)[:40])
def test_a_header_that_cannot_be_read_is_charged_to_invalid_and_said(
    connect: Connect, client: Redis, caplog: pytest.LogCaptureFixture, header: Any
) -> None:
    connection = connect()
    # Of one task it is said once a minute.
    task = f"shop.{HOSTILE.index(header)}"
    publish(connection, "jobs", 1, headers={"task": task, "fairness": header})
    assert waiting_tenants(client) == {"tenant:_invalid"}
    assert client.hget("{fairness}:counters", "invalid") == "1"
    (line,) = caplog.messages
    assert line.startswith(f"task {task} is attributed to the tenant _invalid: ")
    inbox = Inbox(connection, "jobs")
    assert inbox.await_count(1) == [1]
    inbox.messages[0].ack()
    settled(client)


NAMES = ["_none", "_invalid", "_system", "a b", "a\nb", "日本", "h_x", "*", "}{"]


@pytest.mark.parametrize("tenant", [*NAMES, "x" * 200, 42, "a:b"])
@pytest.mark.parametrize("is_own", [False, True], ids=["fairness", "a header of its own"])
def test_a_tenant_may_have_any_name(
    connect: Connect, client: Redis, tenant: Any, is_own: bool
) -> None:
    connection = connect(fairness={"tier_scope": "service", "tenant_header": ["x-tenant-id"]})
    headers = {"x-tenant-id": tenant} if is_own else charged(tenant, service="analysis")
    publish(connection, "jobs", 1, 2, headers=headers)
    (key,) = waiting_tenants(client)
    assert key.startswith("tenant:")
    assert not key.startswith("tenant:_")
    assert key.endswith(":_" if is_own else ":analysis")
    inbox = Inbox(connection, "jobs")
    inbox.await_count(1)
    inbox.messages[0].ack()
    inbox.await_count(2)
    inbox.messages[1].ack()
    settled(client)


def test_a_producer_names_the_tenant_in_a_header_or_property_of_its_own(
    connect: Connect, client: Redis
) -> None:
    connection = connect(fairness={"tenant_header": ["x-tenant-id", "app_id"]})
    headers = {"x-tenant-id": "42"}
    publish(connection, "jobs", 1, 2, headers=headers)
    publish(connection, "jobs", 3, app_id="7", headers={})
    publish(connection, "jobs", 4, headers={"task": "celery.ping", **headers})
    assert waiting_tenants(client) == {"tenant:42", "tenant:7", "_system"}
    # The producer may send its own mapping again, with another tenant.
    assert headers == {"x-tenant-id": "42"}
    inbox = Inbox(connection, "jobs")
    assert sorted(inbox.await_count(3)) == [1, 3, 4]
    found = {message.payload: message.headers.get("fairness") for message in inbox.messages}
    assert found[1] == {
        "v": 1,
        "tenant": "42",
        "tenant_from": "x-tenant-id",
        "scheduled": False,
        "cost": 1,
    }
    assert (found[3]["tenant"], found[4]) == ("7", None)
    for message in inbox.messages:
        message.ack()
    assert inbox.await_count(4)[3] == 2
    inbox.messages[3].ack()
    settled(client)


@pytest.mark.parametrize("value", [1.5, True, ["a"], {"a": 1}, "x" * 201, "\ud800"], ids=repr)
def test_a_header_of_its_own_that_is_no_tenant_is_charged_to_invalid(
    connect: Connect, client: Redis, caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    connection = connect(fairness={"tenant_header": ["x-tenant-id"]})
    task = f"shop.own.{repr(value)[:9]}"
    publish(connection, "jobs", 1, headers={"task": task, "x-tenant-id": value})
    assert waiting_tenants(client) == {"tenant:_invalid"}
    (line,) = caplog.messages
    assert line.startswith(f"task {task} is attributed to the tenant _invalid: x-tenant-id: expect")
    inbox = Inbox(connection, "jobs")
    assert inbox.await_count(1) == [1]
    # The tasks that it sends are those of the same tenant.
    assert inbox.messages[0].headers["fairness"]["invalid"].startswith("x-tenant-id: expected ")
    inbox.messages[0].ack()
    settled(client)


@pytest.mark.parametrize("headers", [{}, {"fairness": {"v": 1}}, {"task": "celery.ping"}])
def test_a_message_without_a_tenant_has_no_limit(
    connect: Connect, client: Redis, headers: dict[str, Any]
) -> None:
    connection = connect()
    publish(connection, "jobs", 1, 2, 3, headers=headers)
    assert waiting_tenants(client) == {"_system"}
    Inbox(connection, "jobs").await_count(3)


def test_a_message_without_headers_arrives(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    message = channel.prepare_message("1", content_type="application/json")
    del message["headers"]
    channel.basic_publish(message, exchange="", routing_key="jobs")
    assert Inbox(connection, "jobs").await_count(1) == [1]


def test_a_task_with_an_eta_starts_on_time(connect: Connect, client: Redis) -> None:
    connection = connect()
    inbox = Inbox(connection, "jobs")
    inbox.nothing_comes()
    late = []
    for seconds in (0.15, 0.15, 0.15, 0.3, 0.3, 0.3):
        due = datetime.now(UTC) + timedelta(seconds=seconds)
        publish(connection, "jobs", 1, headers={"eta": due.isoformat(), "task": "x"})
        while not inbox.messages:
            inbox.turn(1.0)
        late.append(time.time() - due.timestamp())
        (message,) = inbox.messages
        assert message.headers["fairness_eta"] == due.isoformat()
        assert message.headers["eta"] is None
        message.ack()
        inbox.messages.clear()
    assert min(late) >= -0.002, late
    # One of six has not waited for a processor; a look each second would come later.
    assert min(late) < 0.5, late
    settled(client)


def test_an_eta_put_by_another_wakes_who_sleeps(connect: Connect) -> None:
    inbox = Inbox(connect(), "jobs")
    inbox.nothing_comes()
    late = []
    for number in range(3):
        due = datetime.now(UTC) + timedelta(seconds=0.2)
        publish(connect(), "jobs", number, headers={"eta": due.isoformat()})
        while len(inbox.messages) == number:
            inbox.turn(1.0)
        late.append(time.time() - due.timestamp())
        inbox.nothing_comes()
    # One of three has not waited for a processor; who is not woken sleeps for a second.
    assert min(late) < 0.5, late


@pytest.mark.parametrize(
    "eta",
    [
        "",
        "soon",
        0,
        12.5,
        [],
        {},
        "1970-01-01",
        "0001-01-01T00:00:00+14:00",
        "2020-01-01T00:00:00",
        "2020-01-01T00:00:00Z",
    ],
)
def test_an_eta_that_is_past_or_none_starts_now(connect: Connect, eta: Any) -> None:
    connection = connect()
    publish(connection, "jobs", 1, headers={"eta": eta})
    assert Inbox(connection, "jobs").await_count(1) == [1]


def test_a_requeued_task_does_not_wait_for_its_time_again(connect: Connect) -> None:
    connection = connect()
    due = datetime.now(UTC) + timedelta(seconds=0.05)
    publish(connection, "jobs", 1, headers={"eta": due.isoformat()})
    inbox = Inbox(connection, "jobs")
    inbox.await_count(1)
    inbox.messages[0].requeue()
    inbox.await_count(2)
    assert inbox.messages[1].headers["fairness_eta"] == due.isoformat()
    assert inbox.messages[1].headers["redelivered"]
    inbox.messages[1].ack()


def test_settings_of_two_connections_do_not_mix(connect: Connect) -> None:
    strict = connect()
    loose = connect(fairness={"tiers": {"free": {"concurrency": None}}})
    publish(strict, "jobs", 1, 2, 3, headers=charged("a"))
    Inbox(loose, "jobs").await_count(3)
    assert len({repr(session.settings) for session in sessions()}) == 2


def test_an_unknown_setting_is_said(connect: Connect) -> None:
    connection = connect(fairness={"leas_seconds": 3})
    with pytest.raises(ValueError, match="got: 'leas_seconds', did you mean 'lease_seconds'"):
        publish(connection, "jobs", 1)
