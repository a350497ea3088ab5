"""The routes of tenants, tiers, tasks, events, statistics and health; and Redis or more away."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import DatabaseError, OperationalError
from django.utils import timezone
from django_celery_fairness import publishing
from django_celery_fairness.models import TenantTier, Tier

from celery_fairness.config.tenants import key_hash
from tests.django.suite.api_client import ApiClient
from tests.support.numbers import unset

pytestmark = pytest.mark.django_db(transaction=True)

RATE = {"limit": 100, "period": "PT1H"}
GOLD = {
    **unset("tier"),
    "concurrency": 9,
    "burst": 20,
    "rate": RATE,
    "throttle": {"limit": 1, "period": "PT5S"},
    "weight": 2.5,
    "queue_class": "priority",
    "max_waiting": 100,
    "description": "Three reports at once",
}
ACME = {"tier": "pro", **unset("tenant"), "note": ""}
ALWAYS = {"valid_from": None, "valid_until": None}


def test_tiers_are_listed_read_added_changed_and_deleted(api, claiming):
    listed = api("GET", "tiers?per_page=2").json
    assert [each["name"] for each in listed["items"]] == ["enterprise", "free"]
    assert listed["pagination"] == {"total": 4, "page": 1, "per_page": 2}
    added = api("PUT", "tiers/gold", GOLD)
    assert added.status == 200
    assert added.json == {"name": "gold", **GOLD, "published": True}
    assert api("GET", "tiers/gold").json == added.json
    assert claiming.tenants.set_tier("acme", "gold").tier == "gold"
    found = claiming.limits.inspect("tenant:acme")
    assert (found.limit, found.burst, found.rate.limit, found.throttle.period) == (
        *(9, 20, 100, "PT5S"),
    )
    api("PUT", "tiers/gold", {**GOLD, "concurrency": None})
    assert claiming.limits.inspect("tenant:acme").limit is None
    gone = api("DELETE", "tiers/gold")
    assert (gone.status, gone.content, gone.headers.get("Content-Type")) == (204, b"", None)
    api("GET", "tiers/gold").rejected(404, "not_found")
    api("DELETE", "tiers/gold").rejected(404, "not_found")


@pytest.mark.parametrize("field", sorted(GOLD))
def test_a_tier_is_written_as_a_whole(api, field):
    body = {name: value for name, value in GOLD.items() if name != field}
    assert field in api("PUT", "tiers/gold", body).rejected(400, "invalid_request")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("concurrency", -1),
        ("concurrency", 1_000_001),
        ("concurrency", True),
        ("weight", 0),
        ("weight", 1e7),
        ("queue_class", "fast"),
        ("max_waiting", 0),
        ("burst", 0),
        ("rate", "often"),
        ("throttle", {"limit": 0, "period": "PT1H"}),
        ("description", "\x00"),
        ("description", "\ud800"),
        ("description", None),
    ],
)
def test_a_number_that_a_tier_cannot_have_is_rejected(api, field, value):
    rejected = api("PUT", "tiers/gold", {**GOLD, field: value}).rejected(400, "invalid_request")
    assert f"body.{field}" in rejected
    assert not Tier.objects.filter(name="gold").exists()


def test_a_tier_in_use_and_the_default_tier_cannot_go(api):
    api("PUT", "tenants/acme", ACME)
    api("DELETE", "tiers/pro").rejected(409, "conflict")
    assert "default tier" in api("DELETE", "tiers/free").rejected(409, "conflict")
    assert Tier.objects.count() == 4


@pytest.mark.parametrize("name", ["a b", "a%2Fb", "x" * 101, "%00", "%C3%A4", "free%0A"])
def test_a_name_that_no_tier_can_have_is_404(api, name):
    for method in ("GET", "PUT", "DELETE"):
        api(method, f"tiers/{name}", GOLD).rejected(404, "not_found")


def test_tenants_are_listed_read_added_changed_and_deleted(api, claiming):
    assert claiming.limits.inspect("tenant:acme").limit == 1
    added = api("PUT", "tenants/acme", ACME)
    assert added.status == 200
    assert added.json == {"tenant": "acme", **ACME, **ALWAYS, "published": True}
    assert claiming.limits.inspect("tenant:acme").limit == 3
    own = {**ACME, "tier": "free", "concurrency": 8, "burst": 9, "rate": RATE, "note": "until May"}
    assert api("PUT", "tenants/acme", own).json["rate"] == RATE
    found = claiming.limits.inspect("tenant:acme")
    assert (found.limit, found.burst, found.rate.period) == (8, 9, "PT1H")
    api("PUT", "tenants/beta", ACME)
    listed = api("GET", "tenants").json
    assert [each["tenant"] for each in listed["items"]] == ["acme", "beta"]
    assert listed["items"][0] == api("GET", "tenants/acme").json
    assert listed["pagination"] == {"total": 2, "page": 1, "per_page": 20}
    assert api("DELETE", "tenants/acme").status == 204
    assert claiming.limits.inspect("tenant:acme").limit == 1
    assert "default tier" in api("GET", "tenants/acme").rejected(404, "not_found")


def test_a_put_replaces_the_times_of_a_tenant_and_a_get_shows_them(api, claiming, acme):
    ended = timezone.now() - timedelta(days=1)
    TenantTier.objects.update(valid_until=ended)
    assert claiming.limits.inspect("tenant:acme").limit == 1
    shown = api("GET", "tenants/acme").json["valid_until"]
    assert datetime.fromisoformat(shown) == ended
    assert shown.endswith("Z")
    assert api("PUT", "tenants/acme", ACME).json["valid_until"] is None
    assert claiming.limits.inspect("tenant:acme").limit == 3
    times = {"valid_from": "2100-01-01T00:00:00Z", "valid_until": "2100-01-01T02:00:00+01:00"}
    put = api("PUT", "tenants/acme", ACME | times).json
    assert (put["valid_from"], put["valid_until"]) == (times["valid_from"], "2100-01-01T01:00:00Z")
    assert claiming.limits.inspect("tenant:acme").limit == 1
    assert api("GET", "tenants/acme").json == put
    swapped = {"valid_from": times["valid_until"], "valid_until": times["valid_from"]}
    rejected = api("PUT", "tenants/acme", ACME | swapped).rejected(409, "conflict")
    assert "after the beginning" in rejected


def test_a_tenants_waiting_tasks_move_with_its_tier(api, claiming, wait_in):
    wait_in("pdf_default", "acme")
    api("PUT", "tenants/acme", ACME)
    assert claiming.limits.inspect("tenant:acme").waiting_count == 1
    assert not claiming.check().findings


def test_an_unknown_tier_is_a_conflict(api):
    put = api("PUT", "tenants/acme", {**ACME, "tier": "platinum"})
    assert "'platinum'" in put.rejected(409, "conflict")


@pytest.mark.parametrize(
    ("path", "tenant"),
    [
        ("a/b", "a/b"),
        ("a%2F..%2Fb", "a/../b"),
        ("%C3%A4%F0%9F%98%80", "ä😀"),
        ("a%0Ab", "a\nb"),
        ("rate-limits/x/override", "rate-limits/x/override"),
        ("%25", "%"),
        ("x" * 200, "x" * 200),
    ],
)
def test_a_tenant_with_any_text_has_an_address(api, path, tenant):
    assert api("PUT", f"tenants/{path}", ACME).json["tenant"] == tenant
    assert TenantTier.objects.get().tenant == tenant
    assert api("GET", f"tenants/{path}").status == 200
    found = api("GET", f"rate-limits/tenant:{path}")
    if path.endswith("/override"):
        found.rejected(405, "method_not_allowed")
        found = api("GET", f"rate-limits/tenant:{key_hash(tenant)}")
    assert found.json["concurrency"]["limit"] == 3
    assert api("DELETE", f"tenants/{path}").status == 204


@pytest.mark.parametrize("path", ["x" * 201, "x" * 10_000, "%00", "a%00b", "%F0%9F%98%80" * 51])
def test_what_cannot_be_a_tenant_is_404(api, path):
    for method in ("GET", "PUT", "DELETE"):
        api(method, f"tenants/{path}", ACME).rejected(404, "not_found")


def test_a_waiting_task_is_explained_and_cancelled(api, hold, wait_in):
    hold("acme", 1)
    task = wait_in("email", "acme")
    found = api("GET", f"tasks/{task}").json
    assert (found["task_id"], found["state"], found["queue"]) == (task, "waiting", "email")
    assert found["blocked_by"][0]["key"] == "tenant:acme"
    assert found["limits"][0]["in_force"]["reasons"][0]["tier"] == "free"
    done = api("DELETE", f"tasks/{task}")
    assert done.status == 200
    assert done.json == {"task_id": task, "state": "cancelled", "queue": "email", "owner": ""}
    api("GET", f"tasks/{task}").rejected(404, "not_found")
    api("DELETE", f"tasks/{task}").rejected(404, "not_found")


def test_a_task_that_runs_is_not_stopped_and_that_is_a_conflict(api, claiming, monkeypatch):
    from celery_fairness.control.task.views import Cancelled

    runs = Cancelled(task_id="1", state="running", queue="email", owner="one@web")
    monkeypatch.setattr(claiming.tasks, "cancel", lambda _task_id: runs)
    answer = api("DELETE", "tasks/1")
    assert "goes on" in answer.rejected(409, "conflict")
    assert answer.error["details"]["owner"] == "one@web"


def test_tasks_are_listed_page_by_page(api, claiming, wait_in):
    tasks = [wait_in("email", "acme") for _ in range(3)]
    wait_in("email", "other")
    first = api("GET", "tasks?tenant=acme&queue=email&state=waiting&limit=2").json
    assert [each["task_id"] for each in first["items"]] == tasks[:2]
    assert first["items"][0].keys() == claiming.tasks.list().items[0].__dataclass_fields__.keys()
    more = api("GET", f"tasks?tenant=acme&limit=2&cursor={first['cursor']}").json
    assert [each["task_id"] for each in more["items"]] == tasks[2:]
    assert (more["cursor"], more["is_ordered"]) == (None, True)
    assert len(api("GET", "tasks").json["items"]) == 4


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=51", "state=later", "tenant=", "queue=%00", "cursor=!", "cursor="],
)
def test_a_list_of_tasks_that_cannot_be_is_rejected(api, query):
    name = query.partition("=")[0]
    assert f"query.{name}" in api("GET", f"tasks?{query}").rejected(400, "invalid_request")


def test_a_text_that_is_no_cursor_is_not_found(api):
    assert "cursor: expected" in api("GET", "tasks?cursor=abc").rejected(404, "not_found")


def test_a_bulk_cancel_needs_the_number_of_its_tasks(api, claiming, wait_in, caplog):
    caplog.set_level("INFO", "celery_fairness")
    for _ in range(3):
        wait_in("email", "acme")
    wait_in("email", "other")
    for query in ("tenant=acme", "tenant=acme&confirm=2"):
        answer = api("DELETE", f"tasks?{query}")
        assert "confirm=3" in answer.rejected(409, "conflict")
        assert answer.error["details"] == {"tasks": 3}
    done = api("DELETE", "tasks?tenant=acme&state=waiting&confirm=3")
    assert (done.status, done.json) == (200, {"cancelled": 3, "has_more": False})
    again = api("DELETE", "tasks?tenant=acme&confirm=3")
    assert again.json == {"cancelled": 0, "has_more": False}
    assert claiming.tasks.count(queue="email") == 1
    assert "deleted tasks of 'tenant acme, state waiting'" in caplog.text


def test_a_bulk_cancel_of_everything_is_a_conflict(api, claiming):
    assert "a tenant, a queue or a key" in api("DELETE", "tasks").rejected(409, "conflict")
    state = api("DELETE", "tasks?state=running&tenant=acme")
    assert "query.state" in state.rejected(400, "invalid_request")


@pytest.mark.parametrize("task", ["x" * 10_000, "%00", "a/b", "%C3%A4", "%0A"])
def test_a_task_that_nobody_knows_is_404(api, task):
    api("GET", f"tasks/{task}").rejected(404, "not_found")
    api("DELETE", f"tasks/{task}").rejected(404, "not_found")


def test_events_are_polled_from_a_cursor(api, claiming):
    assert api("GET", "events?types=fairness.paused").json == {
        "events": [],
        "cursor": None,
        "has_more": False,
    }
    for number in range(3):
        claiming.limits.pause(f"key{number}", by="ada")
        claiming.limits.override(f"key{number}", concurrency=1)
    asked = "events?types=fairness.paused,fairness.resumed&limit=2"
    first = api("GET", asked).json
    assert [each["data"]["key"] for each in first["events"]] == ["key0", "key1"]
    assert first["has_more"]
    event = first["events"][0]
    assert event["id"].startswith("evt_")
    assert event["time"].endswith("Z")
    assert (event["specversion"], event["type"]) == ("1.0", "fairness.paused")
    second = api("GET", f"{asked}&after={first['cursor']}").json
    assert [each["data"]["key"] for each in second["events"]] == ["key2"]
    assert not second["has_more"]
    assert len(api("GET", "events").json["events"]) >= 3


@pytest.mark.parametrize(
    "query",
    [
        *("after=x", "after=evt_1", "after=evt_00000000-0000-4000-8000-000000000000"),
        *("types=nothing", "types=", "types=task.put,fairness.paused"),
        *("limit=0", "limit=1001", "limit=x"),
    ],
)
def test_a_poll_that_cannot_be_is_rejected(api, query):
    name = query.partition("=")[0]
    assert f"query.{name}" in api("GET", f"events?{query}").rejected(400, "invalid_request")


@pytest.mark.parametrize("types", ["nonsense", "fairness.pausd", "task.put,fairness.paused"])
def test_an_unknown_type_of_event_is_answered_with_the_types(api, types):
    text = api("GET", f"events?types={types}").rejected(400, "invalid_request")
    assert "task.put, task.started" in text if "task.put" in types else "fairness.paused" in text
    assert ("did you mean 'fairness.paused'?" in text) is (types == "fairness.pausd")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("events?types=nonsense", None),
        ("events?after=x", None),
        ("tenants/acme", {"tier": "a b", "concurrency": None, "note": ""}),
        ("tenants/acme", {"tier": "free", "concurrency": None, "note": "\x00"}),
        ("tiers/free", GOLD | {"queue_class": "\x00"}),
        ("rate-limits/maps", {"rate": {"limit": 1, "period": "1 minute"}}),
        ("rate-limits/maps", {"concurrency": 1, "expires_at": "tomorrow"}),
    ],
)
def test_no_error_shows_a_regular_expression(api, path, body):
    text = api("PUT" if body else "GET", path, body).rejected(400, "invalid_request")
    assert "expected" in text.lower() or "should be" in text
    assert not {*"^$\\"} & {*text}, text


def test_statistics_are_those_of_python(api, claiming, wait_in, hold):
    wait_in("email", "acme")
    status = api("GET", "stats").json
    # Its ages grow between two calls.
    assert status.keys() == claiming.stats.status().model_dump(mode="json").keys()
    assert [each["queue"] for each in status["queues"] if each["waiting"]] == ["email"]
    assert api("GET", "stats/rejections").json["tiers"] == {}
    minutes = api("GET", "stats/minutes?last=10")
    assert (minutes.status, minutes.json) == (200, [])
    assert "last" in api("GET", "stats/minutes?last=361").rejected(400, "invalid_request")


def test_the_manifest_has_what_this_installation_meets(api):
    found = api("GET", "manifest").json
    assert found["capabilities"] == {"rate_limiting": True}
    assert found["extensions"] == ["urn:ojs:ext:rate-limiting"]
    assert found["implementation"]["name"] == "celery-fairness"


@pytest.mark.parametrize("enabled", ["observe", False])
def test_the_manifest_promises_no_limits_that_are_off(wire, redis_url, four_tiers, enabled):
    wire(f"fair{redis_url}", enabled=enabled)
    assert ApiClient()("GET", "manifest").json["capabilities"] == {"rate_limiting": False}


def test_the_manifest_of_a_gate_promises_no_limits(wire, redis_url, four_tiers):
    wire(redis_url)
    found = ApiClient()("GET", "manifest").json
    assert (found["capabilities"], found["extensions"]) == ({"rate_limiting": False}, [])


def test_it_lives_and_is_ready(api):
    for name in ("live", "ready"):
        found = api("GET", f"health/{name}").json
        assert found["status"] == "ok"
        assert found["time"].endswith("Z")


AWAY = [
    ("GET", "rate-limits", None),
    ("GET", "rate-limits/maps", None),
    ("PUT", "rate-limits/maps", {"concurrency": 1}),
    ("DELETE", "rate-limits/maps/override", None),
    ("GET", "admin/queues/email/rate-limit", None),
    ("PUT", "admin/queues/email/rate-limit", {"concurrency": 1}),
    ("DELETE", "admin/queues/email/rate-limit", None),
    ("GET", "tasks", None),
    ("DELETE", "tasks?tenant=acme", None),
    ("GET", "tasks/1", None),
    ("DELETE", "tasks/1", None),
    ("GET", "events", None),
    ("GET", "stats", None),
    ("GET", "health/ready", None),
]


def test_redis_away_is_503_and_worth_another_try(api, redis_away):
    for method, path, body in AWAY:
        answer = api(method, path, body)
        assert "does not answer" in answer.rejected(503, "unavailable"), path
    assert api("GET", "health/live").status == 200


def test_tiers_and_tenants_are_saved_while_redis_is_away(api, claiming, redis_away):
    saved = api("PUT", "tenants/acme", ACME)
    assert (saved.status, saved.json["published"]) == (200, False)
    assert api("GET", "tenants").json["items"] == [saved.json]
    assert api("PUT", "tiers/gold", GOLD).json["published"] is False
    redis_away.restart()
    publishing.publish_pending()
    assert api("GET", "tenants/acme").json["published"] is True
    assert claiming.limits.inspect("tenant:acme").limit == 3


def test_no_fairness_is_503_with_the_next_step(unwired, four_tiers):
    answer = ApiClient()("GET", "rate-limits")
    assert (answer.status, answer.json["error"]["retryable"]) == (503, False)
    assert "Fairness(app)" in answer.json["error"]["message"]


def test_the_database_away_is_503_without_its_text(api, monkeypatch):
    def away(*_args: object, **_options: object) -> None:
        raise OperationalError("could not connect as user admin with password 1234")

    monkeypatch.setattr(Tier.objects, "order_by", away)
    message = api("GET", "tiers").rejected(503, "unavailable")
    assert message == "the database does not answer"


def test_an_error_that_nobody_expected_is_500_without_a_traceback(
    api, claiming, monkeypatch, caplog
):
    def fail(*_args: object) -> None:
        raise DatabaseError("secret")

    monkeypatch.setattr(claiming.stats, "status", fail)
    answer = api("GET", "stats")
    assert answer.status == 500
    error = answer.json["error"]
    assert (error["code"], error["retryable"]) == ("internal_error", False)
    assert b"secret" not in answer.content
    assert b"Traceback" not in answer.content
    [record] = [each for each in caplog.records if error["request_id"] in each.getMessage()]
    assert "secret" in str(record.exc_info[1])


@pytest.mark.parametrize("error", [UnicodeDecodeError("utf-8", b"", 0, 1, "x"), KeyError("x")])
def test_a_mistake_of_the_server_is_no_mistake_of_the_request(api, claiming, monkeypatch, error):
    def fail(*_args: object) -> None:
        raise error

    monkeypatch.setattr(claiming.stats, "status", fail)
    assert api("GET", "stats").status == 500
