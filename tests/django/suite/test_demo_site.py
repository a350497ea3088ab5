from __future__ import annotations

from datetime import UTC, datetime

import pytest
from demo_site.load import TIERS, create_tenants, top_up
from demo_site.models import DemoTask
from django.db.models import Count
from django.urls import reverse
from django_celery_fairness.models import TenantTier, Tier


@pytest.mark.django_db
def test_tenants_of_the_demo_keep_what_a_person_gave_them(wire):
    wire()
    create_tenants()
    TenantTier.objects.filter(tenant="alice").update(concurrency=7)
    create_tenants()
    assert TenantTier.objects.get(tenant="alice").concurrency == 7
    tiers = dict(TenantTier.objects.values_list("tenant", "tier__name"))
    assert tiers == TIERS


@pytest.mark.django_db
def test_the_address_of_the_site_leads_to_the_dashboard(client):
    dashboard = reverse("admin:django_celery_fairness_dashboard_changelist")
    assert client.get("/").url == dashboard
    assert client.get(dashboard).url.startswith(reverse("admin:login"))


@pytest.mark.django_db
def test_the_load_never_grows_and_a_flood_comes_again_when_it_has_drained(claiming):
    def unfinished() -> dict[str, int]:
        rows = DemoTask.objects.filter(ended_at=None).values_list("tenant")
        return dict(rows.annotate(Count("pk")))

    top_up()
    first = unfinished()
    assert first == {"alice": 40, "bob": 6, "carol": 5, "dave": 14, "erin": 5}
    waiting = sum(each.tasks.waiting + each.tasks.delayed for each in claiming.queues.list())
    assert waiting == sum(first.values())
    last = DemoTask.objects.filter(tenant="alice").latest("sent_at")
    flood = DemoTask.objects.filter(tenant="alice").exclude(pk=last.pk)
    flood.update(ended_at=datetime.now(UTC))
    DemoTask.objects.filter(tenant="dave").update(ended_at=datetime.now(UTC))
    top_up()
    assert unfinished() == first | {"alice": 1}
    DemoTask.objects.filter(pk=last.pk).update(ended_at=datetime.now(UTC))
    top_up()
    assert unfinished() == first


@pytest.mark.django_db(transaction=True)
def test_a_bounded_backlog_stops_an_order_and_not_the_load(claiming):
    # Earlier tests with transactions have emptied the tables.
    Tier.objects.update_or_create(name="free", defaults={"concurrency": 1, "max_waiting": 3})
    top_up()
    rows = DemoTask.objects.filter(ended_at=None).values_list("tenant")
    sent = dict(rows.annotate(Count("pk")))
    assert sent == {"alice": 3, "bob": 3, "carol": 5, "dave": 3, "erin": 3}
    waiting = sum(each.tasks.waiting + each.tasks.delayed for each in claiming.queues.list())
    assert waiting == sum(sent.values())
