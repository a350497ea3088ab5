"""The limiter on other forms of Redis: a cluster, Sentinel, a unix socket; and on two brokers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from redis.exceptions import ConnectionError as NotYet

from celery_fairness import Fairness
from celery_fairness.config.settings import build_settings
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Admitted, Job, Lease, Rejected, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler.types import Verdict
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from celery_fairness.store.library import library
from tests.integration.conftest import RABBITMQ, RESULT_SECONDS, Shop
from tests.integration.test_gate_limits import LONG, key_taken
from tests.integration.test_parked import ONE, assert_nothing_parked, await_parked, send
from tests.support.local_process import LocalProcess
from tests.support.parts import parts_of
from tests.support.redis_cluster import Node, RedisCluster
from tests.support.redis_server import HOST, RedisServer, ReservedPort, find_binary
from tests.support.waiting import at_most, eventually

pytestmark = pytest.mark.redis


def holds_a_limit(url: str) -> None:
    """Take, reject, renew, release and inspect through ``url``."""
    connection = Connection(address_from_url(url))
    connection.check()
    limiter = Limiter(connection, build_settings({}))
    first, second = Lease("l1", "tenant:42"), Lease("l2", "tenant:42")
    assert isinstance(limiter.acquire(SlotRequest(first, "42", "free")), Admitted)
    assert isinstance(limiter.acquire(SlotRequest(second, "42", "free")), Rejected)
    assert limiter.renew([first, second]).gone == (second,)
    limiter.publish_tenant("42", "pro")
    assert limiter.published_tenant("42") == "pro"
    limiter.publish_tenant("43", "pro", ends_ms=9_000_000_000_000)
    assert limiter.published_tenant("43") == "pro"
    assert limiter.look("tenant:42", "42", "pro").get("entitled") == "C3"
    assert limiter.release([first, second]) == 1
    assert limiter.counts() == {"rejected:free": 1}
    limiter.close()


@pytest.mark.parametrize("scheme", ["redis", "cluster"])
def test_a_cluster_is_found_from_any_of_its_nodes(cluster: RedisCluster, scheme: str) -> None:
    for node in cluster.nodes[:3]:
        holds_a_limit(f"{scheme}://{HOST}:{node.port}/0")
        cluster.primary().do("FLUSHALL")


def test_the_first_node_that_answers_is_enough(cluster: RedisCluster) -> None:
    closed = ReservedPort()
    holds_a_limit(f"cluster://{HOST}:{closed.number};{cluster.url(seeds=1)}")
    closed.release()


def on_cluster(url: str) -> Fairness:
    return Fairness(
        Celery("shop", broker="memory://", set_as_current=False), {"FAIRNESS_REDIS_URL": url}
    )


@pytest.mark.parametrize("scheme", ["redis", "cluster"])
def test_operators_see_the_node_that_has_the_limits(cluster: RedisCluster, scheme: str) -> None:
    for number, node in enumerate(cluster.nodes):
        node.do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory", number + 2**30)
    expected = cluster.nodes.index(cluster.primary()) + 2**30
    try:
        for node in cluster.nodes[:3]:
            fairness = on_cluster(f"{scheme}://{HOST}:{node.port}/0")
            limiter, limit = parts_of(fairness).limiter, "api|C1;R5/60000|w"
            # The commands that look at the server come first: a node redirects none of them.
            doctor = [each.check for each in fairness.stats.doctor().symptoms]
            # The first two of these depend on the server and the scheme.
            assert [each for each in doctor if each not in ("moves", "replicas")] == [
                *("eviction", "persistence", "workers")
            ]
            for lease in ("l1", "l2"):
                slot = Lease(lease, f"tenant:{lease},api")
                job = Job(lease, "shop.pay", "mail")
                request = SlotRequest(slot, lease, "free", Copy(lease), "next", limit, job=job)
                if isinstance(limiter.acquire(request), Rejected):
                    limiter.park(request, "{}")
            found = fairness.limits.inspect("api")
            assert found.rate is not None
            assert (found.held, found.rate.current_count, found.waiting_count) == (1, 1, 1)
            assert fairness.limits.override("api", concurrency=3).limit == 3
            keys = [each.key for each in fairness.limits.list().items]
            assert keys == ["api", "tenant:l1", "tenant:l2"]
            assert fairness.check().findings == ()
            (memory,) = (
                each.samples
                for each in fairness.stats.metrics()
                if each.metric.name == "fairness_redis_memory_maximum_bytes"
            )
            assert [each.value for each in memory] == [expected]
            fairness.close()
            cluster.primary().do("FLUSHALL")
    finally:
        for node in cluster.nodes:
            node.do("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", 0)


def limiter_of(cluster: RedisCluster, scheme: str, **given: Any) -> Limiter:
    url = f"{scheme}://{HOST}:{cluster.other().port}/0"
    prefix = "{fairness}:"
    connection = Connection(address_from_url(url), prefix=prefix, **given)
    return Limiter(connection, build_settings({}))


def take(limiter: Limiter, lease: str) -> Any:
    return limiter.acquire(SlotRequest(Lease(lease, "tenant:42"), "42", "free"))


@pytest.mark.parametrize("scheme", ["redis", "cluster"])
def test_a_limit_holds_while_its_slot_moves_key_by_key(cluster: RedisCluster, scheme: str) -> None:
    limiter = limiter_of(cluster, scheme, timeout_seconds=0.3)
    assert isinstance(take(limiter, "l1"), Admitted)
    to = cluster.other()
    # A client that followed ASK would find empty tables there.
    to.do("FUNCTION", "LOAD", library().code)
    source, slot = cluster.begin_move(to)
    with pytest.raises(LimiterUnavailable, match="ASK") as caught:
        take(limiter, "l2")
    assert caught.value.is_not_ready
    cluster.end_move(source, to, slot)
    assert isinstance(take(limiter, "l2"), Rejected)
    assert limiter.release([Lease("l1", "tenant:42")]) == 1
    assert isinstance(take(limiter, "l3"), Admitted)
    limiter.close()


def test_a_command_waits_until_a_move_ends(cluster: RedisCluster) -> None:
    limiter, to = limiter_of(cluster, "cluster", timeout_seconds=at_most(5.0)), cluster.other()
    assert isinstance(take(limiter, "l1"), Admitted)
    source, slot = cluster.begin_move(to)
    source.do("CONFIG", "RESETSTAT")
    with ThreadPoolExecutor(1) as pool:
        rejected = pool.submit(take, limiter, "l2")
        eventually(lambda: expect_asked(source))
        cluster.end_move(source, to, slot)
        assert isinstance(rejected.result(at_most(10.0)), Rejected)
    limiter.close()


def expect_asked(node: Node) -> None:
    """Assert that the node has redirected a command."""
    assert "errorstat_ASK" in node.do("INFO", "errorstats")


@pytest.mark.parametrize("retries", [0, 1])
def test_a_moved_slot_is_followed_at_once(cluster: RedisCluster, retries: int) -> None:
    limiter = limiter_of(cluster, "cluster", retries=retries)
    assert isinstance(take(limiter, "l1"), Admitted)
    cluster.move(cluster.other())
    assert isinstance(take(limiter, "l2"), Rejected)
    cluster.fail_over()
    assert limiter.release([Lease("l1", "tenant:42")]) == 1
    limiter.close()


def test_a_note_of_a_new_process_follows_a_moved_slot(cluster: RedisCluster) -> None:
    limiter = limiter_of(cluster, "cluster")
    assert isinstance(take(limiter, "l1"), Admitted)
    # A forked process knows the address that its parent knew, and has no connection.
    after = cluster.fail_over()
    after.do("CONFIG", "RESETSTAT")
    limiter.begin_soon("l1", Verdict.BEGUN, 1)
    assert "cmdstat_fcall" in after.do("INFO", "commandstats")
    limiter.close()


def test_a_call_costs_one_round_trip(cluster: RedisCluster) -> None:
    limiter = limiter_of(cluster, "cluster")
    take(limiter, "l1")
    for node in cluster.nodes:
        node.do("CONFIG", "RESETSTAT")
    for _ in range(5):
        take(limiter, "l2")
    # Any other command of the client would be here too. A function's own commands are plain ones.
    sent = ("fcall", "command", "cluster", "ping", "hello", "function")
    lines = [line for node in cluster.nodes for line in node.do("INFO", "commandstats").split()]
    counts = [re.fullmatch(r"cmdstat_([a-z]+).*:calls=(\d+),.*", line) for line in lines]
    found = {each[1]: int(each[2]) for each in counts if each and each[1] in sent}
    assert found == {"fcall": 5}
    limiter.close()


def test_a_password_and_a_database() -> None:
    with RedisServer() as server:
        with server.client() as client:
            client.config_set("requirepass", "pa/ss#1")
        holds_a_limit(server.url.replace("redis://", "redis://:pa%2Fss%231@").replace("/0", "/3"))


def test_a_unix_socket_in_kombus_spelling(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    with RedisServer(args=("--unixsocket", str(socket))):
        holds_a_limit(f"redis+socket://{socket}?virtual_host=2")
        holds_a_limit(f"unix://{socket}?db=3")


def test_a_sentinel_group(tmp_path: Path) -> None:
    port = ReservedPort()
    with RedisServer() as master:
        conf = tmp_path / "sentinel.conf"
        conf.write_text(
            f"port {port.number}\nbind 127.0.0.1\ndir {tmp_path}\n"
            f"sentinel monitor shop 127.0.0.1 {master.port} 1\n"
        )
        port.release()
        sentinel = LocalProcess("sentinel", [find_binary(), str(conf), "--sentinel"]).start()

        def answers() -> None:
            with redis.Redis(port=port.number) as client, contextlib.suppress(NotYet):
                assert client.ping()
                return
            raise AssertionError("the sentinel does not answer")

        try:
            eventually(answers)
            holds_a_limit(f"sentinel://127.0.0.1:{port.number}/0?master_name=shop")
        finally:
            sentinel.stop()
            sentinel.discard_log()


@pytest.mark.parametrize("broker", ["redis", *RABBITMQ])
@pytest.mark.one_redis("a database")
def test_each_of_two_brokers_gets_its_own_parked_tasks(
    make_shop: Callable[..., Shop], redis_url: str, broker: str
) -> None:
    quick = {**LONG, "lease_seconds": 2}
    ours = make_shop("redis", fairness=quick)
    variables = {"CELERY_BROKER_URL": redis_url.removesuffix("/0") + "/5"}
    where = {"variables": variables} if broker == "redis" else {}
    theirs = make_shop(broker, fairness={**quick, "redis_url": redis_url}, **where)
    worker = ours.worker(pool="threads", concurrency=2)
    theirs.worker(pool="threads", concurrency=2)
    with key_taken(ours):
        result = send(ours, "42", ONE)
        await_parked(ours, 1)
        worker.terminate()
        others = [send(theirs, user, ONE) for user in ("42", "43")]
        await_parked(ours, 3)
    # The first is not in the way of the others, and only workers of its own broker publish it.
    for each in others:
        assert each.get(timeout=RESULT_SECONDS) == "done"
    await_parked(ours, 1)
    assert ours.ledger("start") == []
    ours.worker(pool="threads", concurrency=2)
    assert result.get(timeout=RESULT_SECONDS) == "done"
    assert len(theirs.ledger("start")) == 2
    assert_nothing_parked(ours)
