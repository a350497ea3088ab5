"""The connection to Redis: one edge for errors, bounded waits, and answers that are one's own."""

from __future__ import annotations

import os
import time

import pytest
import redis
from redis import exceptions

from celery_fairness.errors import LimiterUnavailable, SettingsError
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Settle, Settled, Verdict
from celery_fairness.store import connection as store_connection
from celery_fairness.store.address import Address, address_from_url
from celery_fairness.store.connection import Connection
from celery_fairness.store.library import library
from celery_fairness.store.readiness import ServerNotReady
from celery_fairness.store.spin import Spin
from tests.support.library import call
from tests.support.proxy import Proxy
from tests.support.waiting import at_most, eventually

TIMEOUT_SECONDS = 0.2


PREFIX = "{test}:"


@pytest.fixture
def connect(redis_url):
    made = []

    def make(url=redis_url, **options):
        made.append(Connection(address_from_url(url), **{"timeout_seconds": 2.0, **options}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def release(connection):
    """The smallest call that writes: nothing is held, so nothing is released."""
    return calls.read_settle(connection.run(*end_of("l2")))


def end_of(lease):
    """The call that ends a lease."""
    return calls.SETTLE, PREFIX, calls.settle_args([Settle(lease, Verdict.DONE)], Rules())


EVERY_ERROR = [
    value
    for value in vars(exceptions).values()
    if isinstance(value, type) and issubclass(value, Exception)
]
#: Raised by pipelines and locks only, or not an end of the call.
NOT_ASKED_FOR = {
    "ChildDeadlockedError",
    "CrossSlotTransactionError",
    # Raised by redis-py's client of a cluster.
    "RedisClusterException",
    "SlotNotCoveredError",
    "IncorrectPolicyType",
    "InvalidPipelineStack",
    # The call goes on at the server that it names.
    "MovedError",
}
ERRORS = [error for error in EVERY_ERROR if error.__name__ not in NOT_ASKED_FOR]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_of_redis_py_is_translated(connect, monkeypatch, error):
    connection = connect("redis://:hunter2@nowhere:1/0")
    made = error.__new__(error)
    Exception.__init__(made, "AUTH hunter2 failed")

    def fail(parts):
        raise made

    monkeypatch.setattr(connection, "_call", fail)
    for ask in (lambda: connection.read("GET", "k"), lambda: release(connection)):
        with pytest.raises(LimiterUnavailable) as caught:
            ask()
        assert caught.value.address == "redis://nowhere:1/0"
        assert caught.value.__cause__ is made
        assert "hunter2" not in f"{caught.value} {caught.value!r} {caught.value.args}"


@pytest.mark.parametrize("whose", ["redis", "fairredis"])
def test_a_server_that_takes_no_commands_now_is_not_one_that_must_be_started(whose):
    connection = Connection(Address(("redis://h:1/0",), of_broker=whose == "fairredis"))
    rejected = str(connection.unavailable(ServerNotReady("NOREPLICAS Not enough good replicas.")))
    assert " takes no commands now (NOREPLICAS Not enough good replicas.): docs/" in rejected
    assert "start it" not in rejected
    away = str(connection.unavailable(ConnectionRefusedError("refused")))
    assert " does not answer (refused): start it, or " in away


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1/0",
        "unix:///run/r.sock",
        "rediss://h/0?ssl_cert_reqs=none",
        "sentinel://a:1;sentinel://b:2?master_name=main",
    ],
)
def test_an_address_is_checked_without_connecting(url):
    connection = Connection(address_from_url(url))
    connection.check()
    connection.close()


@pytest.mark.parametrize("query", ["db=hunter2", "socket_timeout=hunter2", "hunter2=1"])
def test_an_address_that_redis_py_cannot_read_is_a_setting_that_cannot_be_meant(query):
    with pytest.raises(SettingsError) as caught:
        Connection(address_from_url(f"redis://h/?{query}")).check()
    assert str(caught.value) == (
        "redis_url: expected an address and options that redis-py can read, got: redis://h/"
    )
    # What redis-py said may hold a part of the password.
    assert caught.value.__suppress_context__


def test_nobody_there_is_said_with_the_next_step(connect):
    with pytest.raises(LimiterUnavailable) as caught:
        connect("redis://127.0.0.1:1/0").read("PING")
    assert str(caught.value).startswith("the limiter's Redis at redis://127.0.0.1:1/0 does not ")
    assert "start it, or set FAIRNESS_REDIS_URL" in str(caught.value)


def test_a_library_that_the_server_forgot_is_loaded_again(connect, redis_server):
    connection = connect()
    with redis_server.client() as client:
        for _ in range(2):
            client.function_flush()
            assert release(connection) == [Settled.LATE]
            assert release(connection) == [Settled.LATE]
        calls = client.info("commandstats")
        (found,) = client.function_list()
    # Once for each time that it was forgotten, not more.
    assert calls["cmdstat_function|load"]["calls"] == 2
    assert library().name.encode() in found


def test_a_lost_connection_is_made_again_once(connect, redis_server):
    patient, hasty = connect(), connect(retries=0)
    for connection in (patient, hasty):
        assert connection.read("PING") == "PONG"
    with redis_server.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert patient.read("PING") == "PONG"
    with pytest.raises(LimiterUnavailable):
        hasty.read("PING")
    assert hasty.read("PING") == "PONG"


@pytest.mark.parametrize(("retries", "waits"), [(0, 1), (1, 2)])
def test_a_server_that_hangs_costs_a_bounded_wait(connect, redis_server, retries, waits):
    connection = connect(timeout_seconds=TIMEOUT_SECONDS, retries=retries)
    assert release(connection) == [Settled.LATE]
    redis_server.pause()
    try:
        began_at = time.monotonic()
        with pytest.raises(LimiterUnavailable):
            release(connection)
        waited = time.monotonic() - began_at
    finally:
        redis_server.resume()
    assert TIMEOUT_SECONDS * waits * 0.9 < waited < at_most(TIMEOUT_SECONDS * waits + 1)
    assert release(connection) == [Settled.LATE]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_answer_that_was_not_waited_for_is_not_the_nexts(connect, monkeypatch, error):
    connection = connect()
    assert connection.read("ECHO", "first") == "first"
    used = connection._own.idle[0].connection

    def killed():
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(used, "read_response", killed)
        with pytest.raises(error):
            connection.read("ECHO", "second")
    assert connection.read("ECHO", "third") == "third"


LEASES = "{test}:leases:taken"


def held(redis_server):
    with redis_server.client() as client:
        return client.zcard(LEASES)


@pytest.fixture
def taken(redis_server):
    """One lease, which the tests below end without waiting."""
    with redis_server.client() as client:
        # The epoch is another, so the call enters the lease.
        call(client, calls.RENEW, PREFIX, calls.renew_args([("l1", "taken")], Rules(), 1))
        assert client.zcard(LEASES) == 1
    return end_of("l1")


def test_a_posted_call_runs_at_once_and_its_answer_is_not_the_nexts(connect, redis_server, taken):
    connection = connect()
    release(connect())
    connection.read("PING")
    connection.post(*taken)
    assert connection.read("ECHO", "next") == "next"
    assert held(redis_server) == 0
    connection.post(*taken)
    connection.post(*taken)
    assert release(connection) == [Settled.LATE]
    assert connection.read("ECHO", "next") == "next"
    assert len(connection._own.idle) == 1


def test_the_first_posted_call_is_waited_for(connect, redis_server, taken):
    connection = connect()
    connection.read("PING")
    with redis_server.client() as client:
        client.function_flush()
    connection.post(*taken)
    assert held(redis_server) == 0


def test_a_posted_call_waits_for_nothing(connect, redis_server, taken):
    patience = at_most(10.0)
    connection = connect(timeout_seconds=patience)
    release(connection)
    redis_server.pause()
    try:
        began_at = time.monotonic()
        connection.post(*taken)
        waited = time.monotonic() - began_at
    finally:
        redis_server.resume()
    assert waited < patience / 2
    assert connection.read("PING") == "PONG"
    assert held(redis_server) == 0


def test_a_quiet_connection_is_waited_for(connect, monkeypatch, redis_server, taken):
    monkeypatch.setattr(store_connection, "TRUST_SECONDS", -1.0)
    connection = connect()
    connection.read("PING")
    with redis_server.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    connection.post(*taken)
    assert held(redis_server) == 0


def test_a_posted_call_that_the_server_forgot_is_run_by_the_next_call(connect, redis_server, taken):
    connection = connect()
    release(connection)
    with redis_server.client() as client:
        client.function_flush()
    connection.post(*taken)
    assert connection.read("ECHO", "next") == "next"
    assert held(redis_server) == 0


@pytest.mark.parametrize("follow_up", ["run", "post"])
def test_a_posted_call_that_the_wire_lost_is_run_by_the_next_call(
    connect, redis_server, taken, follow_up
):
    release(connect())
    with Proxy(redis_server.port) as wire:
        connection = connect(wire.url(redis_server.url))
        release(connection)
        wire.hang()
        connection.post(*taken)
        wire.cut()
        wire.resume()
        assert held(redis_server) == 1
        getattr(connection, follow_up)(*end_of("l2"))
        assert held(redis_server) == 0


def test_a_server_that_is_gone_after_a_posted_call_is_said_once(connect, redis_server, taken):
    with Proxy(redis_server.port) as wire:
        connection = connect(wire.url(redis_server.url), retries=1)
        release(connection)
        connection.post(*taken)
        wire.refuse()
        with pytest.raises(LimiterUnavailable) as raised:
            connection.run(*end_of("l2"))
        assert str(raised.value).count("does not answer") == 1


def test_a_posted_call_that_ends_with_its_greenlet_leaves_no_connection_open(
    connect, monkeypatch, redis_server, taken
):
    connection = connect()
    release(connection)

    def end(*_):
        raise GeneratorExit

    with redis_server.client(decode_responses=True) as client:
        client.function_flush()
        connection.post(*taken)
        monkeypatch.setattr(connection, "load_library", end)
        with pytest.raises(GeneratorExit):
            connection.post(*taken)

        def one_is_left():
            names = [each["name"] for each in client.client_list()]
            assert names.count("celery_fairness") == 1

        eventually(one_is_left)


def test_a_posted_call_on_a_dead_connection_is_sent_on_another(connect, redis_server, taken):
    connection = connect()
    release(connection)
    connection._own.idle[0].connection.disconnect()
    connection.post(*taken)
    assert connection.read("PING") == "PONG"
    assert held(redis_server) == 0


def test_nobody_there_for_a_posted_call_is_said_where_it_waits(connect, taken):
    with pytest.raises(LimiterUnavailable):
        connect("redis://127.0.0.1:1/0").post(*taken)


def test_an_error_of_the_server_leaves_the_connection_good(connect):
    connection = connect()
    connection.read("SET", "{test}:text", "x")
    with pytest.raises(LimiterUnavailable, match="WRONGTYPE"):
        connection.read("HGETALL", "{test}:text")
    assert len(connection._own.idle) == 1
    assert connection.read("GET", "{test}:text") == "x"


def test_a_forked_child_leaves_its_parents_connection_alone(connect):
    connection = connect()
    parents = connection.read("CLIENT", "ID")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(connection.read("CLIENT", "ID")).encode())
        finally:
            os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    childs = int(os.read(reading, 100))
    os.close(reading)
    os.close(writing)
    assert childs != parents
    # And it is still good: the child neither used it nor ended it.
    assert connection.read("CLIENT", "ID") == parents


def test_what_is_sent_arrives_as_it_is(connect):
    connection = connect()
    for text in ("", "a\r\nb", "\x00", "Größe", "🦔", "$5\r\nhello\r\n", " "):
        assert connection.read("ECHO", text) == text
    assert connection.read("ECHO", 2**63) == str(2**63)


def test_the_connection_says_whose_it_is(connect, redis_server):
    connect().read("PING")
    with redis_server.client() as client:
        assert "celery_fairness" in {each["name"] for each in client.client_list()}


def test_after_closing_it_can_be_used_again(connect):
    connection = connect()
    first = connection.read("CLIENT", "ID")
    connection.close()
    connection.close()
    assert connection.read("CLIENT", "ID") != first


def test_a_sentinel_group_is_asked_for_its_master():
    address = address_from_url("sentinel://:pw@a:1/3;sentinel://b:2?master_name=main")
    client = Connection(address, timeout_seconds=0.5)._sentinel_client()
    assert isinstance(client, redis.Redis)
    pool = client.connection_pool
    assert pool.service_name == "main"
    hosts = [s.connection_pool.connection_kwargs["host"] for s in pool.sentinel_manager.sentinels]
    assert hosts == ["a", "b"]
    assert (pool.connection_kwargs["db"], pool.connection_kwargs["password"]) == (3, "pw")
    assert pool.connection_kwargs["socket_timeout"] == 0.5


def test_a_client_that_was_given_its_pool_has_no_connection_left_after_the_close(redis_url):
    options = {"client_name": "given", "protocol": 2}
    pool = redis.ConnectionPool.from_url(redis_url, **options)
    connection = Connection(
        address_from_url(redis_url), make=lambda: redis.Redis(connection_pool=pool)
    )

    def open_now():
        with redis.Redis.from_url(redis_url) as other:
            return sum(each["name"] == "given" for each in other.client_list())

    for _ in range(2):
        release(connection)
        assert open_now() == 1
        connection.close()
        assert open_now() == 0


def test_an_answer_is_looked_for_before_it_is_slept_for(connect, monkeypatch):
    looked = []
    monkeypatch.setattr(Spin, "wait", lambda _, connection: looked.append(connection))
    connection = connect()
    for _ in range(2):
        release(connection)
    (line,) = connection._own.idle
    assert looked == [line.connection] * len(looked)
    assert len(looked) >= 2
