"""Dead letters: the list, why each is one, and requeue."""

from __future__ import annotations

import re

import pytest
from django_celery_fairness import dead_letters

from celery_fairness.scheduler.types import Verdict
from tests.cli.clearing import bury, send
from tests.django.suite.operators import do, history, show, url
from tests.django.suite.test_admin import read

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def someone(boss, shop):
    """The administrator, and an installation."""


def test_it_shows_each_letter_and_why_it_is_one(client, shop):
    bury(shop, "42", "died")
    page = show(client, "deadletter_changelist")
    assert "died shop.work celery 42 1 its process died 1 time while it ran" in page
    assert "celery (1)" in page


def test_a_message_that_no_worker_could_read_is_said(client, shop):
    send(shop, "42", "broken")
    (task,) = shop.claim()
    shop.settle(task, Verdict.UNREADABLE)
    assert "a worker could not read its message" in show(client, "deadletter_changelist")


def test_a_message_that_redis_lost_is_said(client, shop):
    send(shop, "42", "gone")
    (task,) = shop.claim()
    shop.client.delete(shop.key("messages"))
    shop.settle(task, Verdict.UNREADABLE)
    assert "Redis no longer has its message" in show(client, "deadletter_changelist")


def test_the_selected_ones_are_requeued(client, shop, claiming):
    for name in ("first", "second", "third"):
        bury(shop, "42", name)
    page = do(client, "deadletter_changelist", task_id=["first", "third"], reason="fixed in 2.1")
    assert "task first waits again in queue celery" in page
    assert [each.task_id for each in claiming.tasks.dead_letters().items] == ["second"]
    assert [row[1] for row in history()] == ["first", "third"]
    assert history()[0] == (
        "boss",
        "first",
        "Requeue, because: fixed in 2.1. Done: task first waits again in queue celery",
    )


def test_one_that_is_gone_does_not_stop_the_others(client, shop, claiming):
    bury(shop, "42", "here")
    page = do(client, "deadletter_changelist", task_id=["gone", "here"], reason="r")
    assert "is no dead letter" in page
    assert "task here waits again" in page
    assert claiming.tasks.dead_letters().pagination.total == 0
    assert "Not done" in history()[0][2]


@pytest.mark.parametrize("fields", [{"reason": "r"}, {"task_id": ["died"]}])
def test_nothing_selected_or_no_reason_is_said(client, shop, claiming, fields):
    bury(shop, "42", "died")
    page = do(client, "deadletter_changelist", **fields)
    expected = "This field is required" if "task_id" in fields else "Select at least one"
    assert expected in page
    assert claiming.tasks.dead_letters().pagination.total == 1
    assert history() == []


def test_one_queue_is_shown_alone(client, shop):
    bury(shop, "42", "a")
    assert "a shop.work celery" in show(client, "deadletter_changelist", queue="celery")
    page = show(client, "deadletter_changelist", queue="<script>")
    assert "Queue <script> has no dead letter" in page


def test_letters_are_in_pages_and_each_knows_its_queue(client, shop, monkeypatch):
    monkeypatch.setattr(dead_letters, "LETTERS", 2)
    for number in range(3):
        bury(shop, "42", f"d{number}")
    bury(shop, "42", "other", queue="mail & more")
    first = show(client, "deadletter_changelist")
    assert "d2 shop.work celery" in first
    assert "d0 shop.work" not in first
    assert "page 1 of 2, 4 in all next" in first
    assert "celery (3) mail & more (1)" in first
    second = show(client, "deadletter_changelist", page="2")
    assert re.search(r"d0 shop.work celery.* other shop.work mail & more", second)
    assert "previous page 2 of 2, 4 in all" in second
    behind = client.get(url("deadletter_changelist"), {"queue": "mail & more", "page": "2"})
    assert "This page is behind the last dead letter." in read(behind)
    assert b'href="?queue=mail+%26+more&amp;page=1"' in behind.content


def calls_of_a_page(client, shop, page) -> dict[str, int]:
    """Return how often a page of the list calls each command of Redis itself."""
    address = url("deadletter_changelist")
    # The first page looks at more, such as the version of the library.
    client.get(address, {"page": page})
    shop.client.config_resetstat()
    client.get(address, {"page": page})
    stats = shop.client.info("commandstats")
    # Functions call other commands, which count too.
    names = ("fcall", "fcall_ro", "exec", "zrangebyscore", "smembers", "sscan", "time")
    return {name: stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names}


def test_a_page_takes_as_many_calls_however_many_letters_there_are(client, shop, monkeypatch):
    monkeypatch.setattr(dead_letters, "LETTERS", 10)
    bury(shop, "42", "one")
    few = calls_of_a_page(client, shop, "1")
    for number in range(60):
        bury(shop, "42", f"d{number}", queue=f"q{number % 3}")
    assert calls_of_a_page(client, shop, "1") == few
    assert calls_of_a_page(client, shop, "5") == few
    assert few["fcall_ro"] + few["fcall"] <= 5


def test_there_is_none(client):
    assert "There is no dead letter" in show(client, "deadletter_changelist")


def test_a_broker_without_dead_letters_says_so(client, wire, redis_url):
    wire(redis_url)
    page = show(client, "deadletter_changelist")
    assert "fairredis" in page


def test_an_id_of_a_letter_is_text(client, shop):
    bury(shop, "42", "<script>alert(1)</script>")
    page = client.get(url("deadletter_changelist"))
    assert b"<script>alert(1)" not in page.content
    assert b"&lt;script&gt;alert(1)" in page.content
