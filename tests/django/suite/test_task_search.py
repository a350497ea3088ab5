"""Tasks: lists and bulk cancel, the words of the command about one task, and its cancel."""

from __future__ import annotations

import re

import click
import pytest
from django.contrib.auth.models import Permission, User
from django.utils.http import urlencode
from django.utils.text import capfirst

from celery_fairness.config.tenants import key_part
from celery_fairness.control.task.task_list import LIST_LENGTH
from celery_fairness.texts.tasks import explanation_lines
from tests.cli.clearing import bury, send
from tests.django.suite.operators import do, history, show, url
from tests.django.suite.test_admin import read

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def someone(boss, shop):
    """The administrator, and an installation."""


def test_it_explains_in_the_words_of_the_command(client, shop, claiming):
    for number in range(2):
        send(shop, f"4{number}", f"t{number}", limits="api|C1|w")
    shop.claim()
    claiming.limits.pause("api", by="ada")
    page = show(client, "task_changelist", id=" t1 ")
    lines = [click.unstyle(each) for each in explanation_lines(claiming.tasks.explain("t1"))]
    facts = [line for line in lines if line and "  " not in line]
    assert "blocked by api: paused" in " ".join(facts)
    for line in facts:
        assert capfirst(line).partition(" s ")[0] in page
    assert "held by task state held for owner t0 shop.work claimed" in page
    assert "limit numbers on limit held state why tenant:41" in page


def test_a_task_that_is_nowhere_is_said(client):
    page = show(client, "task_changelist", id="gone")
    assert "task 'gone' neither waits nor runs" in page
    assert "Cancel this task" not in page


def test_without_an_id_it_lists_tasks_and_says_what_to_do(client, shop):
    page = show(client, "task_changelist")
    assert "Type the id of a task" in page
    assert "No such task waits, runs, or is a dead letter." in page
    send(shop, "42", "first")
    send(shop, "43", "second", queue="mail")
    page = show(client, "task_changelist")
    assert re.search(r"first shop.work waiting \d", page)
    assert re.search(r"second shop.work waiting \d", page)
    assert "Cancel all that wait" not in page
    page = show(client, "task_changelist", queue="mail", state="waiting")
    assert re.search(r"second shop.work waiting \d", page)
    assert "first shop.work" not in page
    assert "Cancel all that wait" in page
    assert "Cancel all that wait" not in show(client, "task_changelist", queue="mail", state="dead")


def test_a_list_goes_on_at_its_next_page(client, shop):
    for number in range(LIST_LENGTH + 1):
        send(shop, "42", f"id-{number}")
    first = client.get(url("task_changelist"), {"tenant": "42"}).content.decode()
    assert "id-49" in first
    assert "id-50" not in first
    (following,) = re.findall(r'href="([^"]*cursor=[^"]*)"', first)
    second = client.get(url("task_changelist") + following.replace("&amp;", "&")).content.decode()
    assert "id-50" in second
    assert "id-49" not in second
    assert "first page" in second


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ({"state": "later"}, "state: expected one of waiting"),
        ({"cursor": "x"}, "cursor: expected the cursor of a page"),
        ({"key": "a b"}, "key: expected the key of a limit"),
        ({"tenant": "x" * 300}, "at most 200 bytes"),
    ],
)
def test_a_filter_that_cannot_be_is_a_problem_of_the_page(client, query, problem):
    assert problem in show(client, "task_changelist", **query)


@pytest.mark.parametrize("tenant", ["a&b=c", "<b>x</b>", "é 😀", '"', "?id=1"])
def test_a_hostile_tenant_is_listed_and_cancelled(client, shop, tenant):
    send(shop, key_part(tenant), "first")
    address = f"{url('task_cancel_all')}?{urlencode({'tenant': tenant})}"
    page = read(client.get(address))
    assert "1 task of tenant" in page
    done = client.post(address, {"reason": "r", "confirm": "1"}, follow=True)
    assert "1 task is cancelled" in read(done)
    assert b"<b>x</b>" not in done.content
    assert shop.find("first")[0][1] == "ended"


def test_a_bulk_cancel_asks_with_the_number_and_is_in_the_history(client, shop):
    for number in range(3):
        send(shop, "42", f"id-{number}")
    send(shop, "42", "due", eta_ms=9_000_000_000_000)
    address = f"{url('task_cancel_all')}?tenant=42&state=waiting"
    page = read(client.get(address))
    assert "3 tasks of tenant 42, state waiting will not run" in page
    assert "This field is required" in read(client.post(address, {"confirm": "3"}))
    # A task that came after the question stays.
    send(shop, "42", "id-3")
    page = read(client.post(address, {"reason": "flood", "confirm": "3"}, follow=True))
    assert "3 tasks are cancelled, and others are left" in page
    assert re.search(r"id-3 shop.work waiting \d", page)
    ((who, row, what),) = history()
    assert (who, row) == ("boss", "?tenant=42&state=waiting")
    assert what.startswith(
        "Cancel tasks of tenant 42, state waiting, because: flood. Done: 3 tasks"
    )
    to_list = client.get(url("task_change", row)).url
    assert to_list == f"{url('task_changelist')}?tenant=42&state=waiting"


@pytest.mark.parametrize("query", ["", "state=waiting", "tenant=42&state=running"])
def test_what_no_bulk_cancel_takes_leads_back_to_the_list(client, shop, query):
    send(shop, "42", "first")
    answer = client.post(f"{url('task_cancel_all')}?{query}", {"reason": "r", "confirm": "9"})
    assert answer.status_code == 302
    assert shop.find("first")[0][1] == "waiting"


def test_a_key_a_tenant_and_a_queue_show_their_first_tasks(client, shop):
    send(shop, "42", "first", limits="api|C1|w")
    send(shop, "43", "second", queue="mail")
    for page, name in (("limitkey", "api"), ("limitkey", "tenant:42"), ("queue", "celery")):
        text = show(client, f"{page}_change", name)
        assert "Its tasks" in text
        assert re.search(r"first shop.work waiting \d", text)
        assert "second" not in text


def test_who_may_not_see_tasks_sees_no_list(client, shop):
    send(shop, "42", "first")
    rights = Permission.objects.filter(codename__in=["view_limitkey", "view_queue"])
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.set(rights)
    client.force_login(viewer)
    for page, name in (("limitkey", "tenant:42"), ("queue", "celery")):
        assert "Its tasks" not in show(client, f"{page}_change", name)
    assert client.get(url("task_cancel_all")).status_code == 403


def test_a_cancel_asks_first(client, shop):
    send(shop, "42", "t/1 é")
    assert "Cancel this task" in show(client, "task_changelist", id="t/1 é")
    page = show(client, "task_cancel", "t/1 é")
    assert "This task will not run" in page
    assert "Task shop.work[t/1 é]".lower() in page.lower()
    assert shop.find("t/1 é")[0][1] == "waiting"
    page = do(client, "task_cancel", "t/1 é", reason="sent twice")
    assert "task t/1 é of queue celery is cancelled" in page
    assert shop.find("t/1 é")[0][1] == "ended"
    assert history() == [
        (
            "boss",
            "t/1 é",
            "Cancel, because: sent twice. Done: task t/1 é of queue celery is cancelled",
        )
    ]


def test_a_running_task_is_not_cancelled(client, shop):
    send(shop, "42", "runs")
    assert len(shop.claim()) == 1
    assert "Cancel this task" not in show(client, "task_changelist", id="runs")
    page = do(client, "task_cancel", "runs", reason="r")
    assert "task runs already runs at worker-1 and goes on" in page
    assert "Not done" in history()[0][2]


def test_a_dead_letter_links_to_its_queue(client, shop):
    bury(shop, "42", "dead")
    page = client.get(url("task_changelist"), {"id": "dead"})
    assert f'href="{url("deadletter_changelist")}?queue=celery"'.encode() in page.content
    assert client.get(url("deadletter_change", "dead")).url == f"{url('task_changelist')}?id=dead"
    assert client.get(url("task_change", "dead")).url == f"{url('task_changelist')}?id=dead"


@pytest.mark.parametrize("task_id", ["<script>alert(1)</script>", "../x", "é\n\0", "x" * 900])
def test_a_hostile_id_is_shown_as_text(client, shop, task_id):
    for page in (
        client.get(url("task_changelist"), {"id": task_id}),
        client.get(url("task_cancel", task_id)),
        client.post(url("task_cancel", task_id), {"reason": "r"}, follow=True),
    ):
        assert page.status_code == 200
        assert b"<script>alert(1)" not in page.content
    assert len(history()) == 1


def test_an_id_of_ten_kilobytes_is_rejected(client):
    page = show(client, "task_changelist", id="x" * 10_000)
    assert "No id has more than 1000 characters" in page
