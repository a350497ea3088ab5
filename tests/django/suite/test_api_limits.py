"""The routes of limits and queues, by the rows of the Open Job Spec that they meet."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from celery import current_app
from django.contrib.auth.models import User
from django_celery_fairness.models import LimitOverride, UnpublishedChange

from celery_fairness import Fairness, FairTask, RateLimitPolicy
from celery_fairness.app.publish_settings import publish_queues
from celery_fairness.config.limit_spec import write_limits
from tests.cli.clearing import send
from tests.cli.conftest import Installation
from tests.django.suite.api_client import ApiClient
from tests.django.suite.operators import show
from tests.support.parts import parts_of

pytestmark = pytest.mark.django_db(transaction=True)

RATE = {"limit": 100, "period": "PT1M"}
THROTTLE = {"limit": 10, "period": "PT1S"}
#: A module whose task declares a limit.
DECLARES = """
from celery import current_app
from celery_fairness import FairTask, RateLimitPolicy

@current_app.task(base=FairTask, limits=[RateLimitPolicy("only.in.workers", concurrency=7)])
def pay(): ...
"""
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


@pytest.fixture
def fairness(wire: Callable[..., Fairness], redis_url: str) -> Fairness:
    return wire(f"fair{redis_url}")


@pytest.fixture
def api(fairness) -> ApiClient:
    return ApiClient("write")


@pytest.fixture
def stripe(fairness) -> str:
    """A key that a task of the app declares."""
    policy = RateLimitPolicy("stripe-api", concurrency=5, rate=RATE, throttle=THROTTLE)

    def pay() -> None:
        """Call the API."""

    fairness._parts.app.task(name="pay", base=FairTask, limits=[policy])(pay)
    return policy.key


@pytest.fixture
def imports(fairness, tmp_path, monkeypatch) -> Callable[[str, str], None]:
    """Give the app a module with tasks that nothing has imported yet."""

    def imports(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        current_app.conf.imports = [*current_app.conf.imports, name]

    monkeypatch.syspath_prepend(tmp_path)
    return imports


def test_a_declared_key_is_known_before_a_view_imports_its_task(client, boss, imports, api):
    imports("tasks_of_no_view", DECLARES)
    assert api("GET", "rate-limits/only.in.workers").json["concurrency"]["limit"] == 7
    assert "Nothing is known" not in show(client, "limitkey_change", "only.in.workers")


def test_a_module_that_cannot_be_imported_here_is_logged_once(client, boss, imports, api, caplog):
    imports("tasks_that_need_more", "import a_module_of_the_workers\n")
    for _ in range(2):
        api("GET", "rate-limits/only.in.workers").rejected(404, "not_found")
    assert "Nothing is known" in show(client, "limitkey_change", "only.in.workers")
    (line,) = [each for each in caplog.messages if "may be missing" in each]
    assert "No module named 'a_module_of_the_workers'" in line


def test_s43_rl005_a_key_is_inspected(api, stripe):
    answer = api("GET", f"rate-limits/{stripe}")
    assert answer.status == 200
    found = answer.json
    resets_at = found["rate"].pop("window_resets_at")
    next_at = found["throttle"].pop("next_allowed_at")
    assert TIME.fullmatch(resets_at)
    assert TIME.fullmatch(next_at)
    assert found == {
        "key": "stripe-api",
        "concurrency": {"limit": 5, "active": 0, "available": 5},
        "rate": {**RATE, "current_count": 0},
        "throttle": THROTTLE,
        "waiting_count": 0,
    }


def test_s43_running_tasks_count_and_a_tenants_key_answers(api, hold):
    hold("acme", 1)
    found = api("GET", "rate-limits/tenant:acme").json
    assert found["concurrency"] == {"limit": 1, "active": 1, "available": 0}


def test_d18_a_key_is_known_from_its_first_task_until_the_last_one_is_gone(api, redis_server):
    with redis_server.client(decode_responses=True) as client:
        send(Installation(client), "42", "waits", limits="maps|C3|w")
    found = api("GET", "rate-limits/maps")
    assert (found.status, found.json["waiting_count"]) == (200, 1)
    assert api("DELETE", "tasks/waits").status == 200
    api("GET", "rate-limits/maps").rejected(404, "not_found")


def test_d18_a_key_that_nobody_has_seen_is_404(api):
    assert "is not known" in api("GET", "rate-limits/nobody").rejected(404, "not_found")


def test_s44_rlr004_d04_an_override_holds_until_its_end(api, fairness, stripe):
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    body = {"concurrency": 0, "expires_at": ends.isoformat(), "reason": "it is down"}
    put = api("PUT", f"rate-limits/{stripe}", body)
    assert put.status == 200
    assert put.json["concurrency"] == {"limit": 0, "active": 0, "available": 0}
    assert put.json["override"] == {
        "concurrency": 0,
        "expires_at": ends.isoformat().replace("+00:00", "Z"),
        "reason": "it is down",
        "by": "token a write token",
    }
    # Fields that are not given stay as the tasks declare them.
    assert put.json["rate"]["limit"] == 100
    assert fairness.limits.inspect(stripe).limit == 0


def test_s44_rlr004_d04_null_is_unlimited_and_a_deletion_ends_it(api, stripe):
    put = api("PUT", f"rate-limits/{stripe}", {"concurrency": None, "rate": None})
    assert put.json["concurrency"]["limit"] is None
    assert "rate" not in put.json
    assert put.json["override"]["expires_at"] is None
    gone = api("DELETE", f"rate-limits/{stripe}/override")
    assert (gone.status, gone.content) == (204, b"")
    assert api("GET", f"rate-limits/{stripe}").json["concurrency"]["limit"] == 5
    again = api("DELETE", f"rate-limits/{stripe}/override")
    assert "has no override" in again.rejected(404, "not_found")


def test_s44_rlr004_d04_an_override_raises_and_lowers(api, hold):
    hold("acme", 1)
    assert headers(api("GET", "rate-limits/tenant:acme"))[:2] == (1, 0)
    for number, left in ((5, 4), (0, 0), (2, 1)):
        put = api("PUT", "rate-limits/tenant:acme", {"concurrency": number})
        assert put.json["concurrency"] == {"limit": number, "active": 1, "available": left}
        assert put.json["override"]["concurrency"] == number
        assert headers(put)[:2] == (number, left)


def test_s44_rlr004_rates_of_an_override_are_iso_8601(api):
    put = api("PUT", "rate-limits/maps", {"rate": {"limit": 7, "period": "PT1H30M"}})
    assert put.json["override"]["rate"] == {"limit": 7, "period": "PT1H30M"}
    for period in ("60", "1m", "P1Y", "P1M", "PT0S", "P400D", "", "P"):
        body = {"rate": {"limit": 7, "period": period}}
        rejected = api("PUT", "rate-limits/maps", body).rejected(400, "invalid_request")
        assert "period" in rejected


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2100-01-02T03:04:05Z", "2100-01-02T03:04:05Z"),
        ("2100-01-02t03:04:05z", "2100-01-02T03:04:05Z"),
        ("2100-01-02T03:04:05.5+01:00", "2100-01-02T02:04:05.500000Z"),
    ],
)
def test_s44_a_time_is_rfc_3339_and_is_shown_with_z(api, text, shown):
    put = api("PUT", "rate-limits/maps", {"concurrency": 1, "expires_at": text})
    assert put.json["override"]["expires_at"] == shown


@pytest.mark.parametrize(
    "text",
    [
        *("4102444800", "4102444800.5", 4102444800, "2100-01-02", "2100-01-02T03:04:05"),
        *("2100-01-02T03:04Z", "2100-01-02T03:04:05+0100", "2100-01-02T03:04:05,5Z", "", "now"),
        *("٢100-01-02T03:04:05Z", "2100-01-02T03:04:05Z\n"),
    ],
)
def test_s44_another_form_of_a_time_is_rejected(api, text):
    put = api("PUT", "rate-limits/maps", {"concurrency": 1, "expires_at": text})
    assert "RFC 3339" in put.rejected(400, "invalid_request")


def test_a_time_that_utc_does_not_have_is_rejected(api):
    body = {"concurrency": 1, "expires_at": "9999-12-31T23:59:59-12:00"}
    assert "UTC" in api("PUT", "rate-limits/maps", body).rejected(400, "invalid_request")


def test_an_override_that_has_ended_before_it_begins_is_a_conflict(api):
    body = {"concurrency": 1, "expires_at": "2020-01-01T00:00:00Z"}
    assert "past" in api("PUT", "rate-limits/maps", body).rejected(409, "conflict")


def test_a_tenants_key_may_have_a_rate_too(api):
    body = {"rate": RATE}
    put = api("PUT", "rate-limits/tenant:acme", body)
    assert (put.status, put.json["override"]["rate"]) == (200, RATE)
    assert api("GET", "rate-limits/tenant:acme").json["rate"]["limit"] == RATE["limit"]


def test_s45_d07_keys_are_listed_in_pages(api):
    for number in range(5):
        api("PUT", f"rate-limits/key{number}", {"concurrency": number})
    found = api("GET", "rate-limits").json
    assert [each["key"] for each in found["items"]] == [f"key{number}" for number in range(5)]
    assert found["items"][3] == api("GET", "rate-limits/key3").json
    assert found["pagination"] == {"total": 5, "page": 1, "per_page": 20}
    second = api("GET", "rate-limits?page=2&per_page=2").json
    assert [each["key"] for each in second["items"]] == ["key2", "key3"]
    assert second["pagination"] == {"total": 5, "page": 2, "per_page": 2}
    behind = api("GET", "rate-limits?page=4&per_page=100").json
    assert behind == {"items": [], "pagination": {"total": 5, "page": 4, "per_page": 100}}


@pytest.mark.parametrize("query", ["page=0", "per_page=101", "per_page=0", "page=x", "page="])
def test_d07_a_page_that_cannot_be_is_rejected(api, query):
    assert query.split("=")[0] in api("GET", f"rate-limits?{query}").rejected(
        400, "invalid_request"
    )


def test_s31_rlr005_d06_a_queue_has_a_limit(api, fairness):
    body = {"concurrency": 20, "rate": {"limit": 1000, "period": "PT1H"}}
    put = api("PUT", "admin/queues/email/rate-limit", body)
    assert put.status == 200
    assert put.json == {
        "queue": "email",
        "key": "queue:email",
        "source": "people",
        "partition": None,
        "concurrency": 20,
        "local_limit": None,
        "rate": body["rate"],
        "throttle": None,
        "on_limit": "wait",
        "held": 0,
    }
    assert api("GET", "admin/queues/email/rate-limit").json == put.json
    assert fairness.queues.inspect("email").limit.global_limit == 20
    assert api("DELETE", "admin/queues/email/rate-limit").status == 204
    assert api("GET", "admin/queues/email/rate-limit").status == 404
    assert api("DELETE", "admin/queues/email/rate-limit").status == 404


def test_the_partitions_of_a_queue_have_numbers_of_their_own(wire, redis_url):
    fairness = wire(redis_url, queues={"email": {"by_kind": True, "partition": {}}})
    publish_queues(parts_of(fairness).limiter, fairness.settings.queues)
    call, rate = ApiClient("write"), {"limit": 5, "period": "PT1S"}
    put = call(
        "PUT", "admin/queues/email/rate-limit", {"partition": {"concurrency": 1, "rate": rate}}
    )
    assert (put.status, put.json["source"], put.json["concurrency"]) == (200, "settings", None)
    assert put.json["partition"] == {
        "source": "people",
        "concurrency": 1,
        "local_limit": None,
        "rate": rate,
        "throttle": None,
        "on_limit": "wait",
    }
    wrong = {"partition": {"concurrency": -1}}
    assert call("PUT", "admin/queues/email/rate-limit", wrong).status == 400


def test_numbers_of_partitions_that_a_queue_has_not_are_rejected(api):
    put = api("PUT", "admin/queues/email/rate-limit", {"partition": {"concurrency": 1}})
    assert "by_args or by_kind" in put.rejected(409, "conflict")


def test_a_queue_that_is_known_without_a_limit_has_none(api):
    assert api("PUT", "rate-limits/queue:email", {"concurrency": 1}).status == 200
    missing = api("GET", "admin/queues/email/rate-limit")
    assert "has no limit" in missing.rejected(404, "not_found")


def test_a_gate_that_would_not_read_a_queue_is_a_conflict(wire, redis_url):
    wire(redis_url)
    put = ApiClient("write")("PUT", "admin/queues/email/rate-limit", {"concurrency": 1})
    assert "does not claim fairly" in put.rejected(409, "conflict")


def headers(answer) -> tuple[int, int, float]:
    """Limit, remaining, and the seconds until the reset."""
    assert answer.status == 200
    limit, left, resets_at = (
        int(answer.headers[f"X-RateLimit-{name}"]) for name in ("Limit", "Remaining", "Reset")
    )
    return limit, left, resets_at - datetime.now(UTC).timestamp()


def test_answers_about_a_limited_key_have_its_headers(api, stripe, hold):
    limit, left, resets = headers(api("GET", f"rate-limits/{stripe}"))
    assert (limit, left) == (10, 1)
    assert -30 < resets <= 2
    put = api("PUT", f"rate-limits/{stripe}", {"concurrency": 0, "throttle": None})
    assert headers(put)[:2] == (0, 0)
    put = api("PUT", "admin/queues/email/rate-limit", {"concurrency": 20})
    assert headers(put)[:2] == (20, 20)
    hold("acme", 1)
    assert headers(api("GET", "rate-limits/tenant:acme"))[:2] == (1, 0)


def test_a_deletion_has_the_headers_of_the_numbers_that_hold_then(api, stripe):
    api("PUT", f"rate-limits/{stripe}", {"concurrency": 0, "rate": None, "throttle": None})
    gone = api("DELETE", f"rate-limits/{stripe}/override")
    assert (gone.status, gone.headers["X-RateLimit-Limit"]) == (204, "10")
    api("PUT", "admin/queues/email/rate-limit", {"concurrency": 20})
    gone = api("DELETE", "admin/queues/email/rate-limit")
    assert (gone.status, gone.headers.get("X-RateLimit-Limit")) == (204, None)


def test_the_reset_of_a_pause_is_its_end(api, stripe, fairness):
    fairness.limits.pause(stripe, for_seconds=600)
    limit, left, resets = headers(api("GET", f"rate-limits/{stripe}"))
    assert (limit, left) == (0, 0) or left == 0
    assert 590 < resets <= 602


def test_a_report_and_a_cool_down_leave_fewer_starts_than_the_numbers(api, stripe, fairness):
    api("PUT", f"rate-limits/{stripe}", {"concurrency": 5, "rate": None, "throttle": None})
    quota = {"X-RateLimit-Remaining": "2", "X-RateLimit-Reset": "600"}
    fairness.limits.report(stripe, quota)
    limit, left, resets = headers(api("GET", f"rate-limits/{stripe}"))
    assert (limit, left) == (5, 2)
    assert 590 < resets <= 602
    fairness.limits.cool_down(stripe, for_seconds=900)
    limit, left, resets = headers(api("GET", f"rate-limits/{stripe}"))
    assert (limit, left) == (5, 0)
    assert 890 < resets <= 902


def test_a_key_that_saves_for_a_task_leaves_no_start(api, fairness, shop):
    for name, slots in (("runs", 60), ("waits", 70)):
        policy = RateLimitPolicy("gpu", concurrency=80, slots=slots)
        send(shop, name, name, limits=write_limits([policy.limit()]))
        shop.claim()
    assert headers(api("GET", "rate-limits/gpu"))[:2] == (80, 0)


def test_a_pattern_of_keys_is_overridden(api, stripe):
    put = api("PUT", "rate-limits/stripe-*", {"concurrency": 2, "reason": "a sale"})
    assert (put.status, put.json["key"], put.json["override"]["concurrency"]) == (
        200,
        "stripe-*",
        2,
    )
    found = api("GET", f"rate-limits/{stripe}").json
    assert (found["concurrency"]["limit"], found["override"]["pattern"]) == (2, "stripe-*")
    # The key has no override of its own.
    assert api("DELETE", f"rate-limits/{stripe}/override").status == 404
    assert api("DELETE", "rate-limits/stripe-*/override").status == 204
    assert "override" not in api("GET", f"rate-limits/{stripe}").json


def test_a_pattern_of_tenants_is_rejected(api):
    put = api("PUT", "rate-limits/tenant:*", {"concurrency": 2})
    assert "tier of tenants" in put.content.decode()
    assert put.status in (400, 404, 409)


def test_a_key_without_a_number_has_no_headers(api):
    put = api("PUT", "rate-limits/maps", {"concurrency": None})
    assert "X-RateLimit-Limit" not in put.headers


@pytest.mark.parametrize("name", ["", "%00"])
def test_no_override_is_saved_for_a_text_that_names_no_queue(fairness, name):
    api = ApiClient("write", owner=User.objects.create_superuser("boss"))
    put = api("PUT", f"rate-limits/queue:{name}", {"concurrency": 1})
    assert put.status == 409
    assert "Expected 1 to 255 bytes of text" in put.content.decode()
    assert not LimitOverride.objects.exists()


@pytest.mark.parametrize(
    "name",
    ["a/b", "%00", "%0A", "%C3%A4", "x" * 10_000, "%FF", "a%2Foverride", "..%2F..", "'; DROP"],
)
def test_hostile_names_in_paths_are_names_or_404(fairness, name):
    # A change by a user is a row in the history of the admin too.
    api = ApiClient("write", owner=User.objects.create_superuser("boss"))
    for kind in ("tenant:", "", "queue:"):
        got = api("GET", f"rate-limits/{kind}{name}")
        assert got.status in (200, 404, 405), got.content
        put = api("PUT", f"rate-limits/{kind}{name}", {"concurrency": 1})
        assert put.status in (200, 404, 405, 409), put.content
    assert not UnpublishedChange.objects.exists()
    for method, body in (("GET", None), ("PUT", {"concurrency": 1}), ("DELETE", None)):
        queue = api(method, f"admin/queues/{name}/rate-limit", body)
        assert queue.status in (200, 204, 404), queue.content
