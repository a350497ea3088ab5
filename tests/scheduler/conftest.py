"""A worker on the function library of the package, alone on an empty server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from tests.scheduler.shop import Shop


@pytest.fixture
def make_shop(redis_url: str) -> Iterator[Callable[..., Shop]]:
    """A factory of shops. After the test their tables agree with each other."""
    made: list[Shop] = []
    with Redis.from_url(redis_url, protocol=2, decode_responses=True) as client:

        def make(**options: Any) -> Shop:
            made.append(Shop(client, prefix=f"{{shop{len(made)}}}:", **options))
            return made[-1]

        yield make
        for shop in made:
            shop.check()


@pytest.fixture
def shop(make_shop: Callable[..., Shop]) -> Shop:
    return make_shop()
