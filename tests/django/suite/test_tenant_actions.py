"""The actions of the list of tenants."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse
from django_celery_fairness import tenant_actions
from django_celery_fairness.models import TenantTier

from tests.cli.clearing import send
from tests.django.suite.operators import history
from tests.django.suite.test_admin import read

pytestmark = pytest.mark.django_db(transaction=True)

LIST = "admin:django_celery_fairness_tenanttier_changelist"


@pytest.fixture(autouse=True)
def rows(boss, shop, pro, acme):
    """The administrator and two tenants."""
    TenantTier.objects.create(tenant="<b>/é", tier=pro)


def choose(client, action: str):
    """Choose an action for all tenants, and return its confirmation page."""
    chosen = [row.pk for row in TenantTier.objects.all()]
    fields = {"action": action, "_selected_action": chosen, "index": "0"}
    return client.post(reverse(LIST), fields)


def answer(client, page, **fields: str) -> str:
    """Submit the form of the confirmation page."""
    assert page.status_code == 200
    hidden = re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', page.content.decode())
    sent: dict[str, list[str]] = {}
    for name, value in hidden:
        sent.setdefault(name, []).append(value)
    return read(client.post(reverse(LIST), {**sent, **fields}, follow=True))


def test_tenants_are_paused_and_resumed(client, shop, claiming):
    send(shop, "acme", "waits")
    page = choose(client, "pause_tenants")
    assert "Pause 2 tenants: <b>/é: 0 tasks wait acme: 1 task waits" in read(page)
    assert b"<b>/" not in page.content
    assert not claiming.tenants.inspect("acme").holds.paused
    text = answer(client, page, reason="incident", for_seconds="1h")
    assert "tenant:acme: paused until" in text
    for tenant in ("acme", "<b>/é"):
        assert 3000 < claiming.tenants.inspect(tenant).holds.pause_seconds <= 3600
    assert shop.claim() == []
    assert [row[:2] for row in history()] == [("boss", "<b>/é"), ("boss", "acme")]
    assert history()[1][2].startswith("Pause, because: incident. Done: tenant:acme: paused until")
    answer(client, choose(client, "resume_tenants"), reason="over")
    assert not claiming.tenants.inspect("acme").holds.paused
    assert len(history()) == 4


def test_tenants_are_boosted_for_an_hour(client, claiming):
    answer(client, choose(client, "boost_tenants"), reason="a sale")
    found = claiming.tenants.inspect("acme")
    assert found.limit == 6
    assert (found.override.reason, found.override.by) == ("a sale", "boss")
    left = found.override.expires_at - claiming.stats.status().at
    assert 3000 < left.total_seconds() <= 3600


def test_each_service_is_boosted_if_it_counts_apart(client, wire, redis_url):
    fairness = wire(f"fair{redis_url}", tier_scope="service")
    answer(client, choose(client, "boost_tenants"), reason="a sale")
    assert fairness.tenants.inspect("acme").limit == 6


def test_a_purge_says_how_many_wait(client, shop, claiming):
    for number in range(3):
        send(shop, "acme", f"t{number}")
    page = choose(client, "purge_tenants")
    assert "Nothing brings them back" in read(page)
    assert "acme: 3 tasks wait" in read(page)
    text = answer(client, page, reason="left us")
    assert "tenant acme: 3 waiting tasks are cancelled" in text
    assert claiming.tenants.inspect("acme").waiting_count == 0


def test_a_reason_is_needed(client, claiming):
    text = answer(client, choose(client, "pause_tenants"), reason="")
    assert "This field is required" in text
    assert not claiming.tenants.inspect("acme").holds.paused
    assert history() == []


def test_too_many_tenants_are_rejected(client, monkeypatch):
    monkeypatch.setattr(tenant_actions, "AT_MOST", 1)
    page = choose(client, "pause_tenants")
    assert "Select at most 1 tenants" in read(client.get(page.url))
    assert history() == []


def test_staff_who_may_look_can_choose_none(client, clerk, claiming):
    chosen = [row.pk for row in TenantTier.objects.all()]
    fields = {"action": "pause_tenants", "_selected_action": chosen, "confirmed": "yes"}
    client.post(reverse(LIST), {**fields, "reason": "r"})
    assert "Pause selected" not in read(client.get(reverse(LIST)))
    assert not claiming.tenants.inspect("acme").holds.paused
    assert history() == []


def test_the_form_of_a_tenant_leads_to_the_page_of_its_key(client):
    row = TenantTier.objects.get(tenant="<b>/é")
    form = client.get(reverse("admin:django_celery_fairness_tenanttier_change", args=[row.pk]))
    [address] = re.findall(r'href="([^"]+\?key=[^"]+)"', form.content.decode())
    assert "Limit 3: tier pro" in read(client.get(address, follow=True))
    other = client.get(reverse("admin:django_celery_fairness_tier_change", args=[row.tier_id]))
    assert b"?key=" not in other.content


def test_with_redis_away_it_offers_no_button(client, redis_server):
    redis_server.kill()
    page = read(choose(client, "purge_tenants"))
    assert "Redis does not answer" in page
    assert "No, take me back" not in page
