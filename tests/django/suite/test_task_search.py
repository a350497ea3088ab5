"""The task search: the words of the command, and cancel."""

from __future__ import annotations

import click
import pytest
from django.utils.text import capfirst

from celery_fairness.cli.show_task import explanation_lines
from tests.cli.clearing import bury, send
from tests.django.suite.operators import do, history, show, url

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def someone(boss, shop):
    """The administrator, and an installation."""


def test_it_explains_in_the_words_of_the_command(client, shop, claiming):
    for number in range(2):
        send(shop, f"4{number}", f"t{number}", limits="api|1|||w")
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


def test_without_an_id_it_says_what_to_do(client):
    assert "Type the id of a task" in show(client, "task_changelist")


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


def test_an_id_of_ten_kilobytes_is_refused(client):
    page = show(client, "task_changelist", id="x" * 10_000)
    assert "No id has more than 1000 characters" in page
