from __future__ import annotations

import html
import json
import re
import time

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.urls import reverse
from django_celery_fairness import live_counts
from django_celery_fairness.models import TenantTier, Tier, UnpublishedChange

from celery_fairness import FairTask
from tests.support.parts import parts_of

pytestmark = pytest.mark.django_db(transaction=True)

TIERS = "admin:django_celery_fairness_tier"
TENANTS = "admin:django_celery_fairness_tenanttier"
PAGES = [(TIERS, Tier), (TENANTS, TenantTier)]


@pytest.fixture(autouse=True)
def rows(four_tiers, acme):
    """Tiers and one tenant."""


def read(response) -> str:
    """The page as a person reads it: text alone, white space as one blank."""
    assert response.status_code == 200, response
    body = re.sub(r"(?s)<(style|script).*?</\1>", " ", response.content.decode())
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def change_list(client, name: str, **query: str) -> str:
    return read(client.get(reverse(f"{name}_changelist"), query))


def save_list(client, name: str, model, **changes: str):
    """Post the change list's form, with ``{field-of-row: value}`` changed."""
    page = client.get(reverse(f"{name}_changelist"))
    formset = page.context["cl"].formset
    data = {"_save": "Save"}
    for form in (formset.management_form, *formset.forms):
        for field in form:
            data[field.html_name] = "" if field.value() is None else str(field.value())
    for key, value in changes.items():
        row, field = key.split("__")
        column = "name" if model is Tier else "tenant"
        [form] = [each for each in formset.forms if getattr(each.instance, column) == row]
        data[f"{form.prefix}-{field}"] = value
    return client.post(reverse(f"{name}_changelist"), data, follow=True)


def test_a_tiers_number_is_changed_in_the_list_and_in_force_at_once(client, boss, fairness):
    assert fairness.limits.inspect("tenant:acme").limit == 3
    page = read(save_list(client, TIERS, Tier, pro__concurrency="8"))
    assert "1 tier was changed successfully" in page
    assert Tier.objects.get(name="pro").concurrency == 8
    assert fairness.limits.inspect("tenant:acme").limit == 8
    assert LogEntry.objects.get().user == boss


def test_the_default_tier_is_that_of_all_tenants_without_a_row(client, boss, fairness):
    page = read(client.get(reverse(f"{TIERS}_changelist")))
    assert page.count("0 and all without a row") == 1
    assert page.index("free") < page.index("0 and all without a row") < page.index("pro_plus")


def test_an_emptied_number_is_unlimited_and_zero_pauses(client, boss, fairness):
    save_list(client, TIERS, Tier, pro__concurrency="")
    assert fairness.limits.inspect("tenant:acme").limit is None
    save_list(client, TIERS, Tier, pro__concurrency="0")
    assert fairness.limits.inspect("tenant:acme").limit == 0


@pytest.mark.parametrize("number", ["-1", "1000001", "many", "1.5"])
def test_a_number_that_cannot_be_meant_is_rejected_beside_the_field(client, boss, fairness, number):
    page = read(save_list(client, TIERS, Tier, pro__concurrency=number))
    assert "Please correct the error below" in page
    assert Tier.objects.get(name="pro").concurrency == 3


def test_a_tenants_tier_and_own_number_are_changed_in_the_list(client, boss, fairness):
    enterprise = Tier.objects.get(name="enterprise")
    save_list(client, TENANTS, TenantTier, acme__tier=str(enterprise.pk))
    assert fairness.limits.inspect("tenant:acme").limit == 5
    save_list(client, TENANTS, TenantTier, acme__concurrency="2")
    assert fairness.limits.inspect("tenant:acme").limit == 2


def test_tenants_are_added_changed_and_deleted_in_forms(client, boss, fairness):
    pro = Tier.objects.get(name="pro")
    client.post(reverse(f"{TENANTS}_add"), {"tenant": "a/b c", "tier": pro.pk, "note": ""})
    row = TenantTier.objects.get(tenant="a/b c")
    assert fairness.limits.inspect("tenant:a/b c").limit == 3
    page = reverse(f"{TENANTS}_change", args=[row.pk])
    client.post(page, {"tenant": "another", "tier": pro.pk, "concurrency": "9", "note": "VIP"})
    row.refresh_from_db()
    assert (row.tenant, row.concurrency) == ("a/b c", 9)
    assert fairness.limits.inspect("tenant:a/b c").limit == 9
    client.post(reverse(f"{TENANTS}_delete", args=[row.pk]), {"post": "yes"})
    assert fairness.limits.inspect("tenant:a/b c").limit == 1


def test_rows_deleted_in_bulk_are_published(client, boss, fairness):
    TenantTier.objects.update(concurrency=9)
    assert fairness.limits.inspect("tenant:acme").limit == 9
    action = {"action": "delete_selected", "_selected_action": [acme_pk()], "post": "yes"}
    client.post(reverse(f"{TENANTS}_changelist"), action)
    assert not TenantTier.objects.exists()
    assert fairness.limits.inspect("tenant:acme").limit == 1


def acme_pk() -> int:
    return TenantTier.objects.get(tenant="acme").pk


def test_the_default_tier_cannot_be_deleted_singly_or_in_bulk(client, boss, fairness):
    free = Tier.objects.get(name="free")
    page = read(client.post(reverse(f"{TIERS}_delete", args=[free.pk]), {"post": "yes"}))
    assert "“free” is the default tier" in page
    pks = list(Tier.objects.exclude(name="pro").values_list("pk", flat=True))
    action = {"action": "delete_selected", "_selected_action": pks, "post": "yes"}
    page = read(client.post(reverse(f"{TIERS}_changelist"), action))
    assert "“free” is the default tier" in page
    assert Tier.objects.count() == 4


def test_names_cannot_be_changed_once_made(client, boss, fairness):
    pro = Tier.objects.get(name="pro")
    page = reverse(f"{TIERS}_change", args=[pro.pk])
    data = {"name": "other", "concurrency": "4", "weight": "1", "queue_class": "priority"}
    client.post(page, data)
    pro.refresh_from_db()
    assert (pro.name, pro.concurrency) == ("pro", 4)


def test_an_empty_number_says_what_empty_means(client, boss, fairness):
    pro = Tier.objects.get(name="pro")
    for page, texts in (
        (reverse(f"{TIERS}_changelist"), ["unlimited"]),
        (reverse(f"{TIERS}_change", args=[pro.pk]), ["unlimited", "any number", "no burst"]),
        (reverse(f"{TENANTS}_changelist"), ["as its tier"]),
    ):
        seen = re.findall('placeholder="(.+?)"', client.get(page).content.decode())
        assert set(seen) - {"Start typing to filter…"} == set(texts)


def test_how_much_may_wait_is_edited_and_published(client, boss, fairness, redis_server):
    pro = Tier.objects.get(name="pro")
    page = reverse(f"{TIERS}_change", args=[pro.pk])
    data = {"concurrency": "3", "weight": "1", "queue_class": "priority"}
    assert "less than or equal" in read(client.post(page, {**data, "max_waiting": "2000000000"}))
    client.post(page, {**data, "max_waiting": "7"})
    with redis_server.client(decode_responses=True) as redis:
        assert json.loads(redis.hget("{fairness}:tiers", "pro"))["numbers"] == "C3;W1.0;M7"


def test_the_rate_of_a_tier_and_of_a_tenant_are_edited_and_published(client, boss, fairness):
    pro = Tier.objects.get(name="pro")
    page = reverse(f"{TIERS}_change", args=[pro.pk])
    data = {"concurrency": "3", "weight": "1", "queue_class": "priority"}
    assert "LIMIT/PERIOD" in read(client.post(page, {**data, "rate": "often"}))
    client.post(page, {**data, "rate": "100/h"})
    TenantTier.objects.create(tenant="42", tier=pro, throttle="60/m")
    found = fairness.tenants.inspect("42")
    assert (found.rate.limit, found.rate.period) == (100, "PT1H")
    assert (found.throttle.limit, found.throttle.period) == (60, "PT1M")


def test_each_number_says_where_it_comes_from(client, boss, fairness):
    assert "3: tier pro 0 0 parked" in change_list(client, TENANTS)
    TenantTier.objects.update(concurrency=7)
    assert "7: own number of the tenant 0 0 parked" in change_list(client, TENANTS)
    assert "database" in change_list(client, TIERS)


def change_form(client, row: TenantTier) -> str:
    return read(client.get(reverse(f"{TENANTS}_change", args=[row.pk])))


def test_what_an_operator_set_is_shown_with_its_reason(client, boss, fairness, acme):
    fairness.limits.override("tenant:acme", concurrency=7, reason="a sale", by="ada")
    shown = "7: override until it is cleared, by ada: a sale; otherwise 3: tier pro"
    assert shown in change_list(client, TENANTS)
    assert shown in change_form(client, acme)
    fairness.limits.pause("tenant:acme", by="grace", for_seconds=3600)
    page = change_list(client, TENANTS)
    assert re.search(r"0: paused until \S+ \S+ UTC, by grace since \S+ \S+ UTC; otherwise 7:", page)
    assert "database has" not in page


def test_a_tier_set_by_command_is_in_force_beside_that_of_the_database(
    client, boss, fairness, acme
):
    """Until the row is saved: then the database decides."""
    fairness.tenants.set_tier("acme", "enterprise", concurrency=7)
    shown = (
        "7: own number of the tenant ⚠ the database has 3 (pro): "
        "open and save this row to put it in force"
    )
    assert shown in change_list(client, TENANTS)
    page = reverse(f"{TENANTS}_change", args=[acme.pk])
    client.post(page, {"tier": acme.tier.pk, "concurrency": "", "note": ""})
    assert "3: tier pro 0 0 parked" in change_list(client, TENANTS)


def test_each_service_shows_its_own_pause(client, boss, wire, redis_url):
    fairness = wire(redis_url, tier_scope="service")
    parts_of(fairness).app.task(base=FairTask, name="a", tenant="user_id", service="analysis")(
        by_user
    )
    assert "3: tier pro" in change_list(client, TENANTS)
    fairness.limits.pause("tenant:acme:analysis", by="ada")
    page = change_list(client, TENANTS)
    assert "_: 3: tier pro analysis: 0: paused until it is resumed, by ada" in page


def test_what_waits_is_counted_on_the_dispatch_path(client, boss, wire, redis_url):
    fairness = wire(f"fair{redis_url}")
    work = parts_of(fairness).app.task(base=FairTask, name="work", tenant="user_id")(by_user)
    for _ in range(3):
        work.delay(user_id="acme")
    assert "3: tier pro 0 3 " in change_list(client, TENANTS)


def test_a_variable_that_says_otherwise_is_told_beside_the_number(
    client, boss, wire, redis_url, monkeypatch
):
    monkeypatch.setenv("FAIRNESS_PRO_LIMIT", "9")
    wire(redis_url)
    page = change_list(client, TIERS)
    assert "FAIRNESS_PRO_LIMIT is 9; the database wins" in page
    assert "FAIRNESS_FREE_LIMIT" not in page


def test_a_number_that_workers_do_not_have_yet_is_told(client, boss, fairness):
    Tier.objects.filter(name="pro").update(concurrency=8)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_celery_fairness_tier SET concurrency = 6 WHERE name = 'pro'")
    page = change_list(client, TENANTS)
    assert "8: tier pro ⚠ the database has 6 (pro)" in page
    assert "database ⚠ workers use 8 until this one is published" in change_list(client, TIERS)


def test_tasks_that_run_are_counted(client, boss, fairness, hold):
    hold("acme", 2)
    page = change_list(client, TENANTS)
    assert "3: tier pro 2 0 parked" in page


def test_tenants_whose_names_no_key_could_carry_are_counted_too(client, boss, fairness, hold):
    TenantTier.objects.create(tenant="ann@example.com", tier=Tier.objects.get(name="enterprise"))
    hold("ann@example.com", 4)
    assert "5: tier enterprise 4 0 parked" in change_list(client, TENANTS)


def test_where_services_count_apart_all_of_them_are_counted(client, boss, wire, redis_url, hold):
    fairness = wire(redis_url, tier_scope="service")
    for service in ("analysis", "specview"):
        parts_of(fairness).app.task(base=FairTask, name=service, tenant="user_id", service=service)(
            by_user
        )
    hold("acme", 1, service="analysis")
    hold("acme", 1, service="specview")
    hold("acme", 1, service="_")
    assert "3: tier pro 3 0 parked" in change_list(client, TENANTS)


def by_user(user_id: str | None = None) -> None:
    """A task's body."""


def test_tenants_are_found_by_search(client, boss, fairness):
    pro = Tier.objects.get(name="pro")
    TenantTier.objects.create(tenant="zebra", tier=pro, note="striped")
    assert "zebra" in change_list(client, TENANTS, q="zeb")
    assert "zebra" in change_list(client, TENANTS, q="striped")
    assert "zebra" not in change_list(client, TENANTS, q="acme")


@pytest.mark.parametrize(("name", "model"), PAGES)
def test_pages_work_with_redis_away_and_say_so(client, boss, redis_away, name, model):
    page = change_list(client, name)
    assert "does not answer" in page
    row = model.objects.first()
    assert "does not answer" in read(client.get(reverse(f"{name}_change", args=[row.pk])))
    assert model is Tier or "unknown; the database has 3 (pro) – – " in page


def test_saving_with_redis_away_saves_and_warns(client, boss, redis_away):
    page = read(save_list(client, TIERS, Tier, pro__concurrency="8"))
    assert Tier.objects.get(name="pro").concurrency == 8
    assert "1 saved change has not reached Redis" in page
    assert "“manage.py publish”" in page


@pytest.mark.parametrize(("name", "model"), PAGES)
def test_the_button_publishes_what_redis_missed(client, boss, fairness, redis_away, name, model):
    """It needs no row."""
    save_list(client, TIERS, Tier, pro__concurrency="8")
    page = client.get(reverse(f"{name}_changelist")).content.decode()
    [address] = re.findall('action="([^"]+/publish/)"', page)
    assert "does not answer" in read(client.post(address, follow=True))
    redis_away.restart()
    assert client.get(address).status_code == 405
    page = read(client.post(address, follow=True))
    shown = "Published 4 tiers, 0 tenants, 0 queues and 0 overrides to Redis; 1 tenants have the"
    assert shown in page
    assert "has not reached Redis" not in page
    assert fairness.limits.inspect("tenant:acme").limit == 8


def test_a_redis_that_hangs_is_asked_once(client, boss, fairness, redis_server, monkeypatch):
    asked, limiter = [], parts_of(fairness).limiter
    read = limiter.connection.read
    monkeypatch.setattr(
        limiter.connection, "read", lambda *args: asked.append(args[0]) or read(*args)
    )
    monkeypatch.setattr(limiter, "look", lambda *_: asked.append("look"))
    pro = Tier.objects.get(name="pro")
    TenantTier.objects.bulk_create([TenantTier(tenant=str(n), tier=pro) for n in range(30)])
    redis_server.pause()
    # The new tenants were published.
    asked.clear()
    started = time.monotonic()
    assert "does not answer" in change_list(client, TENANTS)
    assert time.monotonic() - started < 30
    assert len(asked) == 1


def test_a_page_whose_time_is_spent_shows_the_other_numbers_as_unknown(
    client, boss, fairness, monkeypatch
):
    pro = Tier.objects.get(name="pro")
    TenantTier.objects.bulk_create([TenantTier(tenant=str(n), tier=pro) for n in range(30)])
    monkeypatch.setattr(live_counts, "PAGE_SECONDS", 0.0)
    asked, read_redis = [], parts_of(fairness).limiter.connection.read
    monkeypatch.setattr(
        parts_of(fairness).limiter.connection,
        "read",
        lambda *args: asked.append(args[0]) or read_redis(*args),
    )
    assert "unknown; the database has 3 (pro)" in change_list(client, TENANTS)
    assert len(asked) == 1


def test_pages_ask_the_database_a_fixed_number_of_times(
    client, boss, fairness, django_assert_max_num_queries
):
    pro = Tier.objects.get(name="pro")
    TenantTier.objects.bulk_create([TenantTier(tenant=str(n), tier=pro) for n in range(40)])
    with django_assert_max_num_queries(14):
        change_list(client, TENANTS)


@pytest.mark.parametrize(("name", "model"), PAGES)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"enabled": False}, "Limits are not enforced (enabled = false)"),
        ({"enabled": "observe"}, "Limits are only observed"),
    ],
)
def test_a_banner_says_that_limits_are_off(
    client, boss, wire, redis_url, name, model, options, says
):
    wire(redis_url, **options)
    assert says in change_list(client, name)


@pytest.mark.parametrize(("name", "model"), PAGES)
def test_a_banner_says_that_no_redis_is_known(client, boss, wire, name, model):
    wire("amqp://localhost")
    assert "FAIRNESS_REDIS_URL" in change_list(client, name)
    page = read(save_list(client, TIERS, Tier, pro__concurrency="8"))
    assert "1 saved change has not reached Redis" in page


@pytest.mark.parametrize(("name", "model"), PAGES)
def test_a_banner_says_that_a_setting_cannot_be_meant(client, boss, wire, name, model):
    wire(snooze_seconds=-1)
    assert "snooze_seconds" in change_list(client, name)


@pytest.mark.parametrize(("name", "model"), PAGES)
def test_a_banner_says_that_fairness_is_not_wired(client, boss, unwired, name, model):
    assert "Fairness is not wired" in change_list(client, name)
    row = model.objects.first()
    assert "Fairness is not wired" in read(client.get(reverse(f"{name}_change", args=[row.pk])))


@pytest.mark.parametrize(("name", "model"), PAGES)
def test_no_banner_where_all_is_well(client, boss, fairness, name, model):
    response = client.get(reverse(f"{name}_changelist"))
    assert "fairness-findings" not in re.sub(
        r"(?s)<style.*?</style>", "", response.content.decode()
    )


@pytest.mark.parametrize(("name", "model"), PAGES)
def test_who_may_only_look_sees_the_numbers_and_no_action(client, clerk, fairness, name, model):
    url = reverse(f"{name}_changelist")
    page = client.get(url)
    assert ("database" if model is Tier else "3: tier pro") in read(page)
    assert not page.context["cl"].formset
    assert not page.context["action_form"]
    assert b'name="_save"' not in page.content
    row = model.objects.first()
    assert b'name="_save"' not in client.get(reverse(f"{name}_change", args=[row.pk])).content


@pytest.mark.parametrize(("name", "model"), PAGES)
def test_who_may_only_look_can_change_nothing(client, clerk, fairness, name, model):
    url, row = (
        reverse(f"{name}_changelist"),
        model.objects.get(**{"name": "pro"} if model is Tier else {"tenant": "acme"}),
    )
    form = {
        "_save": "Save",
        "form-TOTAL_FORMS": "1",
        "form-INITIAL_FORMS": "1",
        "form-0-id": str(row.pk),
        "form-0-concurrency": "99",
        "form-0-tier": str(Tier.objects.get(name="enterprise").pk),
    }
    assert client.post(url, form).status_code == 403
    client.post(url, {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
    assert b"publish/" not in client.get(url).content
    assert client.post(reverse(f"{name}_publish")).status_code == 403
    change = reverse(f"{name}_change", args=[row.pk])
    assert client.post(change, {"concurrency": "99"}).status_code == 403
    assert client.post(reverse(f"{name}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403
    assert client.post(reverse(f"{name}_add"), {}).status_code == 403
    before = row.concurrency
    row.refresh_from_db()
    assert row.concurrency == before
    assert not UnpublishedChange.objects.exists()


def test_no_page_shows_the_password_of_redis(client, boss, wire):
    wire("redis://:hunter2@127.0.0.1:1/0")
    for name, _ in PAGES:
        response = client.get(reverse(f"{name}_changelist"))
        assert b"does not answer" in response.content
        assert b"hunter2" not in response.content
    save_list(client, TIERS, Tier, pro__concurrency="8")
    assert "hunter2" not in UnpublishedChange.objects.get().error
