"""The process harness itself: real workers of plain Celery, killed and restarted."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import kombu
import psycopg
import pytest
import redis
from celery import Celery
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.fork_server import ForkServer
from tests.support.nodes import RabbitNode, RedisNode, WorkerDied, WorkerNode
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer, ReservedPort
from tests.support.waiting import at_most, eventually

APP = "tests.support.plain_app"
RESULT_SECONDS = at_most(20)


@pytest.fixture
def client(redis_url: str) -> Iterator[Celery]:
    """A producer with the same task names; its broker is set by the test."""
    app = Celery("client", broker=redis_url, backend=redis_url, set_as_current=False)
    yield app
    app.close()
    app.backend.client.close()


def result_of(app: Celery, name: str, *args: int) -> int:
    return app.send_task(f"{APP}.{name}", args).get(timeout=RESULT_SECONDS)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_worker_runs_a_task_on_every_pool(client, start_worker, pool):
    worker = start_worker(APP, pool=pool)
    assert result_of(client, "add", 2, 3) == 5
    assert len(worker.children()) == (2 if pool == "prefork" else 0)


def test_a_worker_ends_in_order(start_worker):
    worker = start_worker(APP)
    assert worker.terminate() == 0
    worker.process.assert_gone()


@pytest.mark.parametrize("broker", ["redis", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def test_a_killed_worker_comes_back(request, client, start_worker, redis_url, broker):
    broker_url = redis_url if broker == "redis" else request.getfixturevalue("rabbit_url")
    client.conf.broker_url = broker_url
    worker = start_worker(APP, env={"CELERY_BROKER_URL": broker_url})
    pool = worker.children()
    assert len(pool) == 2
    assert result_of(client, "whoami") in pool

    worker.kill()
    assert worker.exit_code == -signal.SIGKILL
    assert worker.children() == []
    worker.process.assert_gone()

    worker.restart()
    assert result_of(client, "whoami") in worker.children()
    assert set(worker.children()).isdisjoint(pool)


def test_only_the_worker_that_was_killed_is_gone(client, start_worker):
    killed, other = start_worker(APP), start_worker(APP)
    killed.kill()
    assert result_of(client, "whoami") in other.children()


def test_the_queues_of_a_worker_are_chosen(client, start_worker):
    start_worker(APP, queues=["special"])
    answer = client.send_task(f"{APP}.add", (1, 2), queue="special")
    assert answer.get(timeout=RESULT_SECONDS) == 3


def test_a_worker_that_cannot_start_shows_its_log(start_worker):
    with pytest.raises(WorkerDied, match="no_such_module"):
        start_worker("tests.support.no_such_module")


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_forked_worker_ends_with_the_process_that_forked_it(redis_url, pool):
    server = ForkServer(gevent=pool == "gevent")
    worker = WorkerNode.launch(
        APP,
        pool=pool,
        concurrency=1,
        queues=None,
        env={"CELERY_BROKER_URL": redis_url, "CELERY_RESULT_BACKEND": redis_url},
        args=(),
        fork_server=server,
    ).wait_ready()
    server.stop()
    # A loop of gevent turns every two seconds, and a warm shutdown takes longer on a busy machine.
    worker.process.assert_gone(RESULT_SECONDS)
    assert "Warm shutdown" in worker.log_text()
    worker.process.discard_log()


def test_a_worker_outlives_a_restart_of_its_redis(start_worker):
    with RedisServer() as server:
        node = RedisNode(server)
        assert node.ready()
        urls = {"CELERY_BROKER_URL": server.url, "CELERY_RESULT_BACKEND": server.url}
        worker = start_worker(APP, env=urls)
        node.kill()
        worker.wait_for_log("Connection to broker lost")
        node.restart()
        with Celery("client", broker=server.url, backend=server.url, set_as_current=False) as app:
            assert result_of(app, "add", 1, 1) == 2
            app.backend.client.close()


def test_a_worker_outlives_a_stop_of_the_rabbit_application(
    client, start_worker, rabbit_server, rabbit_url
):
    assert RabbitNode(rabbit_server).ready()
    client.conf.broker_url = rabbit_url
    worker = start_worker(APP, env={"CELERY_BROKER_URL": rabbit_url})
    rabbit_server.stop_application()
    worker.wait_for_log("Connection to broker lost")
    rabbit_server.start_application()
    assert result_of(client, "add", 1, 1) == 2


def test_closing_all_connections_of_rabbit_is_seen_by_the_worker(
    client, start_worker, rabbit_server, rabbit_url
):
    client.conf.broker_url = rabbit_url
    worker = start_worker(APP, env={"CELERY_BROKER_URL": rabbit_url})
    assert rabbit_server.close_connections() >= 1
    worker.wait_for_log("Connection to broker lost")
    assert result_of(client, "add", 1, 1) == 2


def test_a_durable_queue_of_rabbit_survives_its_death(rabbit_server, rabbit_url):
    queue = kombu.Queue("kept", durable=True, queue_arguments={"x-queue-type": "quorum"})
    with kombu.Connection(rabbit_url) as connection, connection.channel() as channel:
        queue(channel).declare()
        connection.Producer(channel).publish("x", routing_key="kept", delivery_mode=2)
        eventually(lambda: queue(channel).queue_declare(passive=True).message_count == 1)
    rabbit_server.kill()
    rabbit_server.start()
    with kombu.Connection(rabbit_url) as connection, connection.channel() as channel:
        assert queue(channel).get() is not None


def test_rabbit_says_how_many_messages_its_queues_have(rabbit_server, rabbit_url):
    with kombu.Connection(rabbit_url) as connection:
        for name, amount in (("some of it", 2), ("none", 0)):
            queue = connection.SimpleQueue(name)
            for _ in range(amount):
                queue.put("x")
        # One is delivered, and not acknowledged.
        assert connection.SimpleQueue("some of it").get(timeout=RESULT_SECONDS)
        eventually(lambda: rabbit_server.messages()["some of it"] == 2)
        assert rabbit_server.messages()["none"] == 0


def test_a_worker_behind_a_cut_wire_comes_back(client, start_worker, redis_server, redis_url):
    with Proxy(redis_server.port) as wire:
        worker = start_worker(APP, env={"CELERY_BROKER_URL": wire.url(redis_url)})
        wire.refuse()
        worker.wait_for_log("Connection to broker lost")
        wire.resume()
        assert result_of(client, "add", 1, 1) == 2
        worker.terminate()


@pytest.fixture
def wire(redis_server, redis_url) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as started:
        yield started


@pytest.fixture
def wired(wire, redis_url) -> Iterator[Redis]:
    """A client through the wire that waits 0.3 s and never retries."""
    options = {"protocol": 2, "socket_timeout": 0.3, "retry": Retry(NoBackoff(), 0)}
    with Redis.from_url(wire.url(redis_url), **options) as client:
        assert client.ping()
        yield client


def test_a_wire_passes_large_values_unchanged(wired):
    value = bytes(range(256)) * 20_000
    wired.set("large", value)
    assert wired.get("large") == value


def test_a_cut_breaks_what_is_there_and_lets_new_connections_in(wire, wired):
    before = wired.client_id()
    assert wire.connections == 1
    wire.cut()
    assert wire.connections == 0
    assert wired.client_id() != before


def test_a_wire_that_rejects_lets_nobody_in_until_resumed(wire, wired):
    wire.refuse()
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            wired.ping()
    wire.resume()
    assert wired.ping()


def test_a_hanging_wire_is_silent_and_passes_on_what_it_held(wire, wired, redis_server):
    wire.hang()
    with pytest.raises(redis.TimeoutError):
        wired.set("held", "passed on")
    with redis_server.client(decode_responses=True) as direct:
        assert direct.get("held") is None
        assert wire.connections == 1
        wire.resume()
        # redis-py closed its side after the timeout; what it had sent arrives all the same.
        eventually(lambda: direct.get("held") == "passed on")
    assert wired.ping()


def seconds_of(call):
    begun = time.perf_counter()
    assert call()
    return time.perf_counter() - begun


def test_a_slow_wire_takes_its_time_each_way_and_changes_nothing(redis_server, redis_url):
    value = bytes(range(256)) * 2_000
    with Proxy(redis_server.port, delay_seconds=0.02) as slow, Proxy(redis_server.port) as quick:
        took = {}
        for name, wire in (("slow", slow), ("quick", quick)):
            with Redis.from_url(wire.url(redis_url), protocol=2) as client:
                client.set("large", value)
                assert client.get("large") == value
                # The quickest of several, because a busy machine makes any of them slow.
                took[name] = min(seconds_of(client.ping) for _ in range(20))
    assert took["slow"] >= 0.04
    assert took["quick"] < took["slow"]


def test_a_wire_to_nowhere_closes_its_clients():
    reserved = ReservedPort()
    with Proxy(reserved.number) as wire:
        client = Redis(port=wire.port, protocol=2, retry=Retry(NoBackoff(), 0))
        with client, pytest.raises(redis.ConnectionError):
            client.ping()
    reserved.release()


def test_postgres_answers(postgres_server):
    with psycopg.connect(postgres_server.dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
