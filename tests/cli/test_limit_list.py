"""``list`` and ``tier``: keys page by page, and what a tenant's tier is."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Installation
from tests.support.waiting import eventually

API = "api.stripe.com|C1|w"


@pytest.fixture
def made(client, fairness):
    """A key and its two tenants; one that is idle and paused, and a key that is overridden."""
    made = Installation(client)
    for tenant in ("a", "b"):
        made.put(tenant, f"t{tenant}", limits=API)
    made.put("", "system", queue="other")
    assert len(made.claim()) == 1
    fairness.tenants.pause("idle")
    fairness.limits.override("api.other.com", concurrency=3)
    return made


def test_every_known_key_is_listed_once_by_name(made, fairness, run):
    page = fairness.limits.list()
    assert {each.key: each.held for each in page.items} == {
        "api.other.com": 0,
        "api.stripe.com": 1,
        "tenant:a": 1,
        "tenant:b": 0,
        "tenant:idle": 0,
    }
    assert [each.key for each in page.items] == sorted(each.key for each in page.items)
    assert page.pagination.model_dump() == {"total": 5, "page": 1, "per_page": 20}
    done = run("limit", "list")
    assert done.exit_code == 0
    lines = [line.split() for line in done.output.splitlines()]
    assert ["tenant:a", "free", "1", "1", "0", "tier", "free"] in lines
    assert ["tenant:b", "free", "1", "0", "1", "tier", "free"] in lines
    assert ["api.stripe.com", "1", "1", "1", "declared", "by", "its", "tasks"] in lines
    assert ["api.other.com", "3", "0", "0", "override", "until", "it", "is", "cleared"] in lines
    assert done.output.endswith("page 1 of 1, 5 keys\n")


def test_pages_follow_each_other_and_the_last_is_shorter(made, run):
    pages = [
        json.loads(run("limit", "list", "--per-page", "2", "--page", number, "--json").output)
        for number in "1234"
    ]
    assert [[each["key"] for each in page["items"]] for page in pages] == [
        ["api.other.com", "api.stripe.com"],
        ["tenant:a", "tenant:b"],
        ["tenant:idle"],
        [],
    ]
    found = [page["pagination"] for page in pages]
    assert found == [{"total": 5, "page": number, "per_page": 2} for number in (1, 2, 3, 4)]


def test_the_names_of_many_keys_are_read_once_for_many_pages(fairness, client):
    def commands():
        return sum(each["calls"] for each in client.info("commandstats").values())

    made = Installation(client)
    client.zadd(made.key("key_expiry"), {f" tenant:{number:05}": 9e15 for number in range(20_000)})
    used = []
    for page in (1, 2, 3):
        before = commands()
        (item,) = fairness.limits.list(page, per_page=1).items
        assert item.key == f"tenant:{page - 1:05}"
        used.append(commands() - before)
    assert used[1:] == [used[1], used[1]]
    assert used[1] < 60
    client.zadd(made.key("key_expiry"), {" tenant:00000a": 9e15})
    eventually(lambda: fairness.limits.list().pagination.total == 20_001)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("--page", "0"), "page: expected a whole number from 1 to 1000000, got: 0"),
        (("--per-page", "101"), "per_page: expected a whole number from 1 to 100, got: 101"),
        (("--page", "x"), "'x' is not a valid integer"),
    ],
)
def test_a_page_that_cannot_be_is_wrong_usage(run, args, problem):
    done = run("limit", "list", *args)
    assert done.exit_code == 2
    assert problem in " ".join(done.output.split())


def test_an_installation_in_which_nothing_is_has_no_keys(run):
    assert run("limit", "list").output.endswith("page 1 of 1, 0 keys\n")


def test_a_tier_is_shown_published_and_forgotten(run, fairness):
    fairness.tenants.publish_tiers(fairness.settings.tiers.values())
    # One process asks for each of them once: it believes for a second what it has read.
    assert "tier free, limit 1" in run("tenant", "tier", "41").output
    assert "tier pro, limit 3" in run("tenant", "tier", "42", "pro").output
    assert "tier pro, limit 7" in run("tenant", "tier", "43", "pro", "--concurrency", "7").output
    assert (
        "limit unlimited" in run("tenant", "tier", "44", "pro", "--concurrency", "unlimited").output
    )
    fairness.tenants.set_tier("45", "pro")
    assert "tier free, limit 1" in run("tenant", "tier", "45", "--clear").output
    assert not fairness.limits.inspect("tenant:45").published


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("42", "platinum"), "tier: expected one of enterprise, free, pro, pro_plus"),
        (("42", "pro", "--clear"), "expected TENANT, TENANT NAME"),
        (("42", "--concurrency", "7"), "expected TENANT, TENANT NAME"),
        (("42", "pro", "--concurrency", "many"), "concurrency: expected"),
    ],
)
def test_what_is_no_tier_is_wrong_usage(run, fairness, args, problem):
    done = run("tenant", "tier", *args)
    assert done.exit_code == 2
    assert problem in " ".join(done.output.split())
    assert not fairness.limits.inspect("tenant:42").published
