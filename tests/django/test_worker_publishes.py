"""A real worker of the demo site: at its start Redis learns what the database says."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support.redis_server import RedisServer


@pytest.fixture
def site_environment(site_environment: dict[str, str], redis_url: str) -> dict[str, str]:
    return {**site_environment, "CELERY_BROKER_URL": redis_url}


CHANGE = """
from django_celery_fairness.models import TenantTier, Tier
Tier.objects.filter(name="free").update(concurrency=2)
TenantTier.objects.create(tenant="acme", tier=Tier.objects.get(name="pro"), concurrency=6)
"""


def test_a_starting_worker_heals_a_redis_that_forgot(
    manage: Callable[..., str],
    start_worker: Callable[..., object],
    site_environment: dict[str, str],
    redis_server: RedisServer,
) -> None:
    manage("migrate", "--verbosity", "0")
    manage("shell", "--verbosity", "0", "--command", CHANGE)
    with redis_server.client(decode_responses=True) as client:
        client.flushall()
        start_worker("demo_site", pool="solo", concurrency=1, env=site_environment)
        free = json.loads(client.hget("{fairness}:tiers", "free"))
        assert "C2;" in free["numbers"]
        assert client.hget("{fairness}:clock", "tiers_source") == "database"
        acme = client.hgetall("{fairness}:tenant:acme")
        assert acme == {"tier": "pro", "numbers": "C6"}


def test_the_command_says_when_redis_is_away(
    manage: Callable[..., str], redis_server: RedisServer
) -> None:
    manage("migrate", "--verbosity", "0")
    assert "published 4 tiers, 0 tenants" in manage("publish")
    redis_server.kill()
    printed = manage("publish", status=69)
    assert "does not answer" in printed
    assert "Traceback" not in printed
