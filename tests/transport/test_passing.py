"""A channel that passes over kinds of task: what it gets, and what wakes it."""

from __future__ import annotations

import time

import pytest
from kombu import Connection, Exchange
from kombu.common import Broadcast
from kombu.utils import limits
from redis import Redis

from celery_fairness.scheduler.types import SkippedTasks
from celery_fairness.transport.channel import NAP_SECONDS
from celery_fairness.transport.session import sessions
from tests.support.waiting import at_most, eventually
from tests.transport.conftest import Connect, Inbox, charged, leases, publish, settled

pytestmark = pytest.mark.redis


def named(task: str, tenant: str = "") -> dict[str, object]:
    return {"task": task, **(charged(tenant) if tenant else {})}


def claims(client: Redis) -> int:
    """How many functions were called."""
    return client.info("commandstats").get("cmdstat_fcall", {"calls": 0})["calls"]


def turn_until_asleep(inbox: Inbox, client: Redis, count: int = 1) -> None:
    """Turn the loop until so many requests are open that only a bell or time ends."""

    def is_asleep() -> None:
        inbox.turn(0.01)
        assert [each["cmd"] for each in client.client_list() if "b" in each["flags"]] == [
            "brpop"
        ] * count

    eventually(is_asleep, at_most(5.0), poll_seconds=0)


def seconds_until(inbox: Inbox, count: int) -> float:
    """Return how long a worker that sleeps takes to hear of its next message.

    One that does not hear of it looks by itself, a second after it fell asleep.
    """
    begin = time.monotonic()
    inbox.await_count(count)
    return time.monotonic() - begin


@pytest.fixture
def connection(connect: Connect) -> Connection:
    connection = connect()
    assert connection.default_channel.session
    return connection


def test_what_is_passed_over_stays_and_what_is_behind_it_comes(
    connection: Connection, client: Redis
) -> None:
    (session,) = sessions()
    session.task_filter.skip("shop.new")
    for number in range(40):
        publish(connection, "jobs", number, headers=named("shop.new"))
    publish(connection, "jobs", "known", headers=named("shop.known"))
    publish(connection, "jobs", "raw")
    inbox = Inbox(connection, "jobs")
    assert inbox.await_count(2) == ["known", "raw"]
    inbox.nothing_comes()
    assert leases(client) == 2
    session.task_filter.take_again(["shop.new"])
    assert inbox.await_count(18)[2:] == list(range(16))


def test_a_full_queue_that_is_passed_over_does_not_keep_a_worker_awake(
    connection: Connection, client: Redis
) -> None:
    (session,) = sessions()
    session.task_filter.skip("shop.new")
    for number in range(40):
        publish(connection, "jobs", number, headers=named("shop.new", f"t{number}"))
    inbox = Inbox(connection, "jobs")
    turn_until_asleep(inbox, client)
    before = claims(client)
    for _ in range(5):
        inbox.turn(0.05)
    assert claims(client) == before
    # What comes is heard at once all the same; one of three has not waited for a processor.
    took = []
    for number in range(3):
        turn_until_asleep(inbox, client)
        publish(connection, "jobs", "known", headers=named("shop.known"))
        took.append(seconds_until(inbox, number + 1))
    assert min(took) < 0.5


def test_who_passes_a_task_over_wakes_who_takes_it(connect: Connect, client: Redis) -> None:
    # Two homes of one process, as two processes have them.
    first, second = connect(), connect(fairness={"max_deliveries": 7})
    inboxes = [Inbox(first, "jobs"), Inbox(second, "jobs")]
    at_first = inboxes[0].channel.session
    at_first.task_filter.skip("shop.new")
    assert len(sessions()) == 2
    took = []
    for number in range(5):
        # Who waits longest hears first, and that is the one that does not take it.
        turn_until_asleep(inboxes[0], client)
        turn_until_asleep(inboxes[1], client, 2)
        publish(first, "jobs", number, headers=named("shop.new"))
        for _ in range(3):
            inboxes[0].turn(0.02)
        took.append(seconds_until(inboxes[1], number + 1))
        inboxes[1].messages[-1].ack()
    assert min(took) < 0.5
    assert inboxes[0].messages == []


def test_a_stream_of_what_it_passes_over_wakes_a_worker_a_hundred_times_a_second_at_most(
    connection: Connection, client: Redis
) -> None:
    (session,) = sessions()
    session.task_filter.skip("shop.new")
    inbox = Inbox(connection, "jobs")
    turn_until_asleep(inbox, client)
    before, begin = claims(client), time.monotonic()
    for number in range(100):
        publish(connection, "jobs", number, headers=named("shop.new"))
        inbox.turn(0.001)
    # A put is a script too; two more for those that set aside what came while it napped.
    assert claims(client) - before - 100 <= (time.monotonic() - begin) / NAP_SECONDS + 2


def test_a_limited_kind_comes_one_by_one_and_what_is_behind_it_at_once(
    connection: Connection, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(limits, "monotonic", lambda: now)
    (session,) = sessions()
    session.task_filter.limit("shop.slow", 1.0)
    for number in range(3):
        publish(connection, "jobs", number, headers=named("shop.slow"))
    publish(connection, "jobs", "other", headers=named("shop.other"))
    inbox = Inbox(connection, "jobs")
    assert inbox.await_count(2) == [0, "other"]
    inbox.nothing_comes()
    assert leases(client) == 2
    for number in (1, 2):
        now += 1.01
        inbox.await_count(2 + number)
        inbox.nothing_comes()
    assert inbox.bodies == [0, "other", 1, 2]
    for message in inbox.messages:
        message.ack()
    settled(client)


def test_what_a_claim_gives_over_the_limit_goes_back_to_its_place(
    connection: Connection, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    (session,) = sessions()
    inbox = Inbox(connection, "jobs")
    for number in range(3):
        publish(connection, "jobs", number, headers=named("shop.slow"))
    session.task_filter.limit("shop.slow", 0.001)
    # As a claim whose answer was lost before there was a limit.
    monkeypatch.setattr(session.task_filter, "skipped", lambda _: SkippedTasks())
    assert inbox.await_count(1) == [0]
    monkeypatch.undo()
    inbox.nothing_comes()
    eventually(lambda: leases(client) == 1)
    session.task_filter.limit("shop.slow", 0)
    assert inbox.await_count(3) == [0, 1, 2]


def test_a_message_taken_one_by_one_is_not_passed_over(connection: Connection) -> None:
    (session,) = sessions()
    session.task_filter.skip("shop.new")
    publish(connection, "jobs", "it", headers=named("shop.new"))
    message = connection.default_channel.basic_get("jobs")
    assert connection.default_channel.message_to_python(message).payload == "it"


def test_a_broadcast_reaches_each_consumer_if_the_producer_declares_its_exchange(connect) -> None:
    to_all = Exchange("to-all", type="fanout")
    inboxes = [Inbox(connect(), Broadcast("to-all", exchange=to_all)) for _ in range(2)]
    for inbox in inboxes:
        inbox.turn()
    producer = connect().Producer()
    headers = {"task": "shop.reload", "id": "t1"}
    producer.publish("reload", exchange="to-all", routing_key="", headers=headers, declare=[to_all])
    for inbox in inboxes:
        assert inbox.await_count(1) == ["reload"]
