"""A worker on the model and the scripts."""

from __future__ import annotations

import pytest
from redis import Redis

from tests.model.pair import Pair


@pytest.fixture
def make_pair(redis_url):
    with Redis.from_url(redis_url, protocol=2, decode_responses=True) as client:
        yield lambda **options: Pair(client, **options)


@pytest.fixture
def pair(make_pair):
    return make_pair()
