"""Scripts on a real server: a limiter, a plain client, and what a call costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from redis import Redis

from celery_fairness.config.settings import build_settings
from celery_fairness.limiter.redis import Limiter
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from tests.contract.conftest import FrozenClock


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def make_limiter(redis_url: str, clock: FrozenClock) -> Iterator[Callable[..., Limiter]]:
    """A factory: ``make_limiter(frozen=True, **settings)``; the server's own time otherwise."""
    made: list[Limiter] = []

    def make(frozen: bool = False, broker: str = "", **values: object) -> Limiter:
        connection = Connection(address_from_url(redis_url))
        settings, time = build_settings(values), clock if frozen else None
        limiter = Limiter(connection, settings, time, broker=broker)
        made.append(limiter)
        return limiter

    yield make
    for limiter in made:
        limiter.close()


@pytest.fixture
def client(redis_server, redis_url: str) -> Iterator[Redis]:
    with redis_server.client(decode_responses=True) as made:
        yield made


@pytest.fixture
def commands(client: Redis) -> Callable[[], AbstractContextManager[dict[str, int]]]:
    """``with commands() as ran:`` and then `ran` says how often each command ran on the server."""

    def read() -> dict[str, int]:
        stats = client.info("commandstats")
        return {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}

    @contextmanager
    def count() -> Iterator[dict[str, int]]:
        ran: dict[str, int] = {}
        before = read()
        yield ran
        for name, calls in read().items():
            more = calls - before.get(name, 0)
            if more and name != "info":
                ran[name] = more

    return count
