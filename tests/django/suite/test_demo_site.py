from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from demo_site.load import TIERS, create_tenants, top_up
from demo_site.models import DemoTask
from demo_site.overview import overview
from django.db.models import Count
from django.urls import reverse
from django_celery_fairness.live_counts import LiveCounts
from django_celery_fairness.models import TenantTier, Tier

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def task(tenant: str, sent: float, started: float | None = None, ended: float | None = None):
    """A task of the ledger, its moments in seconds before now."""

    def at(seconds: float | None) -> datetime | None:
        return None if seconds is None else NOW - timedelta(seconds=seconds)

    return DemoTask.objects.create(
        task_id=uuid4(),
        tenant=tenant,
        name="analyze",
        sent_at=at(sent),
        started_at=at(started),
        ended_at=at(ended),
        worker="one@demo",
    )


@pytest.mark.django_db
def test_the_page_counts_tasks_by_tenant_and_state(client, wire):
    wire()
    enterprise = Tier.objects.get(name="enterprise")
    TenantTier.objects.bulk_create([TenantTier(tenant="acme", tier=enterprise, concurrency=2)])
    task("acme", 9)
    task("acme", 9, 4)
    task("acme", 9, 8, 6)
    task("acme", 9, 6, 5)
    task("stranger", 9)
    acme, stranger = overview(NOW, LiveCounts())
    assert "is unknown" in acme.why
    assert (acme.tier, acme.limit, acme.waiting, acme.finished) == ("enterprise", 2, 1, 2)
    assert [(line.worker, line.seconds) for line in acme.running] == [("one", 4.0)]
    assert [line.seconds for line in acme.latest] == [1.0, 2.0]
    assert acme.wait_seconds == 2.0
    assert len(acme.free) == 1
    assert (stranger.tier, stranger.limit, stranger.edit) == ("free", 1, None)
    page = client.get("/tasks/").content.decode()
    assert "acme" in page
    assert reverse("admin:django_celery_fairness_tenanttier_change", args=[acme.edit]) in page


@pytest.mark.django_db
def test_the_page_says_when_limits_are_off_and_stands_without_tasks(client, wire):
    wire(enabled=False)
    page = client.get("/tasks/").content.decode()
    assert "Limits are not enforced" in page
    assert "No tenant yet." in page
    assert client.post("/tasks/").status_code == 405


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
    waiting = sum(each.tasks.waiting + each.tasks.later for each in claiming.queues.list())
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
    waiting = sum(each.tasks.waiting + each.tasks.later for each in claiming.queues.list())
    assert waiting == sum(sent.values())
