"""What all pages about Redis have in common: permissions, audit, Redis away, no table."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client
from django_celery_fairness import dashboard
from django_celery_fairness.redis_pages import quoted, unquoted

from tests.cli.clearing import bury, send
from tests.django.suite.operators import do, history, show, url
from tests.django.suite.test_admin import read

pytestmark = pytest.mark.django_db(transaction=True)

#: Every page, with the permission to view it.
PAGES = [
    ("dashboard_changelist", (), "view_dashboard"),
    ("tenant_changelist", (), "view_tenant"),
    ("limitkey_changelist", (), "view_limitkey"),
    ("limitkey_change", ("tenant:42",), "view_limitkey"),
    ("queue_changelist", (), "view_queue"),
    ("queue_change", ("celery",), "view_queue"),
    ("task_changelist", (), "view_task"),
    ("task_change", ("t0",), "view_task"),
    ("deadletter_changelist", (), "view_deadletter"),
    ("deadletter_change", ("died",), "view_deadletter"),
]
#: Every form, with a field that would do something.
FORMS = [
    ("limitkey_change", ("tenant:42",), {"action": "pause"}),
    ("limitkey_purge", ("tenant:42",), {}),
    ("task_cancel", ("t0",), {}),
    ("deadletter_changelist", (), {"task_id": ["died"]}),
]


@pytest.fixture(autouse=True)
def tasks(shop):
    """A dead letter, and a task that waits."""
    dashboard.shared.forget()
    bury(shop, "9", "died")
    send(shop, "42", "t0")
    yield
    dashboard.shared.forget()


@pytest.mark.parametrize(
    ("page", "names"),
    [*(each[:2] for each in PAGES if each[0] not in ("task_change", "deadletter_change"))]
    + [each[:2] for each in FORMS],
)
def test_any_page_answers_the_header_of_the_script(client, boss, page, names):
    assert client.get(url(page, *names), headers={"X-Fairness": "live"}).status_code == 200


def staff(client, *permissions: str) -> User:
    user = User.objects.create_user("staff", password="secret", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client.force_login(user)
    return user


@pytest.mark.parametrize(("page", "names", "permission"), PAGES)
def test_a_page_needs_its_own_permission(client, page, names, permission):
    address = url(page, *names)
    assert client.get(address).status_code == 302
    user = staff(client)
    others = [each for _, _, each in PAGES if each != permission]
    user.user_permissions.set(Permission.objects.filter(codename__in=others))
    assert client.get(address).status_code == 403
    user.user_permissions.set(Permission.objects.filter(codename=permission))
    assert client.get(address).status_code in (200, 302)


@pytest.mark.parametrize(("page", "names", "fields"), FORMS)
def test_staff_who_may_only_look_see_no_button_and_change_nothing(
    client, clerk, claiming, shop, page, names, fields
):
    answer = client.get(url(page, *names))
    if answer.status_code != 403:
        main = answer.content.decode().partition('id="content-main"')[2]
        assert 'method="post"' not in main.partition("<footer")[0]
    assert client.post(url(page, *names), {**fields, "reason": "r"}).status_code == 403
    assert not claiming.tenants.inspect("42").holds.on_hold
    assert shop.find("t0")[0][1] == "waiting"
    assert shop.find("died")[0][1] == "dead"
    assert history() == []


@pytest.mark.parametrize(("page", "names", "fields"), FORMS)
def test_the_permission_to_change_is_enough(client, page, names, fields):
    model = page.partition("_")[0]
    staff(client, f"view_{model}", f"change_{model}", "view_task")
    do(client, page, *names, **fields, reason="because")
    [(user, _, message)] = history()
    assert user == "staff"
    assert "because: because." in message
    assert "Not done" not in message


@pytest.mark.parametrize(("page", "names", "fields"), FORMS)
def test_a_form_without_its_token_is_rejected(boss, claiming, page, names, fields):
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(boss)
    assert strict.post(url(page, *names), {**fields, "reason": "r"}).status_code == 403
    assert history() == []


@pytest.mark.parametrize(("page", "names", "_permission"), PAGES)
def test_with_redis_away_a_page_says_so_and_offers_nothing(
    client, boss, redis_server, page, names, _permission
):
    redis_server.kill()
    answer = client.get(url(page, *names), follow=True)
    text = read(answer)
    assert "does not answer" in text
    main = answer.content.decode().partition('id="content-main"')[2]
    assert 'method="post"' not in main.partition("<footer")[0]


@pytest.mark.parametrize(("page", "names", "fields"), FORMS)
def test_a_change_while_redis_is_away_is_not_done_and_said(
    client, boss, redis_server, page, names, fields
):
    redis_server.kill()
    text = do(client, page, *names, **fields, reason="r")
    assert "Not done: the broker's Redis at" in text
    assert "Not done: the broker's Redis at" in history()[0][2]


@pytest.mark.parametrize(("page", "names", "_permission"), PAGES)
def test_without_a_fairness_a_page_says_what_is_missing(
    client, boss, unwired, page, names, _permission
):
    assert "Fairness is not wired" in read(client.get(url(page, *names), follow=True))


@pytest.mark.parametrize("page", ["limitkey_changelist", "queue_changelist", "task_changelist"])
def test_a_page_says_that_limits_are_not_enforced(client, boss, wire, redis_url, page):
    wire(f"fair{redis_url}", enabled="observe")
    assert "Limits are only observed, not enforced" in show(client, page)


def test_a_page_says_that_a_change_waits_to_be_published(client, boss, pro, redis_server):
    redis_server.kill()
    pro.concurrency = 8
    pro.save()
    redis_server.restart()
    assert "1 saved change has not reached Redis" in show(client, "limitkey_changelist")


def test_the_part_that_changes_comes_alone(client, boss):
    answer = client.get(url("limitkey_change", "tenant:42"), headers={"X-Fairness": "live"})
    assert b"<html" not in answer.content
    assert b"csrfmiddlewaretoken" not in answer.content
    assert b"tenant:42" not in answer.content.partition(b"<dl")[0]
    assert "no-store" in answer["Cache-Control"]


def test_the_history_links_to_what_was_changed(client, boss):
    do(client, "limitkey_change", "tenant:a/b", action="pause", reason="r")
    page = client.get("/admin/").content.decode()
    assert f'href="{url("limitkey_change", "tenant:a/b")}"' in page


def test_dumpdata_passes_over_pages_without_a_table(four_tiers):
    written = StringIO()
    call_command("dumpdata", "django_celery_fairness", "--all", stdout=written)
    assert {row["model"] for row in json.loads(written.getvalue())} == {
        "django_celery_fairness.tier"
    }


@pytest.mark.parametrize("name", [".", "..", "a.b", "_2E", "_2E_2E", "._2E", "a/b:c", "", "é"])
def test_a_name_comes_back_from_its_address_and_is_no_folder(name):
    assert unquoted(quoted(name)) == name
    assert quoted(name) not in (".", "..")
