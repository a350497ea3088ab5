"""Sentinel makes another server the master while tasks run, wait and are sent; a replica lags."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from kombu.exceptions import OperationalError
from redis.connection import AbstractConnection

from tests.behaviour.conftest import PATHS
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.proxy import Proxy
from tests.support.redis_server import HOST, RedisServer
from tests.support.sentinel_group import MASTER_NAME, Loss, SentinelGroup, await_link
from tests.support.services import only_in_ci
from tests.support.waiting import at_most, eventually

pytestmark = pytest.mark.redis

#: How soon tasks must start again after the master is lost, in seconds.
AGAIN_SECONDS = at_most(10.0)
#: The options that docs/how-to/connect-redis.md gives.
OPTIONS = {"master_name": MASTER_NAME}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    """A master with two replicas, of which one must have acknowledged the last writes."""
    folder = tmp_path / "sentinel"
    folder.mkdir()
    with SentinelGroup(folder) as made:
        yield made
        # This process is a producer, whose connections live as long as it does.
        found = [each for each in gc.get_objects() if issubclass(type(each), AbstractConnection)]
        for each in found:
            each.disconnect()


def shop_on(group: SentinelGroup, make_shop: Callable[..., Shop], path: str) -> Shop:
    """Return a shop whose queues and limits, or whose limits alone, are on the group."""
    fairness = {"lease_seconds": 3}
    if path == "fairredis":
        return make_shop(
            conf={"broker_transport_options": OPTIONS},
            fairness=fairness,
            variables={"CELERY_BROKER_URL": group.url("fairsentinel")},
        )
    url = group.url("sentinel")
    return make_shop(fairness={**fairness, "redis_url": url, "tier_on_limit": "wait"})


class Load:
    """Sends tasks of two tenants, one after the other, until it is stopped."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        #: The ids of the tasks that the broker has accepted.
        self.accepted: list[str] = []
        self.rejected = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._send, name="load")

    def _send(self) -> None:
        while not self._ends.wait(0.02):
            user = f"load{len(self.accepted) % 2}"
            try:
                self.accepted.append(self._shop.send("work", user=user).id)
            except OperationalError:
                self.rejected += 1
        # Each thread has a result backend of its own.
        self._shop.close_backend()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(at_most(30.0))
        assert not self._thread.is_alive()


@pytest.mark.parametrize(
    ("path", "how"),
    [
        ("fairredis", "vanished"),
        ("redis", "killed"),
        pytest.param("fairredis", "killed", marks=only_in_ci),
        pytest.param("redis", "vanished", marks=only_in_ci),
    ],
)
def test_a_failover_under_load_loses_no_acknowledged_task_and_exceeds_no_limit(
    group: SentinelGroup, make_shop: Callable[..., Shop], path: str, how: Loss
) -> None:
    shop = shop_on(group, make_shop, path)
    workers = [shop.worker(pool="threads", concurrency=4) for _ in range(2)]
    gate = shop.gate_file()
    running = [shop.send("work", user=user, gate=str(gate)) for user in ("a", "b")]
    eventually(lambda: len(shop.ledger("start")) == 2)
    behind = [shop.send("work", user=user) for user in "ab" * 5]
    with Load(shop) as load:
        eventually(lambda: len(load.accepted) >= 20)
        acknowledged = list(load.accepted)
        group.await_acknowledged()
        lost_at = time.time()
        group.lose_master(how)

        def works_again() -> None:
            kept = {each.id for each in [*running, *behind]} | set(acknowledged)
            again = [e["at"] for e in shop.ledger("start") if e["id"] not in kept]
            # Sent after the loss, and started on the new master.
            assert [at for at in again if at > lost_at + 0.5]

        eventually(works_again, AGAIN_SECONDS)
    with group.writer() as client:
        assert client.info("replication")["role"] == "master"
    # Tasks that ran before the loss hold their slots on the new master.
    assert [shop.held(user) for user in "ab"] == [1, 1]
    assert {each.id for each in behind} & set(shop.runs()) == set()
    gate.touch()
    sent = [shop.app.AsyncResult(task_id) for task_id in acknowledged]
    for result in (*running, *behind, *sent):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    for user in ("a", "b", "load0", "load1"):
        assert shop.most_at_once(user) == 1
    for worker in workers:
        assert "Traceback" not in worker.log_text()


@pytest.fixture
def link(tmp_path: Path) -> Iterator[tuple[RedisServer, RedisServer, Proxy]]:
    """A master, its replica, and the wire between them."""
    for name in ("master", "replica"):
        (tmp_path / name).mkdir()
    quick = ("--repl-diskless-sync-delay", "0", "--min-replicas-max-lag", "1")
    with (
        RedisServer(directory=tmp_path / "master", args=quick) as master,
        Proxy(master.port) as wire,
        RedisServer(
            directory=tmp_path / "replica", args=("--replicaof", HOST, str(wire.port))
        ) as replica,
    ):
        await_link(replica)
        yield master, replica, wire


def urls(path: str, url: str) -> dict[str, Any]:
    """Return the options of a shop whose broker, or whose limits alone, are at `url`."""
    fairness = {"lease_seconds": 1, "tier_on_limit": "wait"}
    if path == "fairredis":
        del fairness["tier_on_limit"]
        return {"fairness": fairness, "variables": {"CELERY_BROKER_URL": f"fair{url}"}}
    return {"fairness": {**fairness, "redis_url": url}}


@pytest.mark.parametrize("path", PATHS)
def test_a_replica_that_lagged_becomes_the_master_and_limits_hold_what_runs(
    link: tuple[RedisServer, RedisServer, Proxy], make_shop: Callable[..., Shop], path: str
) -> None:
    master, replica, wire = link
    with Proxy(master.port) as name:
        shop = make_shop(**urls(path, name.url(master.url)))
        worker = shop.worker(pool="threads", concurrency=4)
        gate = shop.gate_file()
        first = shop.send("work", user="first", gate=str(gate))
        shop.await_held("first", 1)
        with master.client() as client:
            client.set("written", 1)
            assert client.wait(1, 5_000) == 1
        wire.hang()
        # The replica has neither the lease of the second nor the task that waits behind it.
        second = shop.send("work", user="second", gate=str(gate))
        eventually(lambda: len(shop.ledger("start")) == 2)
        missed = shop.send("work", user="second")
        eventually(lambda: shop.state("second").waiting_count == 1)
        master.kill()
        with replica.client() as client:
            client.replicaof("no", "one")
        name.target_port = replica.port
        worker.wait_for_log(REGISTERED[path])
        assert [shop.held(user) for user in ("first", "second")] == [1, 1]
        assert shop.state("second").waiting_count == 0
        later = shop.send("work", user="second")
        eventually(lambda: shop.state("second").waiting_count == 1)
        gate.touch()
        for result in (first, second, later):
            assert result.get(timeout=RESULT_SECONDS) == "done"
        assert shop.runs() == {result.id: 1 for result in (first, second, later)}
        assert missed.id not in shop.runs()
        assert shop.most_at_once("second") == 1
        assert shop.fairness.check().findings == ()


#: Log lines of a worker when a replica without all of its leases is the master.
REGISTERED = {
    "fairredis": "Redis has an older memory without all leases held here; registered again: 1",
    "redis": "the limiter's Redis did not have all leases of this worker; registered again: 1",
}


@pytest.mark.parametrize("path", PATHS)
def test_tasks_wait_while_no_replica_follows_and_go_on_when_one_does(
    link: tuple[RedisServer, RedisServer, Proxy], make_shop: Callable[..., Shop], path: str
) -> None:
    master, _, wire = link
    shop = make_shop(**urls(path, master.url))
    worker = shop.worker(pool="threads", concurrency=4)
    gate = shop.gate_file()
    running = shop.send("work", user="42", gate=str(gate))
    behind = shop.send("work", user="42")
    eventually(lambda: shop.state("42").waiting_count == 1)
    with master.client() as client:
        client.config_set("min-replicas-to-write", 1)
    wire.hang()
    worker.wait_for_log("NOREPLICAS")
    gate.touch()
    eventually(lambda: len(shop.ledger("end")) == 1)
    assert behind.id not in shop.runs()
    wire.resume()
    for result in (running, behind):
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert shop.runs() == {running.id: 1, behind.id: 1}
    assert "lost its memory" not in worker.log_text()
