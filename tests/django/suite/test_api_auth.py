"""Tokens and sessions of the HTTP API: who may do what, and what is stored."""

from __future__ import annotations

import hashlib
import hmac
import io
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path as route
from django.urls import reverse
from django.utils import timezone
from django_celery_fairness import tokens
from django_celery_fairness.models import ApiToken, Tier

from celery_fairness import Fairness
from tests.django.suite.api_client import MEDIA_TYPE, ROOT, Answer, ApiClient
from tests.support.numbers import unset

pytestmark = pytest.mark.django_db(transaction=True)

#: The addresses of a project that has the admin and not the API.
urlpatterns = [route("admin/", admin.site.urls)]

TIER = {**unset("tier"), "concurrency": 7, "queue_class": "default", "description": ""}


@pytest.fixture
def fairness(wire: Callable[..., Fairness], redis_url: str) -> Fairness:
    return wire(f"fair{redis_url}")


@pytest.fixture(autouse=True)
def tiers(fairness, four_tiers) -> None:
    """Something to read and to write."""


def user_with(*names: str) -> User:
    user = User.objects.create_user(f"user {len(names)}", password="secret")
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    return user


def test_a_token_is_stored_hashed():
    row, text = tokens.create("shop", "read")
    assert re.fullmatch(r"fairness_[0-9a-f]{8}_[\w-]{43}", text)
    row.refresh_from_db()
    assert row.digest == hashlib.sha256(text.encode()).hexdigest()
    secret = text.split("_", 2)[2]
    stored = ApiToken.objects.values_list()[0]
    assert not any(secret in str(value) for value in stored)
    assert tokens.find(text) == row
    assert tokens.create("other", "read")[1] != text


def test_hashes_are_compared_in_constant_time_and_an_unknown_prefix_too(monkeypatch):
    _, text = tokens.create("shop", "read")
    compared = []
    compare = hmac.compare_digest

    def record(one: str, other: str) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(tokens.hmac, "compare_digest", record)
    assert tokens.find(text) is not None
    wrong = text[:-1] + ("a" if text[-1] != "a" else "b")
    assert tokens.find(wrong) is None
    assert tokens.find(text.replace("_", "_0", 1)[:-1]) is None
    assert tokens.find("fairness_00000000_" + "x" * 43) is None
    assert len(compared) >= 3
    assert all(len(one) == len(other) == 64 for one, other in compared)


@pytest.mark.parametrize(
    "text",
    ["", "x", "Bearer", "fairness_", "\x00", "fairness_00000000_" + "x" * 43 + "\n", "ä" * 60],
)
def test_what_is_no_token_is_401(text):
    sent = Client().get(f"{ROOT}tiers", headers={"Authorization": f"Bearer {text}"})
    Answer(sent).rejected(401, "unauthorized")


def test_a_revoked_token_is_401_and_its_name_is_free():
    api = ApiClient("read", "shop")
    assert api("GET", "tiers").status == 200
    with pytest.raises(ValidationError, match="exists and is not revoked"):
        tokens.create("shop", "read")
    assert tokens.revoke("shop")
    assert not tokens.revoke("shop")
    assert "revoked" in api("GET", "tiers").rejected(401, "unauthorized")
    assert ApiClient("read", "shop")("GET", "tiers").status == 200
    assert api("GET", "tiers").status == 401


def test_a_revoked_token_does_not_fall_back_to_a_session(client):
    client.force_login(User.objects.create_superuser("boss"))
    assert client.get(f"{ROOT}tiers").status_code == 200
    wrong = {"Authorization": "Bearer nobody"}
    assert client.get(f"{ROOT}tiers", headers=wrong).status_code == 401


def test_the_last_use_is_written_at_most_once_a_minute():
    api = ApiClient("read")
    assert api.row.last_used_at is None
    api("GET", "health/live")
    api.row.refresh_from_db()
    first = api.row.last_used_at
    assert timezone.now() - first < timedelta(minutes=1)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        api("GET", "health/live")
    assert not any(each["sql"].startswith("UPDATE") for each in queries)
    ApiToken.objects.update(last_used_at=first - timedelta(minutes=1))
    api("GET", "health/live")
    api.row.refresh_from_db()
    assert api.row.last_used_at >= first


def test_a_read_token_cannot_write():
    api = ApiClient("read")
    assert api("GET", "tiers/free").status == 200
    for method, path in [
        ("PUT", "tiers/free"),
        ("DELETE", "tiers/free"),
        ("PUT", "rate-limits/maps"),
        ("DELETE", "rate-limits/maps/override"),
        ("PUT", "admin/queues/email/rate-limit"),
        ("PUT", "tenants/acme"),
        ("DELETE", "tasks/1"),
    ]:
        assert "may not write" in api(method, path, TIER).rejected(403, "forbidden")
    assert ApiClient("write")("PUT", "tiers/free", TIER).status == 200
    assert Tier.objects.get(name="free").concurrency == 7


def test_a_token_may_do_no_more_than_its_owner():
    reader = user_with("view_tier")
    api = ApiClient("write", owner=reader)
    assert api("GET", "tiers").status == 200
    api("PUT", "tiers/free", TIER).rejected(403, "forbidden")
    api("GET", "tenants").rejected(403, "forbidden")
    reader.is_active = False
    reader.save()
    api("GET", "tiers").rejected(403, "forbidden")
    reader.delete()
    api("GET", "tiers").rejected(401, "unauthorized")


@pytest.fixture
def browser() -> Client:
    """A client that is checked against forgery, as a browser is."""
    return Client(enforce_csrf_checks=True)


def put(browser: Client, path: str, body: Any, **headers: str) -> Answer:
    sent = browser.put(ROOT + path, body, content_type=MEDIA_TYPE, headers=headers)
    return Answer(sent)


def test_a_session_that_writes_needs_the_csrf_token_and_a_token_does_not(browser):
    browser.force_login(User.objects.create_superuser("boss"))
    assert "CSRF" in put(browser, "tiers/free", TIER).rejected(403, "forbidden")
    assert browser.get(f"{ROOT}tiers").status_code == 200
    # Any page of the admin sets the cookie.
    browser.get(reverse("admin:index"))
    [name] = [name for name in browser.cookies if "csrf" in name]
    secret = browser.cookies[name].value
    assert put(browser, "tiers/free", TIER, **{"X-CSRFToken": "x" * 32}).status == 403
    assert put(browser, "tiers/free", TIER, **{"X-CSRFToken": secret}).status == 200
    browser.logout()
    api = ApiClient("write")
    bearer = {"Authorization": f"Bearer {api.token}"}
    assert put(browser, "tiers/free", TIER, **bearer).status == 200


def test_a_stranger_without_the_csrf_token_is_401(browser):
    put(browser, "tiers/free", TIER).rejected(401, "unauthorized")


def test_a_change_is_written_down_with_its_author(client, caplog):
    caplog.set_level("INFO", "celery_fairness")
    boss = User.objects.create_superuser("boss")
    client.force_login(boss)
    assert put(client, "tiers/free", TIER).status == 200
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_repr, entry.action_flag) == (boss, "free", 2)
    assert entry.content_type.model_class() is Tier
    assert '"concurrency": 7' in entry.change_message
    ApiClient("write", "shop", boss)("PUT", "rate-limits/maps", {"concurrency": 1})
    entry = LogEntry.objects.latest("pk")
    assert (entry.user, entry.object_repr) == (boss, "maps")
    assert "token shop" in entry.change_message
    # Without a user there is the log alone.
    nobody = ApiClient("write", "nobody")
    nobody("PUT", "rate-limits/tenant:a%0Ab", {"concurrency": 1})
    nobody("DELETE", "rate-limits/maps/override")
    assert LogEntry.objects.count() == 2
    lines = [each.message for each in caplog.records if each.message.startswith("by the API")]
    assert lines == [
        f"by the API boss changed tier 'free': {entry_text(TIER)}",
        "by the API token shop changed override 'maps': {\"concurrency\": 1}",
        "by the API token nobody changed override 'tenant:a\\nb': {\"concurrency\": 1}",
        "by the API token nobody deleted override 'maps': null",
    ]


def entry_text(body: dict[str, Any]) -> str:
    shown = str(body).replace("'", '"')
    return shown.replace("None", "null")


def test_a_change_that_is_rejected_is_not_written_down(client, caplog):
    caplog.set_level("INFO", "celery_fairness")
    client.force_login(User.objects.create_superuser("boss"))
    assert Answer(client.delete(f"{ROOT}tiers/free")).status == 409
    assert not LogEntry.objects.exists()
    assert "deleted" not in caplog.text
    assert Tier.objects.filter(name="free").exists()
    # One that is not is found in the history by its id.
    gold = Tier.objects.create(name="gold")
    assert client.delete(f"{ROOT}tiers/gold").status_code == 204
    assert LogEntry.objects.get().object_id == str(gold.pk)
    assert "by the API boss deleted tier 'gold': null" in caplog.messages


def command(*arguments: str) -> str:
    output = io.StringIO()
    call_command("fairness_token", *arguments, stdout=output, stderr=io.StringIO())
    return output.getvalue()


def test_the_command_makes_lists_and_revokes_tokens():
    text = command("create", "shop", "--write").strip()
    row = tokens.find(text)
    assert row is not None
    assert (row.name, row.may_write, row.owner) == ("shop", True, None)
    User.objects.create_user("ada")
    owned = tokens.find(command("create", "report", "--owner", "ada").strip())
    assert owned is not None
    assert (owned.scope, owned.owner.username) == ("read", "ada")
    assert command("revoke", "shop") == "revoked shop\n"
    listed = command("list")
    assert re.search(r"report: read, used .*, of ada\n", listed)
    assert re.search(rf"fairness_{row.prefix}_…  shop: revoked \d{{4}}", listed)
    assert text not in listed
    assert tokens.find(text) is None


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["revoke", "nobody"], "in use"),
        (["create", "shop", "--owner", "nobody"], "no user 'nobody'"),
        (["create", ""], "blank"),
        (["create", "x" * 101], "100"),
        (["create", "a\nb"], "one line"),
    ],
)
def test_the_command_rejects_what_cannot_be(arguments, problem):
    with pytest.raises(CommandError, match=problem) as failure:
        command(*arguments)
    assert failure.value.returncode == 1
    assert not ApiToken.objects.exists()


ADMIN = "admin:django_celery_fairness_apitoken"


def test_the_admin_shows_a_token_once_and_revokes_it(client):
    boss = User.objects.create_superuser("boss")
    client.force_login(boss)
    page = client.post(reverse(f"{ADMIN}_add"), {"name": "shop", "scope": "write"}, follow=True)
    [text] = re.findall(r"fairness_[0-9a-f]{8}_[\w-]{43}", page.content.decode())
    row = tokens.find(text)
    assert row is not None
    assert (row.owner, row.may_write) == (boss, True)
    again = client.get(reverse(f"{ADMIN}_changelist")).content.decode()
    assert row.prefix in again
    assert text not in again
    taken = client.post(reverse(f"{ADMIN}_add"), {"name": "shop", "scope": "read"})
    assert "exists and is not revoked" in taken.content.decode()
    chosen = {"action": "revoke", "_selected_action": row.pk}
    client.post(reverse(f"{ADMIN}_changelist"), chosen)
    assert tokens.find(text) is None
    assert ApiToken.objects.get().revoked_at is not None


def test_the_admin_lists_tokens_only_if_an_address_takes_them(client, settings):
    client.force_login(User.objects.create_superuser("boss"))
    listed = reverse(f"{ADMIN}_changelist")
    assert listed in client.get(reverse("admin:index")).content.decode()
    settings.ROOT_URLCONF = __name__
    page = client.get(reverse("admin:index")).content.decode()
    assert listed not in page
    assert reverse("admin:django_celery_fairness_tier_changelist") in page
    # A token of before can still be revoked.
    assert client.get(listed).status_code == 200


def test_staff_who_may_only_view_tokens_cannot_revoke_them(client):
    _, text = tokens.create("shop", "read")
    clerk = user_with("view_apitoken")
    clerk.is_staff = True
    clerk.save()
    client.force_login(clerk)
    listed = client.get(reverse(f"{ADMIN}_changelist"))
    assert listed.status_code == 200
    assert "Revoke the selected" not in listed.content.decode()
    chosen = {"action": "revoke", "_selected_action": ApiToken.objects.get().pk}
    client.post(reverse(f"{ADMIN}_changelist"), chosen)
    assert tokens.find(text) is not None
    assert client.get(reverse(f"{ADMIN}_add")).status_code == 403
