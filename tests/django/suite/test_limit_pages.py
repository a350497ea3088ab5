"""Limits by key: what the pages show, and what an operator does with them."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest
from django_celery_fairness.models import LimitOverride

from celery_fairness import RateLimitPolicy
from celery_fairness.config.limit_spec import write_limits
from celery_fairness.control.tenant.boost import boosted
from tests.cli.clearing import send
from tests.django.suite.operators import do, history, show, url
from tests.django.suite.test_admin import read

pytestmark = pytest.mark.django_db(transaction=True)

API = "api.stripe.com|C1|w"
TENANT = "tenant:42"
RESUMED = "tenant:42: not stopped: tasks start as its limits allow"


@pytest.fixture(autouse=True)
def someone(boss, shop):
    """The administrator, and an installation."""


def test_the_list_shows_what_each_key_holds_and_why_nothing_starts(client, shop, claiming):
    for number in range(3):
        send(shop, "42", f"t{number}", limits=API)
    shop.claim()
    claiming.limits.pause("queue:mail", by="ada")
    page = show(client, "limitkey_changelist")
    assert "api.stripe.com 100 % 1 of 1 – 2 all places taken" in page
    assert "tenant:42 100 % 1 of 1 – 2 all places taken" in page
    assert "queue:mail" in page
    assert "paused until it is resumed, by ada" in page


def test_the_list_has_pages(client, shop):
    for number in range(30):
        send(shop, f"t{number:02}", f"id{number}")
    first = show(client, "limitkey_changelist")
    assert "tenant:t00" in first
    assert "page 1 of 2, 30 in all" in first
    assert "tenant:t29" not in first
    assert "tenant:t29" in read(client.get(url("limitkey_changelist"), {"page": "2"}))
    assert "behind the last key" in read(client.get(url("limitkey_changelist"), {"page": "9"}))


@pytest.mark.parametrize("page", ["", "0", "-1", "x", "1e9", "²", "9" * 400])
def test_any_number_of_a_page_is_answered(client, page):
    text = read(client.get(url("limitkey_changelist"), {"page": page}))
    assert "No key is known yet" in text


def test_a_key_is_found_by_its_name(client):
    answer = client.get(url("limitkey_changelist"), {"key": " tenant:a/b c "})
    assert answer.url == url("limitkey_change", "tenant:a/b c")


def test_the_page_of_a_key_shows_rate_reset_and_who_holds_it(client, shop, claiming):
    limits = write_limits([RateLimitPolicy("api", concurrency=2, rate="2/PT1H").limit()])
    for number in range(3):
        send(shop, f"t{number}", f"id{number}", limits=limits)
    shop.claim()
    page = show(client, "limitkey_change", "api")
    assert "Held of limit 100 % 2 of 2" in page
    assert "100 % 2 of 2 / PT1H resets at" in page
    assert "Waiting 1" in page
    assert "id0 shop.work claimed" in page


def test_the_page_of_a_key_shows_slots_and_what_the_key_saves(client, shop, claiming):
    for name, slots in (("runs", 60), ("waits", 70)):
        policy = RateLimitPolicy("gpu", concurrency=80, slots=slots)
        send(shop, name, name, limits=write_limits([policy.limit()]))
        shop.claim()
    page = show(client, "limitkey_change", "gpu")
    assert "Saves 70 slots for a task of tenant:waits" in page
    assert "State saves for a task" in page
    assert re.search(r"runs shop\.work claimed \S+ s 60 ", page)
    # A row of a lease has the slots beside the key.
    assert [key for key in names(claiming) if key.startswith("gpu")] == ["gpu"]


def test_the_page_of_a_key_shows_what_an_api_has_reported(client, shop, claiming):
    send(shop, "42", "waits", limits="api|C5|w")
    headers = {"X-RateLimit-Remaining": "2", "X-RateLimit-Reset": "600"}
    claiming.limits.report("api", headers)
    page = show(client, "limitkey_change", "api")
    assert re.search(r"Reported by the API 2 free starts until \d{4}-", page)
    claiming.limits.report("api", {**headers, "X-RateLimit-Remaining": "0"})
    page = show(client, "limitkey_change", "api")
    assert "State cools down" in page
    assert "Reported by the API" not in page


def names(claiming):
    return [each.key for each in claiming.limits.list(per_page=100).items]


def test_the_page_of_a_tenant_shows_its_burst(client, claiming):
    claiming.tenants.set_tier("42", "free", concurrency=3, burst=10)
    page = show(client, "limitkey_change", TENANT)
    assert "Held of limit 0 % 0 of 3 At once while idle 10" in page
    claiming.tenants.override("42", concurrency=12)
    assert "At once while idle" not in show(client, "limitkey_change", TENANT)


def test_the_page_of_a_tenant_shows_its_share_in_each_queue(client, shop):
    for number in range(3):
        send(shop, "42", f"t{number}")
    # No tenant of the queue holds a slot, so there is nothing to share.
    assert re.search(r"celery 3 1 .* – \d+\.\d s", show(client, "limitkey_change", TENANT))
    assert len(shop.claim()) == 1
    page = show(client, "limitkey_change", TENANT)
    assert "Why this number Limit 1: tier free" in page
    assert "celery 2 0 at its tier's limit 1 of 1.0" in page


def test_a_tenant_without_a_row_is_paused_and_resumed(client, boss, shop, claiming):
    send(shop, "42", "waits")
    page = do(client, "limitkey_change", TENANT, action="pause", reason="incident 17")
    assert "tenant:42: paused until it is resumed, by boss" in page
    assert shop.claim() == []
    [(user, key, message)] = history()
    assert (user, key) == ("boss", TENANT)
    assert message.startswith("Pause, because: incident 17. Done: tenant:42: paused until")
    page = do(client, "limitkey_change", TENANT, action="resume", reason="it is over.")
    assert "tenant:42: not stopped: tasks start as its limits allow" in page
    assert len(shop.claim()) == 1
    assert history()[1][2] == f"Resume, because: it is over. Done: {RESUMED}"


def test_a_pause_ends_when_it_should(client, claiming):
    do(client, "limitkey_change", TENANT, action="pause", reason="r", for_seconds="10m")
    holds = claiming.tenants.inspect("42").holds
    assert holds.paused
    assert 400 < holds.pause_seconds <= 600


def test_a_key_cools_down_and_comes_back(client, claiming):
    page = do(client, "limitkey_change", "api", action="cool_down", reason="429", for_seconds="90")
    assert "api: cool-down until" in page
    assert "nothing was known of it before" in page
    assert 60 < claiming.limits.inspect("api").holds.cool_down_seconds <= 90
    page = show(client, "limitkey_change", "api")
    assert "State cools down (opens in " in page
    assert "unlimited" not in page
    page = do(client, "limitkey_change", "api", action="clear_cool_down", reason="fine again")
    assert "Done: api: not stopped: tasks start as its limits allow" in page
    assert not claiming.limits.is_known("api")
    assert [entry[2].partition(",")[0] for entry in history()] == ["Cool down", "End cool-down"]


def test_the_page_of_a_pattern_ends_its_override_and_stops_nothing(client, claiming):
    claiming.limits.override("api.*", concurrency=0)
    page = client.get(url("limitkey_change", "api.*")).text
    assert 'value="clear_override"' in page
    assert 'value="pause"' not in page
    page = do(client, "limitkey_change", "api.*", action="clear_override", reason="it is over")
    assert "api.*: its own numbers hold again" in page


def test_a_cool_down_without_a_time_is_not_done_and_the_history_says_so(client, claiming):
    page = do(client, "limitkey_change", "api", action="cool_down", reason="429")
    assert "A cool-down needs a time" in page
    assert history()[0][2].startswith("Cool down, because: 429. Not done: A cool-down needs")
    assert not claiming.limits.is_known("api")


def test_a_boost_doubles_the_own_number_for_an_hour_and_never_compounds(client, claiming):
    claiming.tenants.set_tier("42", "pro")
    for _ in range(2):
        page = do(client, "limitkey_change", TENANT, action="boost", reason="a sale")
        assert "tenant:42: concurrency 6 until" in page
    found = claiming.tenants.inspect("42")
    assert found.limit == 6
    assert found.override.reason == "a sale"
    assert found.override.by == "boss"
    left = (found.override.expires_at - claiming.stats.status().at).total_seconds()
    assert 3590 < left <= 3600
    page = do(client, "limitkey_change", TENANT, action="clear_override", reason="sold out")
    assert "its own numbers hold again" in page
    assert claiming.tenants.inspect("42").limit == 3


def test_a_boost_is_of_the_number_below_a_pause(client, claiming):
    claiming.tenants.pause("42")
    assert boosted(claiming.tenants.inspect("42")) == 2


def test_an_unlimited_tenant_cannot_be_boosted(client, claiming):
    claiming.tenants.set_tier("42", "pro", concurrency=None)
    page = do(client, "limitkey_change", TENANT, action="boost", reason="a sale")
    assert "its number is unlimited, so there is nothing to double" in page
    assert claiming.tenants.inspect("42").override is None


def test_a_purge_asks_first_and_cancels_what_waits(client, shop, claiming):
    for number in range(3):
        send(shop, "42", f"t{number}")
    assert len(shop.claim()) == 1
    page = show(client, "limitkey_purge", TENANT)
    assert "2 tasks of tenant 42 wait" in page
    assert shop.find("t2") == [(shop.find("t2")[0][0], "waiting")]
    page = do(client, "limitkey_purge", TENANT, reason="left us")
    assert "tenant 42: 2 waiting tasks are cancelled" in page
    assert claiming.tenants.inspect("42").waiting_count == 0
    assert history() == [
        (
            "boss",
            TENANT,
            "Purge, because: left us. Done: tenant 42: 2 waiting tasks are cancelled",
        )
    ]


def test_only_a_tenant_can_be_purged(client):
    answer = client.post(url("limitkey_purge", "api"), {"reason": "r"})
    assert answer.url == url("limitkey_change", "api")
    assert history() == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"reason": ""}, "This field is required"),
        ({"reason": "x" * 201}, "at most 200 characters"),
        ({"reason": "r", "for_seconds": "soon"}, "expected a duration such as 30"),
        ({"reason": "nu\0l"}, "Null characters are not allowed"),
    ],
)
def test_what_cannot_be_meant_is_rejected_beside_the_field(client, claiming, fields, problem):
    assert problem in do(client, "limitkey_change", TENANT, action="pause", **fields)
    assert not claiming.tenants.inspect("42").holds.on_hold
    assert history() == []


@pytest.mark.parametrize("action", ["boost", "pause"])
@pytest.mark.parametrize("time", ["0s", "367d", "10000000d"])
def test_a_time_that_no_hold_can_have_changes_nothing(client, claiming, action, time):
    page = do(client, "limitkey_change", TENANT, action=action, reason="r", for_seconds=time)
    assert "from 1 ms to 366 days" in page
    found = claiming.tenants.inspect("42")
    assert (found.override, found.holds.paused) == (None, False)
    assert not LimitOverride.objects.exists()
    assert history() == []


@pytest.mark.parametrize("action", ["", "purge", "delete", "cool_down"])
def test_another_action_does_nothing(client, claiming, action):
    do(client, "limitkey_change", TENANT, action=action, reason="r")
    assert not claiming.tenants.inspect("42").holds.on_hold
    assert history() == []


@pytest.mark.parametrize(
    "key",
    [
        "tenant:a/b c",
        "tenant:<script>alert(1)</script>",
        "tenant:Ünï%2F_2F?&#",
        "tenant:" + "x" * 200,
        "queue:../../x",
    ],
)
def test_a_hostile_name_is_steered_as_it_is(client, claiming, key):
    page = client.post(url("limitkey_change", key), {"action": "pause", "reason": "r"}, follow=True)
    assert b"<script>alert(1)" not in page.content
    assert claiming.limits.inspect(key).holds.paused
    assert history()[0][1] == key[:200]


@pytest.mark.parametrize("key", ["tenant:", "tenant:" + "x" * 201, "a b", "..", "nu\0l", "é" * 500])
def test_what_can_be_no_key_is_said_and_offers_nothing(client, key):
    page = client.get(url("limitkey_changelist"), {"key": key}, follow=True)
    assert b"expected" in page.content
    assert b'name="action"' not in page.content
    text = do(client, "limitkey_change", key, action="pause", reason="r")
    assert "Not done" in text
    assert "Not done" in history()[0][2]


def test_a_name_of_ten_kilobytes_is_rejected(client):
    page = show(client, "limitkey_changelist", key="x" * 10_000)
    assert "No key has more than 1000 characters" in page


def test_each_service_of_a_tenant_has_a_key_if_it_counts_apart(client, wire, redis_url):
    fairness = wire(f"fair{redis_url}", tier_scope="service")
    do(client, "limitkey_change", TENANT, action="pause", reason="r")
    assert fairness.tenants.inspect("42", "pdf").holds.paused
    page = show(client, "limitkey_change", "tenant:42:pdf")
    assert "paused with all services of its tenant" in page
    page = do(client, "limitkey_change", "tenant:42:pdf", action="boost", reason="r")
    assert "tenant:42:pdf: concurrency 2 until" in page


def test_a_purge_counts_what_waits_in_all_services(client, shop, wire, redis_url):
    fairness = wire(f"fair{redis_url}", tier_scope="service")
    for service in ("pdf", "pdf", "_", "_", "_"):
        send(shop, "42", str(uuid4()), service=service)
    key = "tenant:42:pdf"
    assert "5 tasks of tenant 42 wait" in show(client, "limitkey_purge", key)
    page = do(client, "limitkey_purge", key, reason="left us")
    assert "tenant 42: 5 waiting tasks are cancelled" in page
    assert fairness.tenants.inspect("42").waiting_count == 0


def test_a_queue_with_a_colon_is_found_by_its_name(client, shop, claiming):
    send(shop, "42", "waits", queue="a:b")
    do(client, "limitkey_change", "queue:a:b", action="pause", reason="r")
    assert claiming.limits.inspect("queue:a:b").holds.paused
