"""Queues: the list, and the page of each."""

from __future__ import annotations

import json
import re

import pytest
from django_celery_fairness import dashboard

from celery_fairness.control.installation.views import WorkerStatus
from tests.cli.clearing import bury, send
from tests.django.suite.operators import show, url

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def someone(boss, shop):
    """The administrator, an installation, and a look at it of this test's own."""
    dashboard.shared.forget()
    yield
    dashboard.shared.forget()


def test_the_list_shows_tasks_and_limits(client, shop, claiming):
    bury(shop, "9", "dead")
    for number in range(3):
        send(shop, "42", f"t{number}")
    shop.claim()
    claiming.queues.set_limit("mail", rate="5/m")
    page = show(client, "queue_changelist")
    assert re.search(r"celery 1 2 \d \d 0 1 –", page)
    assert "mail" in page
    assert "rate 5/PT1M, on limit wait; set by an operator; 0 running" in page


def test_the_page_shows_why_tasks_wait_and_who_takes_them(client, shop, claiming):
    for number in range(3):
        send(shop, "flood", f"t{number}")
    for number in range(2):
        send(shop, f"s{number}", f"s{number}", limits="api|C1|w")
    send(shop, "off", "off")
    claiming.tenants.pause("off")
    claiming.queues.set_limit("mail", global_limit=1)
    shop.claim()
    worker = {
        "name": "celery@web-1",
        "pid": 7,
        "path": "dispatch",
        "enforcement": "on",
        "owner": "worker-1",
        "places": 4,
        "queues": ["celery"],
    }
    shop.client.zadd(shop.key("workers"), {json.dumps(worker): 9e15})
    page = show(client, "queue_change", "celery")
    assert "Running 2" in page
    assert "Waiting 4" in page
    assert "2 at their tenants’ limits, 1 at other limits, 1 paused" in page
    assert "tenant:flood celery free 1 / 1" in page
    assert "api concurrency 1" in page
    assert "1 worker with 4 places, at most 4 of them for this queue at once." in page
    assert "celery@web-1 7" in page
    assert "2 / 4 all 4 celery enforced" in page
    assert "No live worker takes this queue" in show(client, "queue_change", "mail")


def add_worker(shop, name: str, places: int, *queues: str, **fields) -> None:
    """Store what a worker announces."""
    worker = WorkerStatus(
        name=name,
        pid=1,
        path="dispatch",
        enforcement="on",
        owner=name,
        places=places,
        queues=queues,
        **fields,
    )
    shop.client.zadd(shop.key("workers"), {worker.model_dump_json(): 9e15})


def test_each_worker_shows_its_places_for_the_queue(client, shop):
    send(shop, "42", "t", queue="pdf_default")
    shares = {"pdf_priority": 5, "pdf_default": 3, "pdf_scheduled": 2}
    add_worker(shop, "keeps", 10, *shares, shares=shares)
    add_worker(shop, "lends", 10, *shares, shares=shares, lends=True)
    add_worker(shop, "turns", 4, "mail", "pdf_default")
    add_worker(shop, "other", 7, "mail")
    page = show(client, "queue_change", "pdf_default")
    # 3 of the first one, and all places of the two others.
    assert "3 workers with 24 places, at most 17 of them for this queue at once." in page
    named = "pdf_priority 5, pdf_default 3, pdf_scheduled 2 enforced"
    assert f"keeps 1 0 % 0 / 10 3 of 10 {named}" in page
    assert f"0 / 10 3 of 10, and those that other queues do not need {named}" in page
    assert "0 / 4 up to 4, in turn with 1 other queue mail, pdf_default enforced" in page
    assert "other 1" not in page
    assert named in show(client, "dashboard_changelist")


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a/b", "..", "a:b", "é _2F"])
def test_a_hostile_name_has_a_page(client, shop, name):
    send(shop, "42", "t", queue=name)
    page = client.get(url("queue_changelist"))
    assert b"<script>alert(1)" not in page.content
    found = re.findall(r'<th scope="row"><a href="([^"]+)"', page.content.decode())
    link = url("queue_change", name)
    assert "/../" not in link
    assert link in found
    page = client.get(link)
    assert b"<script>alert(1)" not in page.content
    assert b"tenant:42" in page.content


def test_a_queue_that_does_not_exist_is_said(client):
    assert "has no limit, and no task was in it" in show(client, "queue_change", "nowhere")


def test_a_broker_that_counts_by_itself_is_said(client, wire, redis_url):
    wire(redis_url)
    assert "This broker counts its waiting tasks itself" in show(client, "queue_changelist")
