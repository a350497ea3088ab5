"""The API and the pages write numbers as rows, so the database and Redis never disagree."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from celery import current_app
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import connections, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django_celery_fairness import publishing
from django_celery_fairness.limit_rows import end_override, end_queue_limit
from django_celery_fairness.models import LimitOverride, QueueLimit, TenantTier, UnpublishedChange

from celery_fairness.errors import NotFound
from celery_fairness.wiring import wired
from tests.django.suite.api_client import MEDIA_TYPE, ApiClient
from tests.django.suite.operators import do, show, url
from tests.django.suite.test_admin import read

pytestmark = pytest.mark.django_db(transaction=True)

QUEUE = "admin/queues/emails/rate-limit"
TENANT = "tenant:42"
LONG = "tenant:" + "x" * 200


@pytest.fixture
def api(claiming) -> ApiClient:
    return ApiClient("write", name="deploy")


@pytest.fixture
def dying(redis_server, monkeypatch):
    """Redis dies after a row is saved, before it is published."""
    for model in (LimitOverride, QueueLimit):
        save = model.save

        def saved(row: Any, *args: Any, _save: Any = save, **options: Any) -> None:
            _save(row, *args, **options)
            redis_server.kill()

        monkeypatch.setattr(model, "save", saved)
    yield redis_server
    monkeypatch.undo()


def numbers(fairness, key: str = "api") -> dict[str, Any] | None:
    """The override of a key in Redis."""
    try:
        found = fairness.limits.inspect(key).override
    except NotFound:
        return None
    return found.numbers if found else None


def texts(row: LimitOverride) -> tuple[str, str, str]:
    return row.concurrency, row.rate, row.throttle


def test_an_override_of_the_api_is_a_row(api, claiming):
    ends = timezone.now().replace(microsecond=0) + timedelta(hours=1)
    rate = {"limit": 7, "period": "P1DT1H"}
    body = {"concurrency": None, "rate": rate, "expires_at": ends.isoformat(), "reason": "a sale"}
    assert api("PUT", "rate-limits/api", body).status == 200
    row = LimitOverride.objects.get()
    assert (row.key, row.ends_at, row.reason) == ("api", ends, "a sale")
    assert texts(row) == ("unlimited", "7/P1DT1H", "")
    assert (row.author, row.author_name) == (None, "token deploy")
    before = claiming.limits.inspect("api").override
    publishing.publish_everything()
    assert claiming.limits.inspect("api").override == before
    assert api("PUT", "rate-limits/api", {"throttle": None}).status == 200
    assert texts(LimitOverride.objects.get()) == ("", "", "unlimited")
    assert LimitOverride.objects.get().pk == row.pk
    assert numbers(claiming) == {"throttle": None}
    assert api("DELETE", "rate-limits/api/override").status == 204
    assert not LimitOverride.objects.exists()
    publishing.publish_everything()
    assert numbers(claiming) is None
    assert not UnpublishedChange.objects.exists()


def test_a_limit_of_the_api_is_a_row_and_keeps_the_note(api, claiming):
    QueueLimit.objects.create(queue="emails", global_limit=1, local_limit=1, note="20 connections")
    body = {"concurrency": 20, "throttle": {"limit": 1, "period": "PT1S"}, "on_limit": "drop"}
    assert api("PUT", QUEUE, body).status == 200
    row = QueueLimit.objects.get()
    assert (row.global_limit, row.local_limit, row.rate, row.throttle) == (20, None, "", "1/PT1S")
    assert (row.on_limit, row.note) == ("drop", "20 connections")
    publishing.publish_everything()
    assert claiming.queues.inspect("emails").limit.global_limit == 20
    assert api("PUT", QUEUE, {}).json["concurrency"] is None
    assert api("DELETE", QUEUE).status == 204
    publishing.publish_everything()
    assert not QueueLimit.objects.exists()
    assert api("GET", QUEUE).status == 404


def test_the_author_is_the_user_of_the_session_or_of_the_token(claiming):
    ada = User.objects.create_superuser("ada", password="secret")
    browser = Client()
    browser.force_login(ada)
    browser.put("/ojs/v1/rate-limits/api", b'{"concurrency": 1}', content_type=MEDIA_TYPE)
    row = LimitOverride.objects.get()
    assert (row.author, row.author_name, row.reason) == (ada, "ada", "")
    assert claiming.limits.inspect("api").override.reason is None
    [entry] = LogEntry.objects.all()
    assert (entry.user, entry.content_type.model, entry.object_id) == (
        *(ada, "limitoverride"),
        str(row.pk),
    )
    ApiClient("write", name="deploy", owner=ada)("PUT", "rate-limits/api", {"concurrency": 2})
    row = LimitOverride.objects.get()
    assert (row.author, row.author_name) == (ada, "token deploy")
    assert claiming.limits.inspect("api").override.by == "token deploy"


REQUESTS = [
    ("PUT", "rate-limits/api", {"concurrency": 9}),
    ("DELETE", "rate-limits/api/override", None),
    ("PUT", QUEUE, {"concurrency": 9}),
    ("DELETE", QUEUE, None),
]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
@pytest.mark.parametrize("has_rows", [True, False])
def test_while_redis_is_away_a_request_changes_nothing(
    api, redis_server, method, path, body, has_rows
):
    if has_rows:
        LimitOverride.objects.create(key="api", concurrency="3", reason="why")
        QueueLimit.objects.create(queue="emails", global_limit=3)
    redis_server.kill()
    assert "does not answer" in api(method, path, body).rejected(503, "unavailable")
    rows = [*LimitOverride.objects.values_list("concurrency", flat=True)]
    rows += QueueLimit.objects.values_list("global_limit", flat=True)
    assert rows == (["3", 3] if has_rows else [])
    assert not UnpublishedChange.objects.exists()


@pytest.mark.parametrize(("method", "path", "body"), [each for each in REQUESTS if each[2]])
def test_if_redis_dies_during_a_request_the_row_is_published_later(
    api, claiming, dying, method, path, body
):
    assert "does not answer" in api(method, path, body).rejected(503, "unavailable")
    assert UnpublishedChange.objects.count() == 1
    dying.restart()
    publishing.publish_pending()
    if "queues" in path:
        assert claiming.queues.inspect("emails").limit.global_limit == 9
    else:
        assert numbers(claiming) == {"concurrency": 9}


def test_what_a_command_has_set_ends_too(client, boss, api, claiming):
    claiming.limits.override("api", concurrency=4)
    claiming.queues.set_limit("emails", global_limit=4)
    assert "override until it is cleared" in show(client, "limitkey_change", "api")
    page = do(client, "limitkey_change", "api", action="clear_override", reason="over")
    assert "api: its own numbers hold again" in page
    assert numbers(claiming) is None
    page = do(client, "limitkey_change", "api", action="clear_override", reason="over")
    assert "api: no override held" in page
    claiming.limits.override("api", concurrency=4)
    assert api("DELETE", "rate-limits/api/override").status == 204
    assert api("DELETE", QUEUE).status == 204
    assert api("DELETE", QUEUE).status == 404
    assert not LogEntry.objects.filter(change_message__contains="queue limit").exists()


def test_an_override_that_has_ended_stays_as_a_row_and_can_begin_again(api, claiming):
    row = LimitOverride.objects.create(
        key="api", concurrency="3", reason="why", ends_at=timezone.now() - timedelta(days=1)
    )
    assert api("DELETE", "rate-limits/api/override").status == 404
    claiming.limits.override("api", concurrency=4)
    assert api("DELETE", "rate-limits/api/override").status == 204
    assert numbers(claiming) is None
    assert LimitOverride.objects.get() == row
    assert api("PUT", "rate-limits/api", {"concurrency": 5}).status == 200
    assert LimitOverride.objects.get().pk == row.pk
    assert not LimitOverride.objects.get().has_ended


@pytest.mark.parametrize("typed", [LONG, "tenant:a b", "queue:é ü", "queue:a:b"])
def test_a_key_has_one_row_in_any_of_its_forms(api, client, boss, claiming, typed):
    claiming.queues.set_limit("a:b")
    assert api("PUT", f"rate-limits/{typed}", {"concurrency": 5}).status == 200
    hashed = claiming.limits.inspect(typed).key
    assert hashed.partition(":")[2].startswith("h_")
    assert LimitOverride.objects.get().key == typed
    assert api("PUT", f"rate-limits/{hashed}", {"concurrency": 6}).status == 200
    assert LimitOverride.objects.get().concurrency == "6"
    row = LimitOverride.objects.get()
    form = reverse("admin:django_celery_fairness_limitoverride_change", args=[row.pk])
    assert form.encode() in client.get(url("limitkey_change", hashed)).content
    do(client, "limitkey_change", hashed, action="clear_override", reason="over")
    assert not LimitOverride.objects.exists()
    assert numbers(claiming, typed) is None


def test_a_key_has_no_second_row_in_another_form(client, boss, claiming):
    claiming.queues.set_limit("é ü")
    LimitOverride.objects.create(key="queue:é ü", concurrency="5")
    hashed = claiming.limits.inspect("queue:é ü").key
    fields = {"key": hashed, "concurrency": "6", "reason": "why"}
    page = read(client.post(reverse("admin:django_celery_fairness_limitoverride_add"), fields))
    assert "got that of: queue:é ü" in page
    assert LimitOverride.objects.get().concurrency == "5"


@pytest.mark.parametrize("typed", [LONG, "tenant:a b", "queue:é ü"])
@pytest.mark.parametrize("first", ["typed", "hashed"])
def test_no_program_and_no_fixture_saves_a_second_form_of_a_key(claiming, tmp_path, typed, first):
    claiming.queues.set_limit("é ü")
    hashed = claiming.limits.inspect(typed).key
    one, other = (typed, hashed) if first == "typed" else (hashed, typed)
    row = LimitOverride.objects.create(key=one, concurrency="5")
    with pytest.raises(ValidationError, match="got that of"):
        LimitOverride.objects.create(key=other, concurrency="6")
    file = tmp_path / "rows.json"
    fields = {"key": other, "concurrency": "6"}
    model = "django_celery_fairness.limitoverride"
    file.write_text(json.dumps([{"model": model, "fields": fields}]))
    with pytest.raises(ValidationError, match="got that of"):
        call_command("loaddata", str(file), verbosity=0)
    assert LimitOverride.objects.get().key == one
    assert numbers(claiming, typed) == {"concurrency": 5}
    # The row itself may change its form.
    row.key = other
    row.save()
    assert LimitOverride.objects.get().key == other


def test_an_end_that_redis_would_reject_is_no_row(api, claiming):
    assert api("PUT", "rate-limits/api", {"concurrency": 5}).status == 200
    body = {"concurrency": 6, "expires_at": "9999-12-31T23:59:59Z"}
    assert "before the year 5138" in api("PUT", "rate-limits/api", body).rejected(409, "conflict")
    assert LimitOverride.objects.get().concurrency == "5"
    body["expires_at"] = "5137-01-01T00:00:00Z"
    assert api("PUT", "rate-limits/api", body).json["concurrency"]["limit"] == 6
    assert not UnpublishedChange.objects.exists()


@pytest.mark.parametrize("model", [LimitOverride, QueueLimit])
def test_a_row_that_is_saved_while_a_commands_number_is_cleared_holds(claiming, monkeypatch, model):
    """Another request saves it after the look at the rows, and before the change of Redis."""
    noun = type(claiming.limits if model is LimitOverride else claiming.queues)
    name = "clear_override" if model is LimitOverride else "clear_limit"
    clear = getattr(noun, name)

    def late(self: Any, of: str) -> Any:
        monkeypatch.undo()
        if model is LimitOverride:
            LimitOverride.objects.create(key="api", concurrency="5")
        else:
            QueueLimit.objects.create(queue="emails", global_limit=5)
        return clear(self, of)

    monkeypatch.setattr(noun, name, late)
    if model is LimitOverride:
        end_override(wired(current_app), "api")
        assert numbers(claiming) == {"concurrency": 5}
    else:
        end_queue_limit(wired(current_app), "emails")
        assert claiming.queues.inspect("emails").limit.global_limit == 5
    assert not UnpublishedChange.objects.exists()


def test_an_override_that_another_request_ends_at_once_is_no_mistake_of_the_body(
    api, claiming, monkeypatch
):
    save = LimitOverride.save

    def saved(row: LimitOverride, *args: Any, **options: Any) -> None:
        save(row, *args, **options)
        transaction.on_commit(LimitOverride.objects.all().delete)

    monkeypatch.setattr(LimitOverride, "save", saved)
    put = api("PUT", "rate-limits/api", {"concurrency": 5})
    assert put.rejected(503, "unavailable") == "another request ended the override"
    assert put.json["error"]["retryable"]


def test_a_key_that_a_database_cannot_store_has_the_row_of_its_hash(api, claiming):
    assert api("PUT", "rate-limits/tenant:%00", {"concurrency": 5}).status == 200
    assert LimitOverride.objects.get().key == claiming.limits.inspect("tenant:\0").key
    assert numbers(claiming, "tenant:\0") == {"concurrency": 5}
    assert api("DELETE", "rate-limits/tenant:%00/override").status == 204
    for path in ("admin/queues/%00/rate-limit", f"admin/queues/{'x' * 256}/rate-limit"):
        rejected = api("PUT", path, {"concurrency": 1}).rejected(404, "not_found")
        assert "Expected 1 to 255 bytes" in rejected


def test_an_answer_is_of_the_committed_row_with_atomic_requests(api, claiming, monkeypatch):
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    put = api("PUT", "rate-limits/api", {"concurrency": 5})
    assert put.json["concurrency"]["limit"] == 5
    assert api("PUT", QUEUE, {"concurrency": 5}).json["concurrency"] == 5
    assert not UnpublishedChange.objects.exists()


def test_a_boost_is_a_row_that_ends_and_never_compounds(client, boss, claiming):
    for _ in range(2):
        do(client, "limitkey_change", TENANT, action="boost", reason="a sale", for_seconds="10m")
    row = LimitOverride.objects.get()
    assert (row.key, row.concurrency, row.reason) == (TENANT, "2", "a sale")
    assert (row.author, row.author_name) == (boss, "boss")
    assert timedelta(minutes=9) < row.ends_at - timezone.now() <= timedelta(minutes=10)
    before = claiming.limits.inspect(TENANT).override
    publishing.publish_everything()
    assert claiming.limits.inspect(TENANT).override == before
    do(client, "limitkey_change", TENANT, action="clear_override", reason="sold out")
    assert not LimitOverride.objects.exists()
    publishing.publish_everything()
    assert numbers(claiming, TENANT) is None


def test_a_boost_that_redis_missed_is_saved_and_says_so(client, boss, claiming, dying):
    page = do(client, "limitkey_change", TENANT, action="boost", reason="a sale")
    assert "Done: tenant:42: saved, and in force when it is published" in page
    dying.restart()
    publishing.publish_pending()
    assert numbers(claiming, TENANT) == {"concurrency": 2}


def test_each_service_of_boosted_tenants_has_a_row(client, boss, wire, redis_url, acme):
    wire(f"fair{redis_url}", tier_scope="service")
    fields = {"action": "boost_tenants", "_selected_action": [acme.pk], "confirmed": "yes"}
    address = reverse("admin:django_celery_fairness_tenanttier_changelist")
    page = read(client.post(address, {**fields, "reason": "a sale"}, follow=True))
    assert "tenant:acme:_: concurrency 6 until" in page
    rows = dict(LimitOverride.objects.values_list("key", "concurrency"))
    # Tasks of other tests may have services too.
    assert rows.pop("tenant:acme:_") == "6"
    assert all(key.startswith("tenant:acme:") for key in rows)
    assert set(rows.values()) <= {"6"}
    assert TenantTier.objects.get() == acme


def links(client, page: str, name: str) -> list[str]:
    """The addresses of override and limit forms on a page."""
    content = client.get(url(page, name)).content.decode()
    return re.findall(r'href="([^"]*/(?:limitoverride|queuelimit)/(?:add/\?|\d)[^"]+)"', content)


@pytest.mark.parametrize(
    ("page", "name", "field"),
    [("limitkey_change", "tenant:a&b/c d", "key"), ("queue_change", "a&b/c d", "queue")],
)
def test_a_page_leads_to_the_form_of_its_row_filled_in(client, boss, claiming, page, name, field):
    queue = name.removeprefix("tenant:")
    claiming.queues.set_limit(queue, global_limit=1)
    [address] = links(client, page, name)
    form = client.get(address).context["adminform"].form
    assert form[field].value() == name
    row: Any
    if field == "key":
        row = LimitOverride.objects.create(key=name, concurrency="1", reason="why")
    else:
        row = QueueLimit.objects.create(queue=name, global_limit=1)
    [address] = links(client, page, name)
    assert client.get(address).context["original"] == row


@pytest.mark.parametrize(
    ("page", "name", "model"),
    [("limitkey_change", TENANT, "limitoverride"), ("queue_change", "emails", "queuelimit")],
)
def test_a_form_is_offered_to_who_may_save_it(client, clerk, claiming, page, name, model):
    claiming.queues.set_limit("emails", global_limit=1)
    may_steer = Permission.objects.get(codename="change_limitkey")
    clerk.user_permissions.add(may_steer)
    assert links(client, page, name) == []
    clerk.user_permissions.add(Permission.objects.get(codename=f"add_{model}"))
    assert len(links(client, page, name)) == 1


def test_a_gate_checks_only_the_queues_of_the_settings(client, boss, wire, redis_url):
    wire(redis_url, queues={"emails": {}})
    name = "admin:django_celery_fairness"
    fields = {"queue": "other", "global_limit": "1", "on_limit": "wait"}
    page = read(client.post(reverse(f"{name}_queuelimit_add"), fields))
    assert "the setting queues names" in page
    fields = {"key": "queue:other", "concurrency": "1", "reason": "why"}
    page = read(client.post(reverse(f"{name}_limitoverride_add"), fields))
    assert "the setting queues names" in page
    assert not QueueLimit.objects.exists()
    # A row of before is shown, and its numbers can be changed.
    row = QueueLimit.objects.create(queue="other", global_limit=1)
    fields = {"global_limit": "2", "on_limit": "wait"}
    client.post(reverse(f"{name}_queuelimit_change", args=[row.pk]), fields)
    row.refresh_from_db()
    assert row.global_limit == 2
