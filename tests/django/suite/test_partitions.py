"""The pages and the HTTP API of an installation with several partitions."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.urls import reverse

from tests.cli.clearing import bury, send
from tests.cli.conftest import Installation
from tests.django.suite.api_client import ApiClient
from tests.django.suite.test_admin import read

pytestmark = pytest.mark.django_db(transaction=True)

COUNT = 4
TENANTS = [f"t{number}" for number in range(8)]
APP = "django_celery_fairness"


@pytest.fixture
def several(wire, redis_url, redis_server, four_tiers):
    """An installation in which each tenant has a running and a waiting task."""
    fairness = wire(f"fair{redis_url}", partitions=COUNT)
    with redis_server.client(decode_responses=True) as client:
        shop = Installation(client, partitions=COUNT)
        bury(shop, "dead", "buried")
        for tenant in TENANTS:
            send(shop, tenant, f"{tenant}-1")
            send(shop, tenant, f"{tenant}-2")
        assert len(shop.claim()) == 8
        yield fairness


@pytest.mark.parametrize(
    "name",
    sorted(each._meta.model_name for each in admin.site._registry if each._meta.app_label == APP),
)
def test_each_list_is_shown(client, boss, several, name):
    page = client.get(reverse(f"admin:{APP}_{name}_changelist"))
    assert page.status_code == 200
    assert "several partitions" not in read(page)


def test_the_dashboard_has_the_tasks_of_all_partitions(client, boss, several):
    page = read(client.get(reverse(f"admin:{APP}_dashboard_changelist")))
    for tenant in TENANTS:
        assert f"tenant:{tenant} celery" in page


@pytest.mark.parametrize(
    "path",
    [
        *("rate-limits", "rate-limits/tenant:t1", "stats", "stats/minutes", "stats/rejections"),
        *("tasks", "tasks/t1-2", "events", "health/ready"),
    ],
)
def test_the_http_api_answers(several, path):
    answer = ApiClient("write")("GET", path)
    assert answer.status == 200, answer.content
