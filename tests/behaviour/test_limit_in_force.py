"""Every place that shows a limit shows the number in force and the reasons for it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.conftest import fairness, make_fairness, partitions, run

__all__ = ["fairness", "make_fairness", "partitions", "run"]

TIME = r"2\d\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"


@pytest.fixture(params=["dispatch", "gate"])
def of(request, make_fairness, redis_url):
    """The same commands on both paths."""
    return make_fairness(url=redis_url if request.param == "gate" else "")


def lines_of(done):
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_a_paused_tenant_shows_who_paused_it_and_what_comes_after(run, of):
    before = datetime.now(UTC)
    lines_of(run("tenant", "tier", "42", "pro", of=of))
    lines_of(run("limit", "override", "tenant:42", "--concurrency", "7", "--by", "eve", of=of))
    lines_of(run("limit", "pause", "tenant:42", "--by", "ada", of=of))
    shown = lines_of(run("limit", "show", "tenant:42", of=of))
    assert shown[0].startswith("tenant:42: tier pro, limit 0, held 0")
    assert re.fullmatch(f"limit 0: paused until it is resumed, by ada since {TIME}", shown[1])
    assert shown[2:4] == [
        "otherwise 7: override until it is cleared, by eve",
        "otherwise 3: tier pro",
    ]
    assert lines_of(run("tenant", "tier", "42", of=of))[:4] == shown[:4]
    (row,) = (
        line for line in lines_of(run("limit", "list", of=of)) if line.startswith("tenant:42")
    )
    assert re.search(f"paused until it is resumed, by ada since {TIME}; otherwise 7: over", row)

    pause, override, tier = of.limits.inspect("tenant:42").in_force.reasons
    assert (pause.kind, pause.limit, pause.by, pause.until) == ("paused", 0, "ada", None)
    assert abs(pause.since - before) < timedelta(minutes=1)
    assert (override.kind, override.limit, override.by) == ("override", 7, "eve")
    assert (tier.kind, tier.limit, tier.tier) == ("tier", 3, "pro")


def test_the_number_in_force_is_that_of_what_is_left(run, of):
    lines_of(run("tenant", "tier", "42", "pro", "--concurrency", "5", of=of))
    lines_of(run("limit", "override", "tenant:42", "--concurrency", "7", "--for", "60", of=of))
    of.tenants.pause("42", for_seconds=60, by="ada")
    in_force = of.limits.inspect("tenant:42").in_force
    assert [each.kind for each in in_force.reasons] == ["paused", "override", "own"]
    assert re.fullmatch(
        f"0: paused until {TIME}, by ada since {TIME}; otherwise 7: override until {TIME}, by .*; "
        "otherwise 5: own number of the tenant",
        str(in_force),
    )
    of.tenants.resume("42")
    assert (
        of.limits.inspect("tenant:42").in_force.limit,
        of.limits.inspect("tenant:42").limit,
    ) == (7, 7)
    of.limits.clear_override("tenant:42")
    assert str(of.limits.inspect("tenant:42").in_force) == "5: own number of the tenant"
    of.tenants.set_tier("42", "pro")
    assert str(of.limits.inspect("tenant:42").in_force) == "3: tier pro"


def test_a_key_of_limits_shows_its_cool_down_and_its_override(run, of):
    of.limits.override("api", concurrency=2, by="eve", reason="a sale")
    of.limits.cool_down("api", for_seconds=60)
    shown = lines_of(run("limit", "show", "api", of=of))
    assert re.fullmatch(f"limit 0: cool-down until {TIME}", shown[1])
    assert shown[2] == "otherwise 2: override until it is cleared, by eve: a sale"
    found = json.loads(run("limit", "show", "api", "--json", of=of).stdout)["in_force"]
    assert found["limit"] == 0
    assert [each["kind"] for each in found["reasons"]] == ["cool-down", "override"]


def test_a_queue_shows_whose_numbers_it_has(make_fairness, run):
    of = make_fairness(fairness={"queues": {"mail": {"global_limit": 4}}})
    of.limits.override("queue:mail", concurrency=9)
    of.limits.clear_override("queue:mail")
    assert str(of.limits.inspect("queue:mail").in_force) == "4: declared in the setting queues"
    of.queues.set_limit("mail", global_limit=2)
    assert str(of.limits.inspect("queue:mail").in_force) == "2: set for the queue by a person"
    of.limits.pause("queue:mail")
    assert of.limits.inspect("queue:mail").in_force.limit == 0


def test_a_pause_of_all_services_shows_in_each_of_them(make_fairness, run):
    of = make_fairness(fairness={"tier_scope": "service"})
    of.tenants.pause("42", by="ada")
    reason = of.limits.inspect("tenant:42:pdf").in_force.reasons[0]
    assert (reason.limit, reason.by, reason.pause_of) == (0, "ada", "tenant:42")
    assert (
        "paused with all services of its tenant (tenant:42)"
        in run("limit", "show", "tenant:42:pdf", of=of).output
    )


def test_a_pause_without_a_name_has_that_of_the_user_of_the_process(of, monkeypatch):
    monkeypatch.setenv("LOGNAME", "operator")
    assert of.tenants.pause("42").paused_by == "operator"
    assert of.tenants.resume("42").paused_by == ""


def test_a_later_pause_stands_in_the_place_of_the_one_before(of):
    of.tenants.pause("42", by="ada")
    holds = of.tenants.pause("42", by="eve", for_seconds=60)
    assert (holds.paused_by, holds.paused_until is not None) == ("eve", True)
    assert of.limits.inspect("tenant:42").in_force.reasons[0].by == "eve"


@pytest.mark.parametrize("wrong", ["", 7, "x" * 201])
def test_a_name_that_cannot_be_is_an_error_that_says_what_is_expected(of, wrong):
    with pytest.raises(ValueError, match="by: expected a text of 1 to 200 characters, got: "):
        of.tenants.pause("42", by=wrong)


def test_a_hostile_name_cannot_steer_a_terminal(run, of):
    of.tenants.pause("42", by="\x1b[2Jeve\nlimit 9")
    shown = run("limit", "show", "tenant:42", of=of).output
    assert "\x1b" not in shown
    assert "\nlimit 9" not in shown
