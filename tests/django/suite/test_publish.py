from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command
from django_celery_fairness.models import TenantTier, Tier

pytestmark = pytest.mark.django_db


def publish() -> str:
    output = io.StringIO()
    call_command("publish", stdout=output)
    return output.getvalue()


def test_it_publishes_everything_and_says_how_much(fairness, acme):
    Tier.objects.filter(name="pro").update(concurrency=8)
    TenantTier.objects.update(concurrency=6)
    assert fairness.limits.inspect("tenant:acme").limit == 3
    assert publish().startswith("published 4 tiers, ")
    assert fairness.limits.inspect("tenant:acme").limit == 6
    TenantTier.objects.update(concurrency=None)
    publish()
    assert fairness.limits.inspect("tenant:acme").limit == 8


def test_redis_away_is_exit_code_69(redis_away):
    with pytest.raises(CommandError, match="does not answer") as failure:
        publish()
    assert failure.value.returncode == 69


def test_not_wired_is_exit_code_1(unwired):
    with pytest.raises(CommandError, match="Fairness\\(app\\)") as failure:
        publish()
    assert failure.value.returncode == 1
