"""What people see of a tenant that is lent places, and what a check finds and repairs."""

from __future__ import annotations

import re

import pytest

from celery_fairness.config.tiers import Tier
from celery_fairness.scheduler.types import Rules
from tests.cli.conftest import Installation, named

#: The worker holds the tiers that are published.
RULES = Rules(default_limit=None)
INDEX, TENANT = "lend:celery", "tenant:42"


@pytest.fixture
def soft(fairness, client):
    """An installation whose tenants may run two tasks, and four while nothing else waits."""
    fairness.tenants.publish_tiers([Tier("free", 2, burst=4), Tier("pro", 2)])
    return Installation(client)


@pytest.fixture
def lent(soft):
    """Tenant 42 runs three tasks, one of them in a lent place, and three wait."""
    for number in range(6):
        soft.put("42", f"t{number}", kind="shop.work", task_id=f"id-{number}")
    soft.claim(3, rules=RULES)
    return soft


def test_explain_says_how_many_places_are_lent_and_when_more_are(run, fairness, lent):
    text = (
        "blocked by tenant:42: concurrency, held 2 of 2, 1 lent of 2; more when a worker has "
        "nothing else; tier free"
    )
    done = run("task", "explain", "id-3")
    assert text in done.output
    assert "2 at once, 4 while a claim finds nothing else" in done.output
    (blocker,) = fairness.tasks.explain("id-3").blocked_by
    assert (blocker.held, blocker.limit, blocker.burst) == (3, 2, 4)
    lent.claim(1, rules=RULES)
    assert "held 2 of 2, 2 lent of 2; tier free" in run("task", "explain", "id-4").output


def test_the_state_of_a_tenant_has_its_burst(run, fairness, lent):
    found = fairness.tenants.inspect("42")
    assert (found.limit, found.burst, found.held) == (2, 4, 3)
    assert "limit 2, burst 4, held 3" in run("tenant", "show", "42").output


def test_lent_tasks_are_not_startable(fairness, lent):
    (found,) = (each for each in fairness.stats.status().queues if each.queue == "celery")
    assert (found.startable, found.blocked_tasks) == (0, {"tier": 3})


def test_a_tenant_has_a_burst_of_its_own(run, fairness, lent):
    assert run("tenant", "tier", "42", "free", "--burst", "6").exit_code == 0
    assert fairness.tenants.inspect("42").burst == 6
    assert len(lent.claim(9, rules=RULES)) == 3
    assert run("tenant", "tier", "42", "free", "--burst", "none").exit_code == 0
    assert fairness.tenants.inspect("42").burst is None


def test_an_invalid_burst_names_the_option(run, soft):
    done = run("tenant", "tier", "42", "free", "--burst", "unlimited")
    assert done.exit_code == 2
    assert re.search(r"burst: expected a whole number from 1 to 1000000, or 'none'", done.output)


def test_the_status_has_the_bursts_of_tiers(run, fairness, soft):
    assert {row.tier: row.burst for row in fairness.stats.status().tiers} == {
        "free": 4,
        "pro": None,
    }
    assert re.search(r"^free +2 +4 +unlimited", run("status").output, re.MULTILINE)


def test_nothing_is_found_where_everything_agrees(lent, client, check):
    assert client.zscore(lent.key(INDEX), TENANT)
    assert check().findings == ()


@pytest.mark.parametrize(
    ("command", "words", "of"),
    [
        ("ZREM", [TENANT], TENANT),
        ("ZADD", [77, TENANT], TENANT),
        ("ZADD", [1, "tenant:idle"], "tenant:idle"),
    ],
)
def test_what_is_planted_is_found_and_repaired(lent, client, check, command, words, of):
    client.execute_command(command, lent.key(INDEX), *words)
    assert named(check()) == {("lend_index", INDEX, of)}
    check(repair=True)
    assert check().findings == ()
    assert len(lent.claim(rules=RULES)) == 1


def test_a_tenant_below_its_burst_whose_mark_says_that_it_is_full_is_found(lent, client, check):
    client.hset(lent.key(f"tenant_state:{TENANT}"), "at_limit", 1)
    client.zrem(lent.key(INDEX), TENANT)
    assert named(check()) == {("tenant_left_at_limit", "at_limit", TENANT)}
    check(repair=True)
    assert check().findings == ()
    assert len(lent.claim(rules=RULES)) == 1


def test_a_missing_flag_is_found(lent, client, check):
    client.hdel(lent.key("clock"), "bursts")
    assert ("flag_missing", "clock", "bursts") in named(check())
    check(repair=True)
    assert len(lent.claim(rules=RULES)) == 1
