"""A shop on one hash slot of a Redis Cluster: broker, limits, results and commands."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ssl import CERT_NONE, CERT_REQUIRED
from typing import Any

import pytest
from celery import Celery, chord, group
from celery.exceptions import ImproperlyConfigured
from redis.connection import AbstractConnection

from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import HOST
from tests.support.waiting import at_most, eventually

pytestmark = pytest.mark.redis


@pytest.fixture
def shop(make_shop: Callable[..., Shop], cluster: RedisCluster) -> Iterator[Shop]:
    """A shop whose broker and results are on the cluster."""
    made = make_shop(
        variables={
            "CELERY_BROKER_URL": cluster.url("faircluster"),
            "CELERY_RESULT_BACKEND": cluster.url("cluster"),
        }
    )
    yield made
    # This process is a producer, whose connections live as long as it does. isinstance() would
    # declare every lazy task in the memory, also those of other tests.
    found = [each for each in gc.get_objects() if issubclass(type(each), AbstractConnection)]
    for each in found:
        each.disconnect()


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_groups_and_chords_end_also_after_a_failover(
    shop: Shop, cluster: RedisCluster, pool: str
) -> None:
    shop.worker(pool=pool)
    add, total = (shop.app.tasks[f"shop.{name}"] for name in ("add", "total"))
    for _ in range(2):
        parts = [add.s(number, 1, user="42") for number in range(4)]
        assert group(parts)().get(timeout=RESULT_SECONDS) == [1, 2, 3, 4]
        assert chord(parts, total.s(user="42"))().get(timeout=RESULT_SECONDS) == 10
        # The results are in another slot than the tasks.
        cluster.fail_over(cluster.primary("{result}"))
        cluster.fail_over(cluster.primary())
        cluster.await_agreement()


def test_a_limit_and_the_commands_of_workers_survive_each_change(
    shop: Shop, cluster: RedisCluster
) -> None:
    node = shop.worker(concurrency=3)
    gate = shop.gate_file()
    held = [shop.send("work", user="42", gate=str(gate)) for _ in range(2)]
    eventually(lambda: shop.ledger("start"))
    changes = [cluster.fail_over, lambda: cluster.move(cluster.other())]
    if cluster.moves_at_once:
        changes.append(lambda: cluster.move_at_once(cluster.other()))
    for change in changes:
        change()
        cluster.await_agreement()
        assert shop.send("work", user="43").get(timeout=RESULT_SECONDS) == "done"
        assert list(shop.app.control.ping([node.hostname()], timeout=RESULT_SECONDS)[0])
        assert shop.held("42") == 1
        assert shop.fairness.check().findings == ()
    gate.touch()
    assert [each.get(timeout=RESULT_SECONDS) for each in held] == ["done"] * 2
    assert shop.most_at_once("42") == 1
    assert max(shop.runs().values()) == 1


def test_a_seed_that_hangs_costs_results_two_seconds(cluster: RedisCluster) -> None:
    hanging = cluster.other("{result}")
    url = f"cluster://{HOST}:{hanging.port};{HOST}:{cluster.primary('{result}').port}"
    backend = backend_of("", url)
    hanging.pause()
    try:
        with ThreadPoolExecutor(1) as pool:
            # Other answers may take 120 s, by Celery's own default.
            assert pool.submit(backend.client.get, "{result}:1").result(at_most(5.0)) is None
    finally:
        hanging.resume()
        backend.client.close()


def backend_of(prefix: str, url: str = "cluster://:secret@a:1;b:2") -> Any:
    conf = {"result_backend_transport_options": {"global_keyprefix": prefix} if prefix else {}}
    app = Celery("shop", broker="memory://", backend=url, set_as_current=False)
    app.conf.update(conf)
    return app.backend


def test_results_need_a_hash_tag_and_no_database() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"expected a hash tag.*got: 'jobs:'"):
        backend_of("jobs:")
    with pytest.raises(ImproperlyConfigured, match="only that one, got: '3'"):
        backend_of("", "cluster://a:1/3")
    backend = backend_of("")
    assert backend.as_uri() == "cluster://a:1;cluster://b:2"
    assert backend.get_key_for_task("1") == b"{result}:celery-task-meta-1"
    connparams = backend_of("", "clusters://a:1").connparams
    assert connparams["ssl_cert_reqs"] is CERT_REQUIRED
    connparams = backend_of("", "clusters://a:1?ssl_cert_reqs=CERT_NONE").connparams
    assert connparams["ssl_cert_reqs"] is CERT_NONE
    assert backend_of("{x}:").get_key_for_task("1") == b"{x}:celery-task-meta-1"
