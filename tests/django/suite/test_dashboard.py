"""The dashboard: what it shows, to whom, and what it costs."""

from __future__ import annotations

import re

import pytest
import redis
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django_celery_fairness import dashboard

from celery_fairness.control.installation import control_bus
from celery_fairness.control.installation.views import WorkerStatus
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules, Waiting
from tests.django.suite.test_admin import read
from tests.support.control_bus import answering
from tests.support.library import call
from tests.support.parts import parts_of

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = "admin:django_celery_fairness_dashboard_changelist"
LIVE = {"X-Fairness": "live"}
PREFIX = "{fairness}:"


@pytest.fixture(autouse=True)
def no_shared_look():
    dashboard.shared.forget()
    yield
    dashboard.shared.forget()


@pytest.fixture
def operator(client) -> User:
    """Staff who may look at the dashboard, and at nothing else."""
    user = User.objects.create_user("operator", password="secret", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_dashboard"))
    client.force_login(user)
    return user


@pytest.fixture
def fairness(wire, redis_url):
    return wire(f"fair{redis_url}")


@pytest.fixture
def server(redis_url) -> redis.Redis:
    return redis.Redis.from_url(redis_url, decode_responses=True)


def put(server: redis.Redis, tenant: str, number: int, queue: str = "celery", limits: str = ""):
    waiting = Waiting(queue, f"{tenant}-{number}", tenant, message="{}", limits=limits)
    call(server, calls.PUT, PREFIX, calls.put_args(waiting))


def claim(server: redis.Redis, want: int = 1):
    rules = Rules(default_limit=1)
    args = calls.claim_args("web:1:a", 1, want, ["celery"], rules)
    return calls.read_claim(call(server, calls.CLAIM, PREFIX, args)).tasks


def test_it_shows_the_verdict_and_why_each_tenant_waits(client, operator, fairness, server):
    for number in range(3):
        put(server, "flood", number)
    put(server, "paused", 0)
    fairness.tenants.pause("paused", by="ada")
    assert len(claim(server)) == 1
    page = read(client.get(reverse(PAGE)))
    assert "no worker takes queue celery: 3 tasks wait" in page
    assert "tenant:flood celery free 1 / 1" in page
    assert "at its tier's limit" in page
    assert "tenant:paused celery free 0 / 0" in page
    assert "No worker is announced." in page
    assert "Not checked: whether a worker that is not announced takes tasks: no worker" in page


def test_it_names_the_workers_that_answer_and_are_not_announced(
    client, operator, fairness, monkeypatch
):
    monkeypatch.setattr(control_bus, "REPLY_SECONDS", 2.0)
    monkeypatch.setattr(control_bus, "WAIT_SECONDS", 30.0)
    replies = [("old@<b>", [{"name": "celery"}]), ("mail@host", [{"name": "mail"}])]
    with answering(parts_of(fairness).app, *replies):
        page = read(client.get(reverse(PAGE)))
    assert "1 worker answers and is not announced: old@<b> (takes queue celery)" in page
    assert "old@<b> celery yes" in page
    assert "mail@host mail no known queue" in page


def test_a_tenant_whose_next_task_needs_a_place_is_not_at_its_limit(
    client, operator, fairness, server
):
    for number in range(5):
        put(server, "boosted", number)
    assert len(claim(server)) == 1
    fairness.limits.override("tenant:boosted", concurrency=3, for_seconds=600)
    page = read(client.get(reverse(PAGE)))
    assert "tenant:boosted celery free 1 / 3" in page
    assert "waits for a place" in page
    assert "at its tier's limit" not in page


def test_it_shows_the_limit_that_blocks(client, operator, fairness, server):
    for number in range(3):
        put(server, f"t{number}", number, limits="api.stripe.com|C1|w")
    claim(server, want=3)
    assert "api.stripe.com concurrency 2" in read(client.get(reverse(PAGE)))


def test_it_shows_what_workers_that_only_observe_would_have_rejected(
    client, operator, fairness, server
):
    observed = "What limits would have rejected in the last day"
    assert observed not in read(client.get(reverse(PAGE)))
    for number in range(4):
        put(server, "flood", number)
    rules = Rules(default_limit=1, enforcement="observe")
    args = calls.claim_args("web:1:a", 1, 9, ["celery"], rules)
    assert len(calls.read_claim(call(server, calls.CLAIM, PREFIX, args)).tasks) == 4
    dashboard.shared.forget()
    answer = client.get(reverse(PAGE))
    page = read(answer)
    assert observed in page
    assert "0 of 0 workers only observe. Counted since" in page
    assert "set FAIRNESS_ENABLED to true" not in page
    assert "free 1 3 1 4" in page
    assert "tenant:flood free 3 4" in page
    assert (
        'aria-label="3 tasks of the last 24 hours started above the limit of their tier, '
        'at most 3 in one hour."'
    ) in answer.content.decode()
    assert answer.content.decode().count('<rect class="count"') == 1
    worker = WorkerStatus(name="celery@web", pid=1, path="dispatch", enforcement="observe")
    announced = calls.announce_args(Rules(), worker.model_dump_json(), 15_000, None)
    call(server, calls.ANNOUNCE, PREFIX, announced)
    dashboard.shared.forget()
    page = read(client.get(reverse(PAGE)))
    assert "1 of 1 workers only observes." in page
    assert "set FAIRNESS_ENABLED to true" in page


def test_it_shows_starts_ends_failures_and_retries_of_the_full_minutes(
    client, operator, fairness, server
):
    minute = server.time()[0] // 60
    counts = {"alone:0 free celery": 5, "done  ": 3, "failed  celery": 1, "retried  <mail>": 2}
    for number, ago in ((1, 1), (10, 30)):
        fields = {field: count * number for field, count in counts.items()}
        server.hset(f"{PREFIX}stats:{minute - ago}", mapping=fields)
    answer = client.get(reverse(PAGE))
    page = read(answer)
    # Another minute may have begun.
    assert re.search(r"started \d+ 55 ended \d+ 66 failed \d+ 11 retried \d+ 22 ", page)
    assert "celery 11 0 <mail> 0 22" in page
    assert b"<mail>" not in answer.content
    assert re.search(r'aria-label="In the last minute: \d+ started, ', answer.content.decode())


def test_names_are_shown_as_text(client, operator, fairness, server):
    put(server, "a", 0, queue="<script>alert(1)</script>")
    page = client.get(reverse(PAGE)).content.decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert(1)" not in page


def test_without_redis_it_shows_the_reason_and_comes_back_by_itself(
    client, operator, wire, redis_url
):
    wire("fairredis://127.0.0.1:1/0")
    page = read(client.get(reverse(PAGE)))
    assert "does not answer" in page
    assert "Queues" not in page
    wire(f"fair{redis_url}")
    dashboard.shared.forget()
    assert "nothing waits or runs" in read(client.get(reverse(PAGE), headers=LIVE))


@pytest.mark.parametrize("headers", [{}, LIVE])
def test_it_needs_its_own_permission(client, headers):
    address = reverse(PAGE)
    assert client.get(address, headers=headers).status_code == 302
    client.force_login(User.objects.create_user("clerk", password="secret", is_staff=True))
    assert client.get(address, headers=headers).status_code == 403


def test_it_costs_the_same_number_of_queries_and_calls_with_more_tenants(
    client, operator, fairness, server
):
    def cost() -> tuple[int, int]:
        dashboard.shared.forget()
        server.config_resetstat()
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert client.get(reverse(PAGE), headers=LIVE).status_code == 200
        stats = server.info("commandstats")
        direct = ("cmdstat_fcall", "cmdstat_fcall_ro", "cmdstat_exec")
        return len(queries), sum(stats.get(name, {"calls": 0})["calls"] for name in direct)

    # Of a queue with more than three pages of tenants, a status reads the first three.
    for number in range(200):
        put(server, f"t{number}", number)
    cost()
    few = cost()
    for number in range(200, 400):
        put(server, f"t{number}", number)
    assert cost() == few


def test_pages_that_are_open_at_the_same_time_share_one_look(
    client, operator, fairness, server, monkeypatch
):
    # A slow machine may need more than the 1.5 s for which a look is fresh.
    monkeypatch.setattr(dashboard, "FRESH_SECONDS", 60.0)
    client.get(reverse(PAGE), headers=LIVE)
    server.config_resetstat()
    client.get(reverse(PAGE), headers=LIVE)
    assert "cmdstat_fcall" not in server.info("commandstats")
