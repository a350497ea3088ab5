"""A Redis that answers "not now" is an outage: nobody ends, nothing is lost, and it goes on."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from celery_fairness import Fairness
from celery_fairness.config.tiers import Tier
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.store.readiness import ServerNotReady
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.fork_server import ForkServer
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer
from tests.support.rejections import ALL, Rejection
from tests.support.shop import make_app
from tests.support.waiting import eventually
from tests.transport.conftest import Connect, Inbox, publish, settled

pytestmark = pytest.mark.redis
#: A producer that tries again once.
ONCE = {"retry": True, "retry_policy": {"max_retries": 1, "interval_start": 0}}


@pytest.fixture
def rejection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rejection]:
    """A server of its own; the parameter is what it answers when it takes no commands."""
    folder = tmp_path / "server"
    folder.mkdir()
    with Rejection(request.param, folder) as made:
        yield made


in_each_state = pytest.mark.parametrize("rejection", ALL, indirect=True)


@in_each_state
def test_a_consumer_goes_on_where_it_was(
    rejection: Rejection,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Claim, wait, settle, renew, put: each is tried again, and each task comes once."""
    caplog.set_level(logging.ERROR)
    url, fairness = f"fair{rejection.url}", {"lease_seconds": 1}
    producer = connect(url, fairness=fairness)
    publish(producer, "jobs", *range(4))
    inbox = Inbox(connect(url, fairness=fairness), "jobs", prefetch_count=2)
    inbox.await_count(2)
    rejection.takes_none()
    inbox.messages[0].ack()
    with pytest.raises(OperationalError, match=rejection.word):
        publish(producer, "jobs", "rejected", **ONCE)
    # It waits on a bell, or its place is free: both are answered by then.
    eventually(lambda: (inbox.turn(), "takes no commands now" in caplog.text)[1], poll_seconds=0)
    eventually(lambda: "could not be renewed" in caplog.text)
    assert inbox.bodies == [0, 1]
    rejection.takes_all()
    for count in (3, 4):
        inbox.await_count(count)
        inbox.messages[count - 2].ack()
    inbox.messages[3].ack()
    with rejection.server.client(decode_responses=True) as client:
        settled(client)
    assert inbox.bodies == [0, 1, 2, 3]
    assert caplog.text.count("takes no commands now") == 1


# While a script runs, a server ends no wait either.
@pytest.mark.parametrize("rejection", sorted({*ALL} - {"BUSY"}), indirect=True)
def test_a_consumer_that_only_waits_stays(
    rejection: Rejection,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    inbox = Inbox(connect(f"fair{rejection.url}"), "jobs")
    inbox.nothing_comes()
    rejection.takes_none()
    eventually(lambda: (inbox.turn(), "takes no commands now" in caplog.text)[1], poll_seconds=0)
    rejection.takes_all()
    publish(connect(f"fair{rejection.url}"), "jobs", 1)
    inbox.await_count(1)
    inbox.messages[0].ack()


@in_each_state
def test_a_connection_that_begins_is_tried_again(rejection: Rejection, connect: Connect) -> None:
    rejection.takes_none()
    connection = connect(f"fair{rejection.url}")
    tries: list[Exception] = []

    def failed(error: Exception, _: float) -> None:
        tries.append(error)
        rejection.takes_all()

    connection.ensure_connection(errback=failed, interval_start=0, max_retries=3)
    assert [rejection.word in str(error) for error in tries] == [True]
    publish(connection, "jobs", 1)
    Inbox(connection, "jobs").await_count(1)


@in_each_state
@pytest.mark.parametrize("scheme", ["redis", "fairredis"])
def test_what_people_ask_and_steer_is_an_outage_too(rejection: Rejection, scheme: str) -> None:
    """Commands, admin and HTTP are these calls."""
    app = make_app({"CELERY_BROKER_URL": rejection.url.replace("redis", scheme, 1)})
    fairness = Fairness.of(app)
    fairness.tenants.publish_tiers([Tier("free", 1), Tier("pro", 3)], source="settings")
    rejection.takes_none()
    calls: list[Callable[[], Any]] = [
        lambda: fairness.tenants.publish_tiers(
            [Tier("free", 2), Tier("pro", 3)], source="settings"
        ),
        lambda: fairness.tenants.set_tier("7", "pro"),
        lambda: fairness.tenants.pause("7"),
        lambda: fairness.limits.override("tenant:7", concurrency=2),
    ]
    try:
        for call in calls:
            with pytest.raises(LimiterUnavailable, match=rejection.word):
                call()
        rejection.takes_all()
        for call in calls:
            call()
    finally:
        fairness.close()
        app.close()


# A replica without its master, too few replicas and a full disk still answer what only reads.
@pytest.mark.parametrize("rejection", ["MASTERDOWN", "BUSY", "LOADING"], indirect=True)
@pytest.mark.parametrize("scheme", ["redis", "fairredis"])
def test_what_only_reads_is_an_outage_too(
    fork_server: Callable[[str], ForkServer], rejection: Rejection, scheme: str
) -> None:
    url = rejection.url.replace("redis", scheme, 1)
    app = make_app({"CELERY_BROKER_URL": url})
    fairness = Fairness.of(app)
    calls: list[Callable[[], Any]] = [
        lambda: list(fairness.events.read()),
        lambda: next(fairness.events.follow()),
        fairness.stats.counters,
        lambda: fairness.limits.inspect("tenant:7"),
    ]
    try:
        rejection.takes_none()
        for call in calls:
            with pytest.raises(LimiterUnavailable, match=rejection.word):
                call()
        command = [sys.executable, "-m", "celery", "-A", "tests.support.shop", "fairness", "status"]
        done = fork_server("prefork").run(command, {**os.environ, "CELERY_BROKER_URL": url})
        assert (done.returncode, rejection.word in done.stderr) == (69, True), done.stderr
        assert "Traceback" not in done.stderr
    finally:
        rejection.takes_all()
        fairness.close()
        app.close()


@pytest.mark.parametrize("rejection", ["READONLY"], indirect=True)
def test_a_master_that_became_a_replica_is_looked_for_anew(
    rejection: Rejection,
    redis_server: RedisServer,
    redis_url: str,
    connect: Connect,
) -> None:
    """Behind the same name another server is the master by then, as after a failover by DNS."""
    with Proxy(rejection.server.port) as name:
        url = "fair" + name.url(rejection.url)
        producer, inbox = connect(url), Inbox(connect(url), "jobs")
        app = make_app({"CELERY_BROKER_URL": name.url(rejection.url)})
        fairness = Fairness.of(app)
        try:
            fairness.tenants.pause("7")
            publish(producer, "jobs", 1)
            inbox.await_count(1)
            inbox.messages[0].ack()
            inbox.nothing_comes()
            # Open connections stay with the server that was the master.
            name.target_port = redis_server.port
            rejection.takes_none()
            publish(producer, "jobs", 2, **ONCE)
            inbox.await_count(2)
            inbox.messages[1].ack()
            fairness.tenants.pause("8")
        finally:
            fairness.close()
            app.close()


@pytest.mark.parametrize("rejection", ["READONLY", "NOREPLICAS", "BUSY"], indirect=True)
def test_a_worker_survives_and_runs_every_task_once(
    rejection: Rejection,
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop(variables={"CELERY_BROKER_URL": f"fair{rejection.url}"})
    worker = shop.worker(pool="prefork", concurrency=2)
    gate = shop.gate_file()
    results = [shop.send("work", user=user, gate=str(gate)) for user in "1123"]
    eventually(lambda: len(shop.runs()) == 2)
    rejection.takes_none()
    gate.touch()
    eventually(lambda: len(shop.ledger("end")) == 2)
    worker.wait_for_log("takes no commands now, tasks wait")
    rejection.takes_all()
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in results}
    assert shop.most_at_once("1") == 1
    assert worker.terminate() == 0
    assert worker.log_text().count("takes no commands now, tasks wait") == 1


@pytest.mark.parametrize("rejection", ["READONLY"], indirect=True)
def test_a_worker_that_starts_meanwhile_waits_for_the_server(
    rejection: Rejection,
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop(variables={"CELERY_BROKER_URL": f"fair{rejection.url}"})
    result = shop.send("work", user="1")
    rejection.takes_none()
    worker = shop.worker(concurrency=1, wait=False)
    worker.wait_for_log("Cannot connect to")
    rejection.takes_all()
    assert result.get(timeout=RESULT_SECONDS) == "done"
    assert "Traceback" not in worker.log_text()
    assert shop.runs() == {result.id: 1}


@pytest.mark.parametrize("rejection", ["READONLY", "NOREPLICAS"], indirect=True)
@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_worker_that_stops_meanwhile_ends_in_order(
    rejection: Rejection, make_shop: Callable[..., Shop], pool: str
) -> None:
    shop = make_shop(variables={"CELERY_BROKER_URL": f"fair{rejection.url}"})
    worker = shop.worker(pool=pool, concurrency=1)
    first = shop.send("work", user="1")
    assert first.get(timeout=RESULT_SECONDS) == "done"
    # An end that Redis has not seen before the worker is gone is a lost worker's task.
    shop.await_held("1", 0)
    rejection.takes_none()
    worker.wait_for_log("takes no commands now, tasks wait")
    assert worker.terminate() == 0
    rejection.takes_all()
    second = shop.send("work", user="1")
    shop.worker(pool=pool, concurrency=1)
    assert second.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {first.id: 1, second.id: 1}


@pytest.mark.parametrize("rejection", ["READONLY", "BUSY"], indirect=True)
def test_a_gate_defers_until_its_server_takes_commands(
    rejection: Rejection,
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop(fairness={"redis_url": rejection.url, "lease_seconds": 2})
    worker = shop.worker(pool="prefork", concurrency=2)
    gate = shop.gate_file()
    running = shop.send("work", user="1", gate=str(gate))
    eventually(lambda: len(shop.runs()) == 1)
    rejection.takes_none()
    waiting = [shop.send("work", user=user) for user in "123"]
    worker.wait_for_log("the limiter's Redis does not answer")
    gate.touch()
    eventually(lambda: len(shop.ledger("end")) == 1)
    rejection.takes_all()
    for result in (running, *waiting):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {result.id: 1 for result in (running, *waiting)}
    assert shop.most_at_once("1") == 1
    assert worker.terminate() == 0


@pytest.mark.parametrize("rejection", ["NOREPLICAS"], indirect=True)
def test_a_script_that_is_rejected_in_a_transaction_is_an_outage(
    rejection: Rejection, connect: Connect
) -> None:
    """kombu keeps the bindings of queues that expire by such scripts."""
    channel = connect(f"fair{rejection.url}").default_channel
    with channel.conn_or_acquire() as client:
        write = client.register_script("return redis.call('SET', KEYS[1], 1)")
        rejection.takes_none()
        with client.pipeline() as pipe:
            write(keys=["written"], client=pipe)
            with pytest.raises(ServerNotReady, match=r"^NOREPLICAS"):
                pipe.execute()
