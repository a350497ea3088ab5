"""The admin of queues' limits, overrides, and tenants with a time; who, when and why in the log."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.auth.models import Permission, User
from django.urls import reverse
from django.utils import timezone
from django_celery_fairness.models import (
    LimitOverride,
    QueueLimit,
    TenantTier,
    Tier,
    UnpublishedChange,
)

from celery_fairness import Fairness
from celery_fairness.errors import NotFound
from tests.django.suite.test_admin import change_list, read

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("four_tiers")]

APP = "admin:django_celery_fairness"
TENANTS, QUEUES, OVERRIDES = (
    f"{APP}_{model}" for model in ("tenanttier", "queuelimit", "limitoverride")
)
QUEUE = {"queue": "emails", "global_limit": "3", "on_limit": "wait", "note": "20 connections"}
OVERRIDE = {"key": "api", "concurrency": "3", "reason": "a sale"}
PAGES = [(QUEUES, QueueLimit, QUEUE), (OVERRIDES, LimitOverride, OVERRIDE)]
YEAR_2100 = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def fairness(wire, redis_url) -> Fairness:
    return wire(f"fair{redis_url}")


def add(client, name: str, **fields: Any):
    return client.post(reverse(f"{name}_add"), fields, follow=True)


def change(client, name: str, row: Any, **fields: Any):
    return client.post(reverse(f"{name}_change", args=[row.pk]), fields, follow=True)


def log() -> list[tuple[int, str, str]]:
    """The log: action, row and text, the oldest first."""
    entries = LogEntry.objects.order_by("pk")
    return [(each.action_flag, each.object_repr, each.get_change_message()) for each in entries]


def test_a_queues_limit_is_added_changed_and_deleted_in_forms(client, boss, fairness):
    add(client, QUEUES, **QUEUE)
    row = QueueLimit.objects.get()
    assert fairness.queues.inspect("emails").limit.global_limit == 3
    change(client, QUEUES, row, **{**QUEUE, "queue": "other", "global_limit": "", "rate": "5/s"})
    row.refresh_from_db()
    assert (row.queue, row.global_limit, row.rate) == ("emails", None, "5/s")
    assert fairness.queues.inspect("emails").limit.rate == {"limit": 5, "period": "PT1S"}
    client.post(reverse(f"{QUEUES}_delete", args=[row.pk]), {"post": "yes"})
    with pytest.raises(NotFound):
        fairness.queues.inspect("emails")
    why = "Reason: 20 connections"
    assert log() == [
        (ADDITION, "emails", f"Added. {why}"),
        (CHANGE, "emails", f"Changed At once in all and Rate. {why}"),
        (DELETION, "emails", why),
    ]
    assert {entry.user for entry in LogEntry.objects.all()} == {boss}


def test_an_overrides_author_is_who_saved_it_last(client, boss, fairness):
    add(client, OVERRIDES, **OVERRIDE, author="99", ends_at_0="2100-01-01", ends_at_1="00:00")
    row = LimitOverride.objects.get()
    assert (row.author, row.ends_at) == (boss, YEAR_2100)
    found = fairness.limits.inspect("api").override
    assert (found.concurrency, found.by, found.reason) == (3, "boss", "a sale")
    other = User.objects.create_superuser("other", password="secret")
    client.force_login(other)
    change(client, OVERRIDES, row, **{**OVERRIDE, "concurrency": "5", "reason": "two sales"})
    assert fairness.limits.inspect("api").override.by == "other"
    client.post(reverse(f"{OVERRIDES}_delete", args=[row.pk]), {"post": "yes"})
    assert log() == [
        (ADDITION, "api", "Added. Reason: a sale"),
        (CHANGE, "api", "Changed Tasks at once, Ends at and Reason. Reason: two sales"),
        (DELETION, "api", "Reason: two sales"),
    ]
    assert [entry.user for entry in LogEntry.objects.order_by("pk")] == [boss, other, other]


def test_the_numbers_of_queues_are_changed_in_the_list(client, boss, fairness):
    row = QueueLimit.objects.create(queue="emails", global_limit=3, note="why")
    data = {
        "_save": "Save",
        "form-TOTAL_FORMS": "1",
        "form-INITIAL_FORMS": "1",
        "form-0-id": str(row.pk),
        "form-0-global_limit": "7",
        "form-0-local_limit": "",
    }
    page = read(client.post(reverse(f"{QUEUES}_changelist"), data, follow=True))
    assert "1 limit of a queue was changed successfully" in page
    assert fairness.queues.inspect("emails").limit.global_limit == 7
    assert log() == [(CHANGE, "emails", "Changed At once in all. Reason: why")]


@pytest.mark.parametrize(("name", "model", "fields"), PAGES)
def test_rows_deleted_in_bulk_are_logged_one_by_one(client, boss, fairness, name, model, fields):
    add(client, name, **fields)
    LogEntry.objects.all().delete()
    pks = list(model.objects.values_list("pk", flat=True))
    action = {"action": "delete_selected", "_selected_action": pks, "post": "yes"}
    client.post(reverse(f"{name}_changelist"), action)
    assert not model.objects.exists()
    why = fields.get("note") or fields["reason"]
    assert log() == [(DELETION, next(iter(fields.values())), f"Reason: {why}")]


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        (QUEUES, {**QUEUE, "rate": "0/m"}, "expected a whole number from 1 to 1000000"),
        (QUEUES, {**QUEUE, "throttle": "often"}, "expected 'LIMIT/PERIOD' such as '100/m'"),
        (QUEUES, {**QUEUE, "queue": "@parked:redis"}, "that do not begin with “@parked:”"),
        (OVERRIDES, {**OVERRIDE, "reason": ""}, "This field is required"),
        (OVERRIDES, {**OVERRIDE, "concurrency": ""}, "Expected at least one number"),
        (OVERRIDES, {**OVERRIDE, "concurrency": "1000001"}, "Expected a whole number from 0"),
        (OVERRIDES, {**OVERRIDE, "key": "tenant:"}, "expected tenant:{tenant}"),
    ],
)
def test_a_form_says_what_it_expects(client, boss, fairness, name, fields, says):
    assert says in read(add(client, name, **fields))
    assert not QueueLimit.objects.exists()
    assert not LimitOverride.objects.exists()


def test_the_list_shows_what_is_in_force(client, boss, fairness, redis_server):
    QueueLimit.objects.create(queue="emails", global_limit=3, rate="5/s")
    LimitOverride.objects.create(key="api", concurrency="3", reason="a sale")
    LimitOverride.objects.create(
        key="old", concurrency="3", reason="a sale", ends_at=timezone.now() - timedelta(days=1)
    )
    assert "5/s – wait yes" in change_list(client, QUEUES)
    page = change_list(client, OVERRIDES)
    assert re.search(r"api 3 – – – yes a sale –", page)
    assert re.search(r"old 3 – – .* ended a sale –", page)
    fairness.queues.set_limit("emails", global_limit=9)
    fairness.limits.override("api", concurrency=9)
    for name in (QUEUES, OVERRIDES):
        shown = "⚠ workers use other numbers until this row is published"
        assert shown in change_list(client, name)
    redis_server.kill()
    for name in (QUEUES, OVERRIDES):
        page = change_list(client, name)
        assert "does not answer" in page
        assert "workers use" not in page


def test_a_row_that_sql_made_invalid_is_shown_with_its_reason(client, boss, fairness):
    QueueLimit.objects.bulk_create([QueueLimit(queue="emails", rate="0/m")])
    LimitOverride.objects.bulk_create([LimitOverride(key="api", rate="0/m", reason="why")])
    for name in (QUEUES, OVERRIDES):
        assert "⚠ rate.limit: expected a whole number from 1" in change_list(client, name)


@pytest.mark.parametrize(("name", "model", "fields"), PAGES)
def test_saving_with_redis_away_saves_and_says_that_publishing_is_pending(
    client, boss, redis_away, name, model, fields
):
    page = read(add(client, name, **fields))
    assert model.objects.count() == 1
    assert "1 saved change has not reached Redis" in page
    assert "“manage.py publish”" in page
    redis_away.restart()
    [address] = re.findall(
        'action="([^"]+/publish/)"',
        client.get(reverse(f"{name}_changelist")).content.decode(),
    )
    LogEntry.objects.all().delete()
    assert "has not reached Redis" not in read(client.post(address, follow=True))
    assert not UnpublishedChange.objects.exists()
    [entry] = LogEntry.objects.all()
    assert (entry.user, entry.change_message) == (boss, "Published everything to Redis.")


def test_the_button_names_the_rows_that_cannot_be_published(client, boss, fairness):
    QueueLimit.objects.bulk_create([QueueLimit(queue="emails", rate="0/m")])
    page = read(client.post(reverse(f"{QUEUES}_publish"), follow=True))
    assert "Queue emails: rate.limit: expected a whole number from 1" in page


@pytest.mark.parametrize(("name", "model", "fields"), PAGES)
def test_who_may_only_look_can_change_nothing(client, clerk, fairness, name, model, fields):
    row = model(**{key: value for key, value in fields.items() if value})
    row.save()
    page = client.get(reverse(f"{name}_changelist"))
    assert next(iter(fields.values())) in read(page)
    assert not page.context["cl"].formset
    assert b"publish/" not in page.content
    form = client.get(reverse(f"{name}_change", args=[row.pk]))
    assert b'name="_save"' not in form.content
    one = [row.pk]
    assert client.post(reverse(f"{name}_change", args=one), fields).status_code == 403
    assert client.post(reverse(f"{name}_delete", args=one), {"post": "yes"}).status_code == 403
    assert client.post(reverse(f"{name}_add"), fields).status_code == 403
    assert client.post(reverse(f"{name}_publish")).status_code == 403
    assert model.objects.count() == 1
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(("name", "model", "fields"), PAGES)
def test_the_right_to_change_is_not_the_right_to_delete(client, clerk, name, model, fields):
    # On this broker no worker checks the queue. The form of a saved row has no field for its name.
    row = model(**fields)
    row.save()
    codename = f"change_{model._meta.model_name}"
    clerk.user_permissions.add(Permission.objects.get(codename=codename))
    field = "note" if model is QueueLimit else "reason"
    change(client, name, row, **{**fields, field: "another"})
    row.refresh_from_db()
    assert getattr(row, field) == "another"
    one = [row.pk]
    assert client.post(reverse(f"{name}_delete", args=one), {"post": "yes"}).status_code == 403
    assert client.post(reverse(f"{name}_add"), fields).status_code == 403


def test_overrides_are_chosen_by_their_end(client, boss, fairness):
    now = timezone.now()
    ends = {"ended": -1, "today": 1, "later": 48}
    rows = [
        LimitOverride(key=key, concurrency="1", ends_at=now + timedelta(hours=hours))
        for key, hours in ends.items()
    ]
    LimitOverride.objects.bulk_create([*rows, LimitOverride(key="never", concurrency="1")])
    address = reverse("admin:django_celery_fairness_limitoverride_changelist")
    shown = {
        "": {"ended", "today", "later", "never"},
        "in-force": {"today", "later", "never"},
        "soon": {"today"},
        "never": {"never"},
        "ended": {"ended"},
    }
    for choice, keys in shown.items():
        page = client.get(address, {"end": choice} if choice else {})
        assert {row.key for row in page.context["cl"].result_list} == keys, choice


def test_a_stranger_sees_nothing(client):
    for name, _, _ in PAGES:
        assert client.get(reverse(f"{name}_changelist")).status_code == 302


def test_a_tenants_time_is_edited_and_shown(client, boss, fairness, redis_server):
    pro = Tier.objects.get(name="pro")
    fields = {
        "tenant": "acme",
        "tier": pro.pk,
        "note": "a trial",
        "valid_until_0": "2100-01-01",
        "valid_until_1": "00:00",
    }
    add(client, TENANTS, **fields)
    row = TenantTier.objects.get()
    assert row.valid_until == YEAR_2100
    assert fairness.limits.inspect("tenant:acme").limit == 3
    page = change_list(client, TENANTS)
    assert "until Jan. 1, 2100" in page
    assert "not now" not in page
    assert log() == [(ADDITION, "acme", "Added. Reason: a trial")]
    begin = {"valid_from_0": "2100-01-01", "valid_from_1": "00:00"}
    assert "Expected an end after the beginning" in read(
        change(client, TENANTS, row, **fields, **begin)
    )
    later = {"valid_until_0": "2100-01-02"}
    change(client, TENANTS, row, **{**fields, **begin, **later})
    page = change_list(client, TENANTS)
    assert re.search(r"from Jan\. 1, 2100, \S+( a\.m\.)? until Jan\. 2, 2100.* ⚠ not now", page)
    # The default tier holds, and nothing differs from the database.
    assert "1: tier free" in page
    assert "the database has" not in page
    with redis_server.client() as redis:
        redis.delete("{fairness}:tenant:acme")
    assert "1: tier free" in change_list(client, TENANTS)


@pytest.mark.parametrize("name", [QUEUES, OVERRIDES])
def test_without_fairness_nothing_is_said_of_what_is_in_force(client, boss, unwired, name):
    QueueLimit.objects.create(queue="emails", global_limit=3)
    LimitOverride.objects.create(key="api", concurrency="3", reason="a sale")
    page = change_list(client, name)
    assert "Fairness is not wired" in page
    assert "workers use" not in page
