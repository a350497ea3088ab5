"""The two forms of the limiter, on one frozen clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from celery_fairness.limiter.memory import InMemoryLimiter
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.settings import Settings, build_settings
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from celery_fairness.units import Milliseconds


class FrozenClock:
    """A time that moves only when told to."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> Milliseconds:
        return Milliseconds(self.now_ms)

    def advance(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(params=["memory", "redis"])
def make_limiter(
    request: pytest.FixtureRequest, clock: FrozenClock
) -> Iterator[Callable[..., Limiter]]:
    """A factory of limiters on the frozen clock: ``make_limiter(**settings)``."""
    made: list[RedisLimiter] = []
    url = request.getfixturevalue("redis_url") if request.param == "redis" else ""

    def make(**values: object) -> Limiter:
        settings: Settings = build_settings(values)
        if not url:
            return InMemoryLimiter(settings, clock)
        made.append(RedisLimiter(Connection(address_from_url(url)), settings, clock))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


@pytest.fixture
def limiter(make_limiter: Callable[..., Limiter]) -> Limiter:
    return make_limiter()
