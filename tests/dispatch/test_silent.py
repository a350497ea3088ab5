"""Connections to the broker on which nothing passes any more, and which nobody closes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from redis import Redis

from tests.dispatch.conftest import assert_nothing_left, send
from tests.integration.conftest import RESULT_SECONDS, Shop
from tests.support.proxy import Proxy
from tests.support.services import only_in_ci
from tests.support.waiting import at_most, eventually

KINDS = "tests.dispatch.kinds"
#: A tenth of the defaults.
TIMES = {"socket_timeout": 0.2, "socket_connect_timeout": 0.2, "health_check_interval": 0.2}


@pytest.fixture
def make_proxied(
    make_fair_shop: Callable[..., Shop], redis_url: str
) -> Iterator[Callable[..., tuple[Shop, Proxy]]]:
    """A factory of shops whose workers reach their broker, and not the results, by a proxy."""
    with Proxy(urlsplit(redis_url).port or 0) as proxy:

        def make(times: dict[str, float]) -> tuple[Shop, Proxy]:
            shop = make_fair_shop(conf={"broker_transport_options": times})
            shop.env["CELERY_BROKER_URL"] = proxy.url(shop.env["CELERY_BROKER_URL"])
            return shop, proxy

        yield make


@pytest.mark.parametrize(
    ("pool", "times"),
    [("prefork", {}), ("threads", TIMES), pytest.param("gevent", TIMES, marks=only_in_ci)],
)
def test_a_worker_goes_on_when_all_of_its_connections_go_silent(
    make_proxied: Callable[..., tuple[Shop, Proxy]],
    memory: Redis,
    pool: str,
    times: dict[str, float],
) -> None:
    """It has Celery's default events, so it publishes all the time."""
    shop, proxy = make_proxied(times)
    worker = shop.worker(app=KINDS, pool=pool, concurrency=2)
    assert send(shop, "kinds.plain", "42").get(timeout=RESULT_SECONDS) == "done"
    proxy.silence()
    results = [send(shop, "kinds.plain", f"u{number}") for number in range(4)]
    for result in results:
        assert result.get(timeout=RESULT_SECONDS) == "done"
    assert set(shop.runs().values()) == {1}
    # Its commands come on another connection.
    eventually(lambda: shop.ask(worker, "ping"), at_most(20.0))
    assert_nothing_left(memory)
