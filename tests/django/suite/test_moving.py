"""What the admin changes of tiers acts on what waits on fairredis."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from django.db import transaction
from django_celery_fairness import publishing
from django_celery_fairness.models import TenantTier, Tier
from redis import Redis

from celery_fairness import Fairness
from celery_fairness.control.tenant.tenants_api import TenantsApi
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Waiting
from tests.support.library import call

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("four_tiers")]

DEFAULT, PRIORITY = "pdf_default", "pdf_priority"


@pytest.fixture
def fairness(wire: Callable[..., Fairness], redis_url: str) -> Fairness:
    return wire(f"fair{redis_url}")


@pytest.fixture
def client(redis_server, redis_url: str) -> Redis:
    with redis_server.client(decode_responses=True) as made:
        yield made


def wait_in(client: Redis, queue: str, tenant: str, tag: str) -> None:
    header = {"v": 1, "tenant": tenant, "tier": "free", "service": "pdf"}
    message = json.dumps({"body": "", "headers": {"id": tag, "fairness": header}})
    args = calls.put_args(Waiting(queue, tag, tenant, tier="free", message=message))
    call(client, calls.PUT, "{fairness}:", args)


def waiting(client: Redis) -> dict[str, str]:
    return client.hgetall("{fairness}:waiting")


def test_a_tenants_new_tier_takes_its_tasks_along(fairness, client):
    for number in range(3):
        wait_in(client, DEFAULT, "acme", f"a{number}")
    wait_in(client, DEFAULT, "other", "o")
    row = TenantTier.objects.create(tenant="acme", tier=Tier.objects.get(name="pro"))
    assert waiting(client) == {DEFAULT: "1", PRIORITY: "3"}
    row.delete()
    assert waiting(client) == {DEFAULT: "4"}
    assert not fairness.check().findings


def test_a_tier_of_another_class_takes_its_tenants_along(fairness, client):
    TenantTier.objects.create(tenant="acme", tier=Tier.objects.get(name="pro"))
    wait_in(client, PRIORITY, "acme", "a")
    Tier.objects.filter(name="pro").update(queue_class="default")
    assert waiting(client) == {DEFAULT: "1"}


def test_nothing_moves_for_a_change_that_is_rolled_back(fairness, client):
    wait_in(client, DEFAULT, "acme", "a")
    with transaction.atomic():
        TenantTier.objects.create(tenant="acme", tier=Tier.objects.get(name="pro"))
        transaction.set_rollback(True)
    assert waiting(client) == {DEFAULT: "1"}


def test_what_could_not_move_does_with_the_next_publication(fairness, client, monkeypatch):
    wait_in(client, DEFAULT, "acme", "a")

    def away(self: Fairness, tenants: object) -> int:
        raise LimiterUnavailable("redis://gone", "no answer")

    with monkeypatch.context() as context:
        context.setattr(TenantsApi, "reroute", away)
        TenantTier.objects.create(tenant="acme", tier=Tier.objects.get(name="pro"))
    assert waiting(client) == {DEFAULT: "1"}
    publishing.publish_pending()
    assert waiting(client) == {PRIORITY: "1"}
