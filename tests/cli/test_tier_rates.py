"""The rate of a tier as people see and change it."""

from __future__ import annotations

import re

import pytest

from celery_fairness.config.rates import Rate
from celery_fairness.config.tiers import Tier
from celery_fairness.scheduler.types import Rules
from tests.cli.conftest import Installation

#: The worker holds the tiers that are published.
RULES = Rules(default_limit=None)


@pytest.fixture
def rated(fairness, client):
    """An installation whose tenants may start two tasks in an hour."""
    fairness.tenants.publish_tiers([Tier("free", 3, rate=Rate(2, 3600)), Tier("pro", 3)])
    return Installation(client)


@pytest.fixture
def at_its_rate(rated):
    """Tenant 42 has started two tasks, which have ended, and the third one waits."""
    for number in range(3):
        rated.put("42", f"t{number}", kind="shop.work", task_id=f"id-{number}")
    for task in rated.claim(rules=RULES):
        rated.settle(task)
    return rated


def test_explain_shows_how_many_tasks_have_started_and_when_the_next_may(run, at_its_rate):
    done = run("task", "explain", "id-2")
    found = re.search("^blocked by tenant:42.*$", done.output, re.MULTILINE)
    assert found
    assert re.fullmatch(
        r"blocked by tenant:42: rate, held 0 of 3, 2 of 2/PT1H started, available in 3[56]\d\d\.\d "
        r"s at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC; tier free",
        found[0],
    )
    assert "tenant:42  3 at once, 2/PT1H  wait         0  rate   tier free" in done.output


def test_explain_names_the_time_in_python_too(fairness, at_its_rate):
    found = fairness.tasks.explain("id-2")
    (blocker,) = found.blocked_by
    assert (blocker.key, blocker.reason, blocker.counted) == ("tenant:42", "rate", "2 of 2/PT1H")
    assert 3_500 < blocker.opens_in_seconds <= 3_601
    assert blocker.opens_at is not None
    assert 3_500 < found.starts_in_seconds <= 3_601


def test_explain_names_the_throttle(fairness, rated):
    fairness.tenants.publish_tiers([Tier("free", 3, throttle=Rate(2, 3600))])
    for number in range(2):
        rated.put("42", f"t{number}", task_id=f"id-{number}")
    assert len(rated.claim(rules=RULES)) == 1
    found = fairness.tasks.explain("id-1")
    (blocker,) = found.blocked_by
    assert (blocker.reason, blocker.counted) == ("throttle", "")
    assert 1_600 < blocker.opens_in_seconds < 1_800
    assert found.starts_in_seconds == pytest.approx(blocker.opens_in_seconds, abs=1)
    assert fairness.tasks.list(tenant="42", state="waiting").items[0].why == "throttle"


def test_a_list_names_the_rate_for_which_a_task_waits(fairness, at_its_rate):
    (task,) = fairness.tasks.list(tenant="42").items
    assert (task.state, task.why, task.key) == ("waiting", "rate", "tenant:42")


def test_the_state_of_a_tenant_has_its_window(run, fairness, at_its_rate):
    found = fairness.tenants.inspect("42")
    assert (found.rate.limit, found.rate.period, found.rate.current_count) == (2, "PT1H", 2)
    assert (found.blocked_by, found.at_limit, found.concurrency.limit) == ("rate", True, 3)
    assert "rate 2/PT1H, 2 counted, resets " in run("tenant", "show", "42").output


def test_a_queue_counts_the_tasks_that_wait_for_the_rate_as_those_of_the_tier(
    fairness, at_its_rate
):
    (found,) = (each for each in fairness.stats.status().queues if each.queue == "celery")
    assert (found.startable, found.blocked_tasks) == (0, {"tier": 1})


def test_an_override_has_a_rate_and_ends(run, at_its_rate):
    done = run("tenant", "override", "42", "--rate", "3/h", "--for", "1h", "--by", "ada")
    assert done.exit_code == 0
    assert "tenant:42: rate 3/PT1H until " in done.output
    assert len(at_its_rate.claim(rules=RULES)) == 1
    assert run("tenant", "override", "42", "--clear").exit_code == 0
    at_its_rate.put("42", "t3")
    assert not at_its_rate.claim(rules=RULES)


def test_a_tenant_has_a_rate_of_its_own(run, fairness, at_its_rate):
    assert "rate 7/PT1M, " in run("tenant", "tier", "42", "free", "--rate", "7/m").output
    assert run("tenant", "tier", "42", "free", "--rate", "unlimited").exit_code == 0
    assert fairness.tenants.inspect("42").rate is None
    assert len(at_its_rate.claim(rules=RULES)) == 1
    fairness.tenants.set_tier("42", "free", rate="1/h", concurrency=7)
    found = fairness.tenants.inspect("42")
    assert (found.concurrency.limit, found.rate.limit) == (7, 1)


def test_the_status_has_the_rates_of_tiers(run, fairness, rated):
    rows = {row.tier: (row.rate, row.throttle) for row in fairness.stats.status().tiers}
    assert rows == {"free": ({"limit": 2, "period": "PT1H"}, None), "pro": (None, None)}
    head, free = re.findall("^(?:tier|free) .*$", run("status").output, re.MULTILINE)[:2]
    assert head.split()[:5] == ["tier", "concurrency", "burst", "rate", "throttle"]
    assert free.split()[:4] == ["free", "3", "2/PT1H", "unlimited"]


def test_an_invalid_rate_names_the_option(run, rated):
    done = run("tenant", "override", "42", "--rate", "often")
    assert done.exit_code == 2
    assert "rate: expected " in done.output


def test_a_rejection_counts_for_the_rate(fairness, at_its_rate):
    counted = {(each.key, each.strategy): each.total for each in fairness.stats.rejections().keys}
    assert counted["tenant:42", "rate"] >= 1
