"""The limiter on other forms of Redis: a cluster, Sentinel, a unix socket; and on two brokers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery
from redis.exceptions import ConnectionError as NotYet

from celery_fairness import Fairness
from celery_fairness.config.settings import build_settings
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.limiter.types import Admitted, Job, Lease, Rejected, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from tests.integration.conftest import RABBITMQ, RESULT_SECONDS, Shop
from tests.integration.test_gate_limits import LONG, key_taken
from tests.integration.test_parked import ONE, assert_nothing_parked, await_parked, send
from tests.support.local_process import LocalProcess
from tests.support.parts import parts_of
from tests.support.redis_server import HOST, RedisServer, ReservedPort, find_binary
from tests.support.waiting import at_most, eventually

pytestmark = pytest.mark.redis


def holds_a_limit(url: str) -> None:
    """Take, refuse, renew, release and inspect through ``url``."""
    connection = Connection(address_from_url(url))
    connection.check()
    limiter = RedisLimiter(connection, build_settings({}))
    first, second = Lease("l1", "tenant:42"), Lease("l2", "tenant:42")
    assert isinstance(limiter.acquire(SlotRequest(first, "42", "free")), Admitted)
    assert isinstance(limiter.acquire(SlotRequest(second, "42", "free")), Rejected)
    assert limiter.renew([first, second]).gone == (second,)
    limiter.publish_tenant("42", "pro", "")
    assert limiter.published_tenant("42") == "pro"
    limiter.publish_tenant("43", "pro", "", ends_ms=9_000_000_000_000)
    assert limiter.published_tenant("43") == "pro"
    assert limiter.look("tenant:42", "42", "pro").get("entitled") == 3
    assert limiter.release([first, second]) == 1
    assert limiter.counts() == {"rejected:free": 1}
    limiter.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[RedisServer]]:
    """Two nodes with half of the slots each."""
    nodes: list[RedisServer] = []
    with contextlib.ExitStack() as stack:
        # By default the nodes talk on the port 10,000 above their own, which may be taken.
        buses = [ReservedPort() for _ in range(2)]
        for bus in buses:
            stack.callback(bus.release)
            folder = tmp_path / str(bus.number)
            folder.mkdir()
            args = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
            args += ("--cluster-port", str(bus.number))
            nodes.append(stack.enter_context(RedisServer(directory=folder, args=args)))
        first = (HOST, nodes[0].port, buses[0].number)
        for node, slots in zip(nodes, ((0, 8191), (8192, 16383)), strict=True):
            with node.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", *slots)
                client.execute_command("CLUSTER", "MEET", *first)
        eventually(lambda: agreed(nodes), at_most(20))
        yield nodes


def agreed(nodes: list[RedisServer]) -> None:
    """Assert that each node knows who has which slots."""
    for node in nodes:
        with node.client(decode_responses=True) as client:
            info = client.execute_command("CLUSTER INFO")
            assert "ok" in str(info.get("cluster_state") if isinstance(info, dict) else info)
            assert len(client.execute_command("CLUSTER", "SLOTS")) == 2


def test_a_cluster_is_found_from_any_of_its_nodes(cluster: list[RedisServer]) -> None:
    holds_a_limit(cluster[0].url)
    for node in cluster:
        with node.client() as client:
            client.flushall()
    holds_a_limit(cluster[1].url)


def test_keys_of_a_cluster_are_inspected_and_listed_where_they_are(
    cluster: list[RedisServer],
) -> None:
    for node in cluster:
        app = Celery("shop", broker="memory://", set_as_current=False)
        fairness = Fairness(app, {"FAIRNESS_REDIS_URL": node.url})
        limiter, limit = parts_of(fairness).limiter, "api|1|5/60000||w"
        for lease in ("l1", "l2"):
            slot = Lease(lease, f"tenant:{lease},api")
            request = SlotRequest(slot, lease, "free", Copy(lease), "next", limit)
            if isinstance(limiter.acquire(request), Rejected):
                limiter.park(request, "{}")
        found = fairness.limits.inspect("api")
        assert found.rate is not None
        assert (found.held, found.rate.current_count, found.waiting_count) == (1, 1, 1)
        assert fairness.limits.inspect("tenant:l1").held == 1
        assert fairness.limits.override("api", concurrency=3).limit == 3
        keys = [each.key for each in fairness.limits.list().items]
        assert keys == ["api", "tenant:l1", "tenant:l2"]
        fairness.close()
        for each in cluster:
            with each.client() as client:
                client.flushall()


def test_doctor_looks_at_the_node_of_a_cluster_that_has_the_limits(
    cluster: list[RedisServer],
) -> None:
    for node in cluster:
        with node.client() as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
    for node in cluster:
        app = Celery("shop", broker="memory://", set_as_current=False)
        fairness = Fairness(app, {"FAIRNESS_REDIS_URL": node.url})
        for lease in ("l1", "l2"):
            job = Job(lease, "shop.pay", "mail")
            request = SlotRequest(Lease(lease, "tenant:42"), "42", "free", job=job)
            parts_of(fairness).limiter.acquire(request)
        assert fairness.stats.minutes(2)
        found = [each.check for each in fairness.stats.doctor().symptoms]
        assert found == ["eviction", "persistence", "workers"]
        fairness.close()


def test_metrics_have_the_memory_of_the_node_that_has_the_limits(
    cluster: list[RedisServer],
) -> None:
    for number, node in enumerate(cluster):
        with node.client() as client:
            client.config_set("maxmemory", (number + 1) * 2**30)
            if client.execute_command("CLUSTER", "KEYSLOT", "{fairness}:clock") > 8191:
                expected = 2 * 2**30
            else:
                expected = 2**30
    for node in cluster:
        app = Celery("shop", broker="memory://", set_as_current=False)
        fairness = Fairness(app, {"FAIRNESS_REDIS_URL": node.url})
        (found,) = (
            each.samples
            for each in fairness.stats.metrics()
            if each.metric.name == "fairness_redis_memory_maximum_bytes"
        )
        assert [each.value for each in found] == [expected]
        fairness.close()


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
