"""A broker that goes away while tasks are being rejected: none is lost, none runs twice."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from celery_fairness import RateLimitPolicy
from celery_fairness.config.tenants import tier_key
from celery_fairness.limiter.types import Admitted, Lease, SlotRequest
from tests.integration.conftest import BROKERS, RESULT_SECONDS, Shop
from tests.integration.test_gate_limits import KEY, key_taken, send
from tests.integration.test_parked import assert_nothing_parked, await_parked
from tests.support.nodes import WorkerNode
from tests.support.parts import parts_of
from tests.support.proxy import Proxy
from tests.support.waiting import at_most, eventually

TASKS = 100


@pytest.fixture
def proxied(
    make_shop: Callable[..., Shop], redis_url: str
) -> Iterator[Callable[..., tuple[Shop, Proxy]]]:
    """A factory of shops whose workers reach the broker through a proxy."""
    proxies: list[Proxy] = []

    def make(broker: str, *, late: bool, lease_seconds: float = 60) -> tuple[Shop, Proxy]:
        # Celery swallows an ack that fails on a dead connection, and with RabbitMQ hears of the
        # death only from the next heartbeat: a minute by default.
        conf = {"task_acks_late": late, "broker_heartbeat": 2}
        shop = make_shop(broker, conf, {"lease_seconds": lease_seconds, "redis_url": redis_url})
        url = shop.env["CELERY_BROKER_URL"]
        proxy = Proxy(urlsplit(url).port or 0).start()
        proxies.append(proxy)
        # Stock kombu pops a message from Redis before it is noted anywhere: a cut in that moment
        # loses it, whatever runs on top. There only the way back is cut.
        through = "CELERY_BROKER_WRITE_URL" if broker == "redis" else "CELERY_BROKER_URL"
        shop.env[through] = proxy.url(url)
        if broker == "redis":
            shop.env["CELERY_BROKER_READ_URL"] = url
            del shop.env["CELERY_BROKER_URL"]
        return shop, proxy

    yield make
    for proxy in proxies:
        proxy.stop()


def logged(worker: WorkerNode, what: str, since: int) -> set[str]:
    """Return the ids of which the log says ``what`` behind its first ``since`` characters."""
    return set(re.findall(rf"task shop\.work\[(\S+)\] {what}", worker.log_text()[since:]))


def received(worker: WorkerNode, since: int) -> set[str]:
    """Return the ids of the tasks that came after the first ``since`` characters of the log."""
    return set(re.findall(r"Task shop\.work\[(\S+)\] received", worker.log_text()[since:]))


@pytest.mark.parametrize("late", [False, True], ids=["early_ack", "late_ack"])
@pytest.mark.parametrize("broker", BROKERS)
def test_a_broker_cut_while_rejecting_loses_and_doubles_nothing(
    proxied: Callable[..., tuple[Shop, Proxy]], broker: str, late: bool
) -> None:
    shop, proxy = proxied(broker, late=late)
    tiers = parts_of(shop.fairness).limiter
    lease = Lease("held", tier_key("42"))
    assert isinstance(tiers.acquire(SlotRequest(lease, "42", "free")), Admitted)
    results = [shop.send("work", user="42") for _ in range(TASKS)]
    worker = shop.worker(pool="threads", concurrency=8)

    def await_rejections(more: int) -> None:
        wanted = sum(shop.fairness.stats.rejections().tiers.values()) + more

        def rejected() -> None:
            assert sum(shop.fairness.stats.rejections().tiers.values()) >= wanted

        eventually(rejected, RESULT_SECONDS)

    await_rejections(20)
    proxy.cut()
    await_rejections(40)
    for _ in range(5):
        before = len(worker.log_text())
        proxy.refuse()

        def felt(at: int = before) -> None:
            # Once the consumer has lost its connection no other task comes to be rejected.
            lost = "Cannot connect to" in worker.log_text()[at:]
            assert lost or logged(worker, "is rejected and the broker", at)

        eventually(felt, RESULT_SECONDS)
        met = bool(logged(worker, "is rejected and the broker", before))
        before = len(worker.log_text())
        proxy.resume()
        if met:
            break
        await_rejections(20)
    assert met, "no task met the rejection on its way back"

    # A body that starts while Celery has not yet noticed the cut runs twice, as in stock Celery:
    # its ack is lost. So let every task be rejected once more on a connection that works.
    ids = {result.id for result in results}
    eventually(lambda: received(worker, before) == ids, RESULT_SECONDS)
    await_rejections(len(ids))
    tiers.release([lease])
    for result in results:
        assert result.get(timeout=at_most(40)) == "done", worker.log_text()
    assert "is lost unless" not in worker.log_text()
    assert shop.runs() == {result.id: 1 for result in results}
    assert shop.most_at_once("42") == 1
    shop.await_held("42", 0)


@pytest.mark.parametrize("broker", BROKERS)
def test_a_broker_cut_while_promoting_loses_and_doubles_nothing(
    proxied: Callable[..., tuple[Shop, Proxy]], broker: str
) -> None:
    shop, proxy = proxied(broker, late=False, lease_seconds=2)
    worker = shop.worker(pool="threads", concurrency=4)
    one = RateLimitPolicy(KEY, concurrency=1)
    with key_taken(shop):
        results = [send(shop, None, one) for _ in range(10)]
        await_parked(shop, 10)
        proxy.refuse()
    worker.wait_for_log("parked tasks could not be promoted")
    proxy.resume()
    for result in results:
        assert result.get(timeout=at_most(60)) == "done", worker.log_text()
    assert shop.runs() == {result.id: 1 for result in results}
    assert_nothing_parked(shop)


@pytest.mark.rabbitmq
@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_a_worker_that_was_cut_off_from_rabbitmq_goes_on_with_its_tasks(
    proxied: Callable[..., tuple[Shop, Proxy]], pool: str
) -> None:
    shop, proxy = proxied("rabbitmq_classic", late=False)
    gate = shop.gate_file()
    results = [shop.send("work", gate=str(gate)) for _ in range(8)]
    worker = shop.worker(pool=pool, concurrency=8)
    eventually(lambda: len(shop.ledger("start")) == 8)
    # With bodies that run Celery would fetch less from now on, and with each ack more again.
    proxy.cut()
    eventually(lambda: worker.log_text().count("MainProcess] Connected to") == 2)
    gate.touch()
    results += [shop.send("work") for _ in range(TASKS)]
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done", worker.log_text()


@pytest.mark.parametrize("late", [False, True], ids=["early_ack", "late_ack"])
def test_a_stopping_worker_that_cannot_send_back_says_what_it_held(
    proxied: Callable[..., tuple[Shop, Proxy]], late: bool
) -> None:
    shop, proxy = proxied("redis", late=late)
    lease = Lease("held", tier_key("42"))
    parts_of(shop.fairness).limiter.acquire(SlotRequest(lease, "42", "free"))
    worker = shop.worker(pool="prefork", concurrency=1)
    proxy.refuse()
    result = shop.send("work", user="42", seconds=0.125)
    worker.wait_for_log("does not accept it")
    worker.signal(signal.SIGTERM)
    if late:
        parts_of(shop.fairness).limiter.release([lease])
        proxy.resume()
        shop.worker(pool="prefork", concurrency=1)
        assert result.get(timeout=RESULT_SECONDS) == "done"
    else:
        worker.wait_for_log("it is lost unless")
        (line,) = [text for text in worker.log_text().splitlines() if "it is lost unless" in text]
        assert result.id in line
        assert "ERROR" in line
        assert '"seconds": 0.125' in line
    assert len(shop.runs()) == int(late)
