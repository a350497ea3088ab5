"""The limiter in Redis, on a frozen clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.numbers import write_numbers
from celery_fairness.config.settings import build_settings
from celery_fairness.limiter.redis import Limiter
from celery_fairness.scheduler import calls
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from celery_fairness.util.durations import Milliseconds, milliseconds


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


@pytest.fixture
def make_limiter(redis_url: str, clock: FrozenClock) -> Iterator[Callable[..., Limiter]]:
    """A factory of limiters on the frozen clock: ``make_limiter(**settings)``."""
    made: list[Limiter] = []

    def make(**values: object) -> Limiter:
        connection = Connection(address_from_url(redis_url))
        made.append(Limiter(connection, build_settings(values), clock))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


@pytest.fixture
def stop(limiter: Limiter, clock: FrozenClock) -> Callable[..., None]:
    """``stop("pause", key)``, or "resume", "cool" with seconds, "clear": what a person does."""

    def change(how: str, key: str, wait_seconds: float = 0.0) -> None:
        stop_key(limiter, clock, how, key, wait_seconds)

    return change


@pytest.fixture
def override(limiter: Limiter, clock: FrozenClock) -> Callable[..., None]:
    """``override(key, lasts_ms, concurrency=1)``: what a person does; None has no end."""

    def change(key: str, lasts_ms: int | None, **numbers: Any) -> None:
        override_key(limiter, clock, key, lasts_ms, **numbers)

    return change


def override_key(
    limiter: Limiter, clock: FrozenClock, key: str, lasts_ms: int | None, **numbers: Any
) -> None:
    """Put numbers in the place of a key's own; without any, clear them."""
    ends_ms = None if lasts_ms is None else clock.now_ms + lasts_ms
    text = write_numbers(numbers)
    now_text = str(clock.now_ms)
    args = calls.override_args(key, text, 0, ends_ms, "", 15_000, "on", now_text)
    limiter.connection.run(calls.OVERRIDE, limiter.prefix, args)


def stop_key(
    limiter: Limiter, clock: FrozenClock, how: str, key: str, wait_seconds: float = 0.0
) -> None:
    """Stop a key of limits, or let it go on."""
    wait_ms = milliseconds(wait_seconds)
    args = calls.stop_args(how, key, wait_ms, 15_000, "on", str(clock.now_ms))
    limiter.connection.run(calls.STOP, limiter.prefix, args)


@pytest.fixture
def limiter(make_limiter: Callable[..., Limiter]) -> Limiter:
    return make_limiter()
