"""An installation with several partitions: turns across them, bells, times and ends."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import Redis

from celery_fairness.errors import SettingsError
from celery_fairness.store.partitions import Partitions
from tests.support.waiting import eventually
from tests.transport.conftest import (
    BATCHES,
    Connect,
    Inbox,
    charged,
    drain,
    median_wait,
    publish,
    spread_of,
    tenants_of,
)

pytestmark = [pytest.mark.redis, pytest.mark.one_redis("partitions")]

COUNT = 8
#: No tier's limit is in the way of the turns.
SEVERAL: dict[str, Any] = {"partitions": COUNT, "tiers": "unlimited"}
LIMITED: dict[str, Any] = {"partitions": COUNT}
PLACES = Partitions("fairness", count=COUNT)


@pytest.mark.parametrize("prefetch", [1, 4, 20])
def test_tenants_of_all_partitions_take_turns(connect: Connect, prefetch: int) -> None:
    connection = connect(fairness=SEVERAL)
    # Half of the tenants are in one partition. To take partitions in turn would favour the others.
    tenants = tenants_of(PLACES, 0, 4) + [
        tenants_of(PLACES, partition, 1)[0] for partition in range(1, 5)
    ]
    for tenant in tenants:
        publish(connection, "jobs", *range(20), headers=charged(tenant))
    inbox = Inbox(connection, "jobs", prefetch_count=prefetch)
    served = drain(inbox, 20 * len(tenants))
    assert Counter(served) == dict.fromkeys(tenants, 20)
    # One worker process is ahead by at most one task more than one ring alone.
    assert spread_of(served, tenants) <= 2


def test_a_newcomer_in_an_idle_partition_has_no_credit(connect: Connect) -> None:
    connection = connect(fairness=SEVERAL)
    old, new = tenants_of(PLACES, 1, 1)[0], tenants_of(PLACES, 2, 1)[0]
    publish(connection, "jobs", *range(60), headers=charged(old))
    inbox = Inbox(connection, "jobs", prefetch_count=1)
    drain(inbox, 40)
    inbox.messages.clear()
    publish(connection, "jobs", *range(10), headers=charged(new))
    served = drain(inbox, 30)
    first = served.index(new)
    assert first <= 2
    # From there they take turns.
    assert abs(served[first : first + 16].count(new) - 8) <= 1


def test_a_partition_that_was_emptied_has_no_credit_either(connect: Connect) -> None:
    connection = connect(fairness=SEVERAL)
    old, new = tenants_of(PLACES, 1, 1)[0], tenants_of(PLACES, 2, 1)[0]
    publish(connection, "jobs", *range(60), headers=charged(old))
    publish(connection, "jobs", *range(20), headers=charged(new))
    inbox = Inbox(connection, "jobs", prefetch_count=1)
    drain(inbox, 50)
    inbox.messages.clear()
    publish(connection, "jobs", *range(10), headers=charged(new))
    served = drain(inbox, 40)
    assert abs(served[:16].count(new) - 8) <= 2


def test_a_task_wakes_a_worker_that_sleeps(connect: Connect) -> None:
    # Without a bell, a look once a second would find it after half a second on average.
    assert median_wait(connect(fairness=SEVERAL)) < 0.2


def test_a_worker_wakes_another_for_the_tasks_that_it_leaves(connect: Connect) -> None:
    first, second = (Inbox(connect(fairness=SEVERAL), "jobs", prefetch_count=1) for _ in range(2))
    for inbox in (first, second):
        inbox.turn(0.01)
        inbox.turn(0.01)
    publish(connect(fairness=SEVERAL), "jobs", 1, 2, headers=charged("a"))
    began = time.monotonic()

    def both_have_one() -> None:
        first.turn(0.01)
        second.turn(0.01)
        assert len(first.messages) == len(second.messages) == 1

    eventually(both_have_one, poll_seconds=0)
    assert time.monotonic() - began < 0.4


@BATCHES
def test_a_batch_rings_the_bells_of_its_partitions(connect: Connect, client: Redis) -> None:
    connection = connect(fairness=SEVERAL)
    producer = connection.Producer()
    with producer.batch():
        for tenant in ("a", "b", "c", "d"):
            producer.publish(tenant, exchange="", routing_key="jobs", headers=charged(tenant))
    numbers = {str(PLACES.of_tenant(tenant)) for tenant in ("a", "b", "c", "d")}
    assert set(client.lrange("{fairness}:bell:new jobs", 0, -1)) == numbers


def test_a_bell_has_each_partition_once(connect: Connect, client: Redis) -> None:
    connection = connect(fairness=SEVERAL)
    inbox = Inbox(connection, "jobs")
    for number in range(5):
        publish(connection, "jobs", number, headers=charged("a"))
        inbox.await_count(number + 1)
        inbox.messages[-1].ack()
    assert client.llen("{fairness}:bell:new jobs") <= 1


def test_a_delayed_task_comes_at_its_time(connect: Connect) -> None:
    connection = connect(fairness=SEVERAL)
    inbox = Inbox(connection, "jobs")
    inbox.turn(0.01)
    eta = datetime.now(UTC) + timedelta(seconds=0.4)
    publish(connection, "jobs", 1, headers={**charged("a"), "eta": eta.isoformat()})
    inbox.await_count(1)
    late = datetime.now(UTC) - eta
    assert timedelta(0) <= late < timedelta(seconds=0.5)


def test_a_tenant_at_its_limit_starts_its_next_task_when_one_ends(connect: Connect) -> None:
    connection = connect(fairness=LIMITED)
    for tenant in ("a", "b", "c"):
        publish(connection, "jobs", 1, 2, 3, headers=charged(tenant))
    inbox = Inbox(connection, "jobs")
    inbox.await_count(3)
    inbox.nothing_comes()
    for count in range(4, 10):
        inbox.messages[count - 4].ack()
        inbox.await_count(count)


class _OfAnotherThread:
    """A connection whose sockets no other thread can wait for, as under gevent."""

    def __getattr__(self, name: str) -> Any:
        raise TypeError("Cannot switch to a different thread")


def test_the_thread_sends_ends_and_rings_over_its_own_connection(
    connect: Connect, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(fairness=LIMITED)
    publish(connection, "jobs", 1, 2, headers=charged("a"))
    inbox = Inbox(connection, "jobs")
    inbox.await_count(1)
    inbox.nothing_comes()
    session = inbox.channel.session
    with monkeypatch.context() as patch:
        patch.setattr(session, "_connection", _OfAnotherThread())
        inbox.messages[0].ack()
        session.renewals.settle_soon()
        eventually(lambda: client.llen("{fairness}:bell:left jobs") == 1)
    inbox.await_count(2)


def test_an_end_that_cannot_be_sent_ends_no_renewal(
    connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(fairness=LIMITED)
    publish(connection, "jobs", 1, 2, headers=charged("a"))
    inbox = Inbox(connection, "jobs")
    inbox.await_count(1)
    session = inbox.channel.session
    with monkeypatch.context() as patch:
        patch.setattr("celery_fairness.scheduler.calls.settle_args", len)
        patch.setattr("celery_fairness.scheduler.calls.claim_args", len)
        inbox.messages[0].ack()
        session.renewals.settle_soon()
        eventually(lambda: "ended tasks could not be sent" in caplog.text)
    session.renewals.settle_soon()
    eventually(lambda: not session.lease_table.has_ends)
    inbox.await_count(2)


def test_tasks_that_a_worker_skips_do_not_keep_it_awake(connect: Connect, client: Redis) -> None:
    connection = connect(fairness=SEVERAL)
    inbox = Inbox(connection, "jobs")
    inbox.channel.serves_worker = True
    session = inbox.channel.session
    session.start(lambda: 4)
    session.task_filter.skip("others")
    for tenant in ("a", "b", "c"):
        publish(connection, "jobs", 1, headers={**charged(tenant), "task": "others", "id": tenant})
    inbox.turn(0.3)
    before = client.info("commandstats")["cmdstat_fcall"]["calls"]
    ends_at = time.monotonic() + 1.0
    while time.monotonic() < ends_at:
        inbox.turn(0.1)
    called = client.info("commandstats")["cmdstat_fcall"]["calls"] - before
    assert not inbox.messages
    # It looks at each partition once a second, and a few times more at those with skipped tasks.
    assert called < 20 * COUNT
    publish(connection, "jobs", 2, headers={**charged("d"), "task": "own", "id": "d"})
    inbox.await_count(1)
    session.slots = None


def test_every_operation_on_a_queue_has_all_partitions(connect: Connect) -> None:
    connection = connect(fairness=SEVERAL)
    for number in range(12):
        publish(connection, "jobs", number, headers=charged(f"t{number}"))
    channel = connection.channel()
    assert channel._size("jobs") == 12
    got = [channel.basic_get("jobs", no_ack=True) for _ in range(3)]
    assert None not in got
    assert channel._size("jobs") == 9
    assert channel.queue_purge("jobs") == 9
    assert channel.basic_get("jobs") is None


def test_another_number_of_partitions_is_an_error_with_both_numbers(connect: Connect) -> None:
    publish(connect(fairness=SEVERAL), "jobs", 1)
    for other in (1, 4):
        with pytest.raises(SettingsError, match=rf"expected 8,.* got: {other};"):
            publish(connect(fairness={**SEVERAL, "partitions": other}), "jobs", 1)


def test_a_worker_keeps_the_number_after_lost_memory(connect: Connect, client: Redis) -> None:
    connection = connect(fairness=SEVERAL)
    publish(connection, "jobs", 1)
    client.flushall()
    renewals = connection.channel().session.renewals
    renewals.announce(lambda: "a worker")
    eventually(lambda: client.zcard("{fairness}:workers") == 1)
    assert client.hget("{fairness}:clock", "partitions") == str(COUNT)
    client.flushall()
    renewals.withdraw(connection.channel().session.call)
    assert client.hget("{fairness}:clock", "partitions") == str(COUNT)


def test_a_lost_memory_is_reported_once(
    connect: Connect, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect(fairness=SEVERAL)
    for partition in range(COUNT):
        publish(connection, "jobs", 1, headers=charged(tenants_of(PLACES, partition, 1)[0]))
    inbox = Inbox(connection, "jobs")
    inbox.await_count(COUNT)
    client.flushall()
    renewals = inbox.channel.session.renewals
    reports: list[int] = []
    renewals.on_memory_lost = lambda: reports.append(1)
    for message in inbox.messages[:2]:
        partition = PLACES.of_tenant(message.headers["fairness"]["tenant"])
        renewals.saw_epoch(-1, partition)
    eventually(lambda: any("registered again" in line for line in caplog.messages))
    lines = [line for line in caplog.messages if "lost its memory" in line]
    assert [line.rpartition(" ")[2] for line in lines] == [str(COUNT)]
    eventually(lambda: reports == [1])


def test_an_installation_with_one_partition_gets_no_more(connect: Connect) -> None:
    publish(connect(), "jobs", 1)
    with pytest.raises(SettingsError, match=r"expected 1,.* got: 8;"):
        publish(connect(fairness=SEVERAL), "jobs", 1)


@pytest.mark.parametrize("count", [0, 3, 512, True, "8"])
def test_a_wrong_number_names_what_is_expected(connect: Connect, count: Any) -> None:
    with pytest.raises(SettingsError, match=r"fairness.partitions: expected a power of two"):
        publish(connect(fairness={"partitions": count}), "jobs", 1)
