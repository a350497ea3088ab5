"""The function library: who loads it, what a server without it means, and two versions at once."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kombu.exceptions import OperationalError
from redis import Redis
from redis.exceptions import RedisError

from celery_fairness import Fairness, Tier
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Settle, Verdict
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from celery_fairness.store.library import FLOOR, RIGHTS, build, library, load
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.lua.dispatching import Dispatch
from tests.support.library import call
from tests.support.parts import parts_of
from tests.support.redis_server import RedisServer
from tests.support.rights import rights_of
from tests.support.shop import make_app
from tests.support.waiting import at_most, eventually

pytestmark = pytest.mark.redis

#: A module that Python imports first.
NEXT_VERSION = """
from celery_fairness.store import library as module
library = module.build({"DUE_AT_MOST": 17})
module.library = lambda: library
"""
BOTH = pytest.mark.parametrize("broker", ["fairredis", "redis"])


def start(shop: Shop) -> subprocess.CompletedProcess[str]:
    """Start a worker that is expected to end."""
    return shop.command("worker", "-P", "solo")


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server whose users and commands a test may change."""
    with RedisServer(directory=tmp_path) as server:
        yield server


@BOTH
@pytest.mark.parametrize(
    ("rights", "problem"),
    [
        ("-function -fcall", f"the user may not load functions, grant {RIGHTS}"),
        ("-fcall", "the user may not call functions on the keys {fairness}:*, grant +fcall ~{"),
        ("resetkeys ~celery*", "grant +fcall ~{fairness}:*"),
    ],
)
def test_a_user_who_may_not_use_the_library_ends_the_start_with_the_rights_that_it_needs(
    own_server: RedisServer, make_shop: Callable[..., Shop], broker: str, rights: str, problem: str
) -> None:
    with own_server.client() as client:
        client.execute_command(f"ACL SETUSER default {rights}")
    ended = start(on(own_server, make_shop, broker))
    assert ended.returncode == 69
    assert problem in ended.stderr
    assert own_server.url in ended.stderr


def on(server: RedisServer, make_shop: Callable[..., Shop], broker: str) -> Shop:
    shop = make_shop("redis")
    shop.env = {
        name: re.sub(r"redis://127.0.0.1:\d+", server.url.rsplit("/", 1)[0], value)
        for name, value in shop.env.items()
    }
    if broker == "fairredis":
        shop.env = {
            name: value.replace("redis://", "fairredis://") if "BROKER" in name else value
            for name, value in shop.env.items()
        }
    return shop


def test_a_full_server_without_the_library_is_named(own_server: RedisServer) -> None:
    with own_server.client(decode_responses=True) as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(Exception, match="memory is full and the library cf_"):
            load(client.execute_command)


def test_a_foreign_text_under_the_name_is_named(own_server: RedisServer) -> None:
    name = library().name
    foreign = f"#!lua name={name}\nredis.register_function('f', function() return 1 end)"
    with own_server.client() as client:
        client.function_load(foreign)
        with pytest.raises(Exception, match=f"FUNCTION DELETE {name}"):
            load(client.execute_command)


@BOTH
def test_a_server_without_functions_ends_the_start_with_the_versions_that_have_them(
    tmp_path: Path, make_shop: Callable[..., Shop], broker: str
) -> None:
    # An older server answers in the same way.
    with RedisServer(directory=tmp_path, args=("--rename-command", "FUNCTION", "")) as server:
        ended = start(on(server, make_shop, broker))
        assert ended.returncode == 69
        assert f"{server.url}: the server has no functions, expected {FLOOR}" in ended.stderr


def test_two_installations_that_call_in_turns_share_nothing(memory: Redis) -> None:
    """One asks for the highest priority of a queue, which makes claims keep an index; one not."""
    first, second = Dispatch(memory), Dispatch(memory)
    seen = {}
    for turn in range(4):
        for prefix, it, scope in (("{a}:", first, "queue"), ("{b}:", second, "tenant")):
            it.run = lambda verb, args, prefix=prefix: call(memory, verb, prefix, args)
            for user in ("a", "a", "b"):
                it.put(f"{user}{turn}", rank=turn)
            rules = it.rules.__class__(priority_scope=scope)
            it.claim(1, rules=rules)
            seen[prefix] = sorted(memory.keys(f"{prefix}ranked*"))
    assert memory.hget("{a}:clock", "ranked") == "1"
    assert memory.hget("{b}:clock", "ranked") is None
    assert seen["{b}:"] == []


def test_two_versions_work_side_by_side(fair_shop: Shop, memory: Redis, tmp_path: Path) -> None:
    """A rolling upgrade: a worker and a producer of the next version beside ours."""
    (tmp_path / "sitecustomize.py").write_text(NEXT_VERSION)
    newer = {"PYTHONPATH": str(tmp_path)}
    fair_shop.worker(pool="threads", concurrency=1)
    fair_shop.worker(pool="threads", concurrency=1, env=newer)
    results = [fair_shop.send("work", user=f"u{n % 3}") for n in range(30)]
    assert [each.get(timeout=RESULT_SECONDS) for each in results] == ["done"] * 30
    names = {row[1] for row in memory.execute_command("FUNCTION LIST")}
    # Other tests may have left libraries of theirs on this server.
    assert names >= {library().name, build({"DUE_AT_MOST": 17}).name}
    assert set(fair_shop.runs().values()) == {1}


def test_another_schema_is_rejected(fair_shop: Shop, memory: Redis) -> None:
    limiter = parts_of(fair_shop.fairness).limiter
    memory.hset(f"{limiter.prefix}clock", mapping={"schema": "99", "logical": 1, "seen": 1})
    with pytest.raises(LimiterUnavailable, match="SCHEMA the tables have the schema 99"):
        limiter.renew([])
    with pytest.raises(Exception, match="SCHEMA"):
        fair_shop.send("work", user="42")


def test_a_running_worker_ends_at_another_schema(fair_shop: Shop, memory: Redis) -> None:
    worker = fair_shop.worker(pool="threads", concurrency=1)
    memory.hset(f"{parts_of(fair_shop.fairness).limiter.prefix}clock", "schema", "99")
    eventually(lambda: worker.exit_code == 1, timeout_seconds=at_most(20))
    assert "SCHEMA the tables have the schema 99" in worker.log_text()


def fairness(shop: Shop, *command: str) -> subprocess.CompletedProcess[str]:
    return shop.command("fairness", *command)


def test_a_person_looks_at_libraries_and_deletes_one(fair_shop: Shop, memory: Redis) -> None:
    old = build({"DUE_AT_MOST": 5})
    load(memory.execute_command, old)
    parts_of(fair_shop.fairness).limiter.renew([])
    call(memory, calls.SIZE, parts_of(fair_shop.fairness).limiter.prefix, calls.size_args("q"))
    rows = json.loads(fairness(fair_shop, "library", "--json").stdout)
    ours, other = (row for row in rows if row["name"] in (library().name, old.name))
    assert (ours["name"], ours["current"], other["name"]) == (library().name, True, old.name)
    assert ours["used"] is not None
    assert other["used"] is None
    assert "never here" in fairness(fair_shop, "library").stdout
    assert fairness(fair_shop, "library", "--delete", old.name).returncode == 0
    assert old.name not in fairness(fair_shop, "library").stdout
    assert fairness(fair_shop, "library", "--delete", old.name).returncode == 1
    assert fairness(fair_shop, "library", "--delete", "mine").returncode == 2


def test_the_listed_rights_are_enough(
    own_server: RedisServer, make_shop: Callable[..., Shop]
) -> None:
    shop = on(own_server, make_shop, "fairredis")
    with own_server.client(decode_responses=True) as client:
        for who in ("worker", "producer"):
            # The shop has queues beside celery, and the user names every queue.
            rights = [*rights_of(who), "~analysis_*"]
            client.execute_command("ACL", "SETUSER", who, "reset", "on", ">pw", *rights)
        broker = shop.env["CELERY_BROKER_URL"]
        as_user = {who: broker.replace("://", f"://{who}:pw@") for who in ("worker", "producer")}
        shop.worker(env={"CELERY_BROKER_URL": as_user["worker"]}, pool="threads", concurrency=1)
        operator = make_app({**shop.env, "CELERY_BROKER_URL": as_user["worker"]})
        assert Fairness.of(operator).check(repair=True).findings == ()
        producer = make_app({**shop.env, "CELERY_BROKER_URL": as_user["producer"]})
        sent = [
            producer.tasks["shop.work"].apply_async((), {"user": "42"}, **options)
            for options in ({}, {"countdown": 0.1})
        ]
        assert [each.get(timeout=RESULT_SECONDS) for each in sent] == ["done", "done"]
        assert client.execute_command("ACL", "LOG") == []


def test_a_producer_puts_every_kind_of_task_and_neither_steers_nor_reads(
    own_server: RedisServer, make_shop: Callable[..., Shop]
) -> None:
    shop = on(own_server, make_shop, "fairredis")
    queues = {"celery": {"global_limit": 5, "max_waiting": 100}}
    operator = Fairness.of(make_app({**shop.env, "SHOP_FAIRNESS": json.dumps({"queues": queues})}))
    rights = rights_of("producer")
    with own_server.client(decode_responses=True) as client:
        client.execute_command("ACL", "SETUSER", "producer", "reset", "on", ">pw", *rights)
        operator.tenants.publish_tiers([Tier("free", 1, max_waiting=50), Tier("pro", 3)])
        operator.tenants.pause("petra")
        operator.events.trace(600)
        url = shop.env["CELERY_BROKER_URL"].replace("://", "://producer:pw@")
        app = make_app({**shop.env, "CELERY_BROKER_URL": url})
        for options in (
            {},
            {"countdown": 60},
            {"expires": 60},
            {"priority": 9},
            {"task_id": "twice"},
        ):
            for user in ("petra", "42"):
                app.tasks["shop.work"].apply_async((), {"user": user}, **options)
        assert client.execute_command("ACL", "LOG") == []

        fairness, broker = Fairness.of(app), app.connection_for_write().default_channel.client
        replaced = f"#!lua name={library().name}\nredis.register_function('x', function() end)"
        tables = {
            key: client.dump(key) for key in client.keys("{fairness}:*") if "clock" not in key
        }
        for rejected in (
            lambda: fairness.tenants.pause("42"),
            lambda: fairness.tenants.resume("petra"),
            lambda: fairness.tenants.override("42", concurrency=1000),
            lambda: fairness.tenants.set_tier("42", "pro"),
            lambda: fairness.tenants.publish_tiers([Tier("free", None)]),
            lambda: fairness.tenants.purge("petra"),
            lambda: fairness.limits.cool_down("api", for_seconds=60),
            lambda: fairness.queues.set_limit("celery", global_limit=1),
            lambda: fairness.tasks.cancel("twice"),
            lambda: app.control.purge(),
            lambda: app.control.broadcast("shutdown"),
            lambda: Dispatch(broker).claim(queues=["celery"]),
            lambda: broker.hgetall("{fairness}:messages"),
            lambda: broker.delete("{fairness}:tasks"),
            lambda: broker.flushdb(),
            lambda: broker.function_load(replaced, replace=True),
        ):
            with pytest.raises((LimiterUnavailable, RedisError, OperationalError)):
                rejected()
        left = {key: client.dump(key) for key in client.keys("{fairness}:*") if "clock" not in key}
        assert left == tables


def test_a_running_worker_waits_for_a_library_that_cannot_be_loaded(
    own_server: RedisServer, make_shop: Callable[..., Shop]
) -> None:
    shop = on(own_server, make_shop, "fairredis")
    worker = shop.worker(pool="threads", concurrency=1)
    with own_server.client() as client:
        client.config_set("maxmemory", 1)
        client.function_flush()
        worker.wait_for_log("memory is full and the library")
        client.config_set("maxmemory", 0)
    producer = make_app(shop.env)
    assert producer.tasks["shop.work"].apply_async((), {"user": "42"}).get(RESULT_SECONDS) == "done"


@BOTH
def test_tables_of_another_schema_end_a_start(
    own_server: RedisServer, make_shop: Callable[..., Shop], broker: str
) -> None:
    shop = on(own_server, make_shop, broker)
    with own_server.client() as client:
        client.hset(f"{parts_of(shop.fairness).limiter.prefix}clock", mapping={"schema": "99"})
    ended = start(shop)
    assert ended.returncode == 69
    assert "SCHEMA the tables have the schema 99" in ended.stderr


def test_an_installation_gets_its_schema_with_the_first_call_of_a_worker(
    fair_shop: Shop, memory: Redis
) -> None:
    limiter = parts_of(fair_shop.fairness).limiter
    memory.hset(f"{limiter.prefix}clock", mapping={"logical": 1, "seen": 1, "epoch": 1})
    limiter.renew([])
    assert memory.hget(f"{limiter.prefix}clock", "schema") == "2"


def test_a_release_that_was_posted_is_not_lost_with_the_library(
    own_server: RedisServer, make_shop: Callable[..., Shop]
) -> None:
    shop = on(own_server, make_shop, "redis")
    connection = Connection(address_from_url(own_server.url))
    prefix = parts_of(shop.fairness).limiter.prefix
    end = calls.settle_args([Settle("l1", Verdict.DONE)], Rules())
    with own_server.client() as client:
        connection.run(calls.SETTLE, prefix, end)
        client.function_flush()
        connection.post(calls.SETTLE, prefix, end)
        client.config_set("maxmemory", 1)
        with pytest.raises(LimiterUnavailable, match="memory is full"):
            connection.read("PING")
        client.config_set("maxmemory", 0)
    connection.close()
