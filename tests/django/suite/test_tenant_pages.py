"""The page of tenants: cards with slots, running tasks, and tasks that finished while recorded."""

from __future__ import annotations

import re

import pytest
from django.db import transaction
from django_celery_fairness import dashboard, tenant_pages
from django_celery_fairness.models import LimitOverride, TenantTier

from celery_fairness.control.installation import control_bus
from tests.cli.clearing import send
from tests.django.suite.conftest import quietly
from tests.django.suite.operators import do, history, show, url
from tests.django.suite.test_admin import read

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = "tenant_changelist"
LIVE = {"X-Fairness": "live"}


@pytest.fixture(autouse=True)
def look_again():
    tenant_pages.shared.forget()
    dashboard.shared.forget()
    yield
    tenant_pages.shared.forget()
    dashboard.shared.forget()


def test_a_card_shows_limit_slots_and_what_runs(client, boss, shop, claiming):
    claiming.tenants.set_tier("42", "pro")
    for number in range(5):
        send(shop, "42", f"t{number}")
    assert len(shop.claim()) == 1
    answer = client.get(url(PAGE))
    card = read(answer)
    assert "42 tier pro" in card
    assert "running 1 / 3 waiting 4 state available" in card
    assert "shop.work" in card
    assert answer.content.count(b'<i class="taken"></i>') == 1
    assert answer.content.count(b"<i></i>") == 2
    assert f'href="{url("task_changelist")}?id=t0"' in answer.content.decode()


def test_a_paused_tenant_and_one_without_a_limit_say_so(client, boss, shop, claiming):
    claiming.tenants.set_tier("big", "enterprise", concurrency=None)
    send(shop, "big", "t0")
    claiming.tenants.pause("late", by="ada")
    page = show(client, PAGE)
    assert "late paused until it is resumed, by ada" in page
    assert "running 0 / 0" in page
    assert "big own number of the tenant running 0 waiting" in page


def test_finished_tasks_are_shown_while_a_person_records_them(client, boss, shop, claiming):
    send(shop, "42", "before")
    shop.settle(*shop.claim())
    send(shop, "9", "other")
    page = show(client, PAGE)
    assert "Finished tasks are not recorded." in page
    assert "finished last" not in page
    page = do(client, "tenant_record")
    assert "Done: finished tasks are recorded until" in page
    shop.settle(*shop.claim())
    for number in range(7):
        send(shop, "42", f"t{number}")
        shop.settle(*shop.claim())
    tenant_pages.shared.forget()
    page = show(client, PAGE)
    assert "Finished tasks are recorded until" in page
    finished = page.partition(" 42 ")[2].partition(" 9 ")[0].partition("finished last")[2]
    assert finished.count("shop.work") == tenant_pages.TASKS
    assert claiming.events.traces_until() is not None
    [(user, what, message)] = history()
    assert (user, what) == ("boss", "all tenants")
    assert message.startswith("Record finished tasks for 10 minutes. Done:")


def test_a_look_and_a_get_record_nothing(client, boss, shop, claiming):
    send(shop, "42", "t0")
    show(client, PAGE)
    client.get(url(PAGE), headers=LIVE)
    client.get(url("tenant_record"))
    assert claiming.events.traces_until() is None
    assert history() == []


def test_staff_who_may_only_look_see_no_button_and_record_nothing(client, clerk, shop, claiming):
    send(shop, "42", "t0")
    answer = client.get(url(PAGE))
    main = answer.content.decode().partition('id="content-main"')[2]
    assert "42" in main
    assert 'method="post"' not in main.partition("<footer")[0]
    assert client.post(url("tenant_record")).status_code == 403
    assert claiming.events.traces_until() is None
    assert history() == []


def test_many_tenants_have_pages_and_are_searched(client, boss, shop):
    for number in range(30):
        send(shop, f"t{number:02}", f"id{number}")
    first = show(client, PAGE)
    assert "page 1 of 2, 30 in all" in first
    assert "t23" in first
    assert "t24" not in first
    assert "t29" in show(client, PAGE, page="2")
    assert "behind the last tenant" in show(client, PAGE, page="9")
    found = show(client, PAGE, search="t2")
    assert "t29" in found
    assert "t19" not in found
    assert "No tenant at work has this" in show(client, PAGE, search="nobody")
    assert "No tenant has more than 1000" in show(client, PAGE, search="x" * 1001)


def test_a_page_costs_the_same_with_more_tenants(client, boss, shop, monkeypatch):
    # The workers are asked once, however long the test takes.
    monkeypatch.setattr(control_bus, "FRESH_SECONDS", 600.0)

    def calls() -> int:
        shop.client.config_resetstat()
        assert client.get(url(PAGE), headers=LIVE).status_code == 200
        stats = shop.client.info("commandstats")
        direct = ("cmdstat_fcall", "cmdstat_fcall_ro", "cmdstat_exec")
        return sum(stats.get(name, {"calls": 0})["calls"] for name in direct)

    def cost() -> int:
        # Now and then a page also reads the tiers again.
        return min(calls() for _ in range(3))

    for number in range(40):
        send(shop, f"t{number:03}", f"id{number}")
    few = cost()
    for number in range(40, 200):
        send(shop, f"t{number:03}", f"id{number}")
    assert cost() == few


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a/b c", "' onload='x", "é" * 60])
def test_a_hostile_name_is_text_and_is_found_by_its_name(client, boss, shop, claiming, name):
    claiming.tenants.pause(name, by="<i>ada</i>")
    claiming.tenants.pause("other")
    page = client.get(url(PAGE), {"search": name}).content
    assert b"<script>alert" not in page
    assert b"<i>ada" not in page
    assert page.count(b'class="fairness-card"') == 1


def test_a_card_and_the_tables_of_tenants_link_to_the_row(client, boss, shop, acme):
    send(shop, "acme", "t0")
    send(shop, "stranger", "t1")
    row = url("tenanttier_change", str(acme.pk))
    for page, names in [
        (PAGE, ()),
        ("dashboard_changelist", ()),
        ("queue_change", ("celery",)),
        ("limitkey_change", ("tenant:acme",)),
    ]:
        assert client.get(url(page, *names)).content.decode().count(f'href="{row}"') == 1, page


def test_who_may_not_see_rows_gets_no_link_to_one(client, clerk, shop, acme):
    clerk.user_permissions.remove(clerk.user_permissions.get(codename="view_tenanttier"))
    send(shop, "acme", "t0")
    assert TenantTier.objects.filter(tenant="acme").exists()
    for page in (PAGE, "dashboard_changelist"):
        assert b"/tenanttier/" not in client.get(url(page)).content


def test_each_service_has_a_card_if_it_counts_apart(client, boss, wire, redis_url, shop, acme):
    wire(f"fair{redis_url}", tier_scope="service")
    send(shop, "acme", "t0", service="pdf")
    answer = client.get(url(PAGE))
    assert "acme:pdf" in read(answer)
    assert f'href="{url("tenanttier_change", str(acme.pk))}"' in answer.content.decode()


def test_a_button_that_has_nothing_to_end_is_off(client, boss, claiming):
    def off() -> set[str]:
        page = client.get(url("limitkey_change", "tenant:42")).content.decode()
        found = set(re.findall(r'value="(\w+)" disabled', page))
        assert set(re.findall(r'data-off="([\w ]*)"', page)[0].split()) == found
        return found

    assert off() == {"resume", "clear_override"}
    do(client, "limitkey_change", "tenant:42", action="pause", reason="r")
    assert off() == {"clear_override"}
    do(client, "limitkey_change", "tenant:42", action="boost", reason="r")
    assert off() == set()


def test_an_override_that_is_not_published_yet_can_be_ended(client, boss, shop, redis_server):
    with transaction.atomic():
        quietly(LimitOverride).bulk_create(
            [LimitOverride(key="api", concurrency="1", reason="not published")]
        )
    page = client.get(url("limitkey_change", "api")).content.decode()
    assert re.findall(r'value="(\w+)" disabled', page) == ["resume", "clear_cool_down"]
