"""``limit override 'api.*'``: what people see of it, and which keys take no pattern."""

from __future__ import annotations

import json

import pytest

from celery_fairness.errors import NotFound
from tests.cli.clearing import send
from tests.cli.conftest import Installation
from tests.cli.test_explanation import shop, told
from tests.cli.test_queues_api import declare

__all__ = ["shop"]

LIMITS = "api.stripe|C9|w"


def test_an_override_of_a_pattern_is_set_shown_and_cleared(run):
    done = run("limit", "override", "api.*", "--concurrency", "50", "--reason", "no proxy")
    text = "api.*: concurrency 50 until it is cleared; reason: no proxy; by: ada\n"
    assert (done.exit_code, done.output) == (0, text)
    assert "limit 50: override until it is cleared" in run("limit", "show", "api.*").output
    assert "api.*" in run("limit", "list").output
    done = run("limit", "override", "api.*", "--clear")
    assert (done.exit_code, done.output) == (0, "api.*: its numbers are its own again\n")
    assert run("limit", "override", "api.*", "--clear").exit_code == 1


def test_a_key_shows_the_pattern_whose_numbers_it_has(run, client, fairness):
    Installation(client).put("42", "t1", limits=LIMITS)
    Installation(client).claim()
    fairness.limits.override("api.*", concurrency=2, rate="5/m", by="ada")
    found = fairness.limits.inspect("api.stripe")
    assert (found.limit, found.override.pattern) == (2, "api.*")
    shown = json.loads(run("limit", "show", "api.stripe", "--json").stdout)["override"]
    assert (shown["pattern"], shown["concurrency"]) == ("api.*", 2)
    text = run("limit", "show", "api.stripe").output
    assert "limit 2: override api.* until it is cleared, by ada\n" in text
    assert "override of api.*: concurrency 2, rate 5/PT1M until it is cleared" in text
    fairness.limits.override("api.stripe", concurrency=7)
    assert fairness.limits.inspect("api.stripe").override.pattern is None
    assert "pattern" not in fairness.limits.inspect("api.stripe").override.model_dump()


def test_a_pattern_makes_no_key_known(fairness):
    fairness.limits.override("api.*", concurrency=2)
    with pytest.raises(NotFound):
        fairness.limits.inspect("api.unheard-of")


def test_to_clear_a_key_is_not_to_clear_its_pattern(run, client, fairness):
    Installation(client).put("42", "t1", limits=LIMITS)
    fairness.limits.override("api.*", concurrency=2)
    assert not fairness.limits.clear_override("api.stripe")
    fairness.limits.override("api.stripe", concurrency=0)
    assert fairness.limits.clear_override("api.stripe")
    assert fairness.limits.inspect("api.stripe").limit == 2
    fairness.limits.override("api.*", concurrency=0)
    line = run("limit", "resume", "api.stripe").output
    assert "to end it: celery -A APP fairness limit override 'api.*' --clear" in line


def test_explain_names_the_pattern(run, shop, fairness):
    fairness.limits.override("api.*", concurrency=0, by="ada")
    send(shop, "42", "waits", limits=LIMITS)
    line = "blocked by api.stripe: paused, held 0 of 0; override api.* until it is cleared, by ada"
    assert line in told(run, "waits")


def test_the_default_of_limits_without_numbers_is_shown_for_these_alone(client, fairness):
    installation = Installation(client)
    fairness.limits.override("*", concurrency=3)
    installation.put("42", "t1", limits=f"bare||w,{LIMITS}")
    installation.claim()
    assert fairness.limits.inspect("bare").override.pattern == "*"
    assert fairness.limits.inspect("api.stripe").override is None
    assert fairness.limits.inspect("tenant:42").override is None


@pytest.mark.parametrize("verb", ["pause", "resume", "cool_down", "clear_cool_down"])
def test_a_stop_takes_no_pattern(fairness, verb):
    arguments = {"for_seconds": 5} if verb == "cool_down" else {}
    with pytest.raises(ValueError, match="key: expected one key, because a pattern stops keys"):
        getattr(fairness.limits, verb)("api.*", **arguments)


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("tenant:*", "because the tier of tenants has their numbers"),
        ("queue:*", "because each queue has a limit of its own"),
        ("api*", r"expected a pattern with \* behind one of"),
        ("queue:mails:*", "expected a pattern of the partitions of a queue that has some"),
    ],
)
def test_what_is_no_pattern_of_limits_is_an_error(fairness, run, key, problem):
    with pytest.raises(ValueError, match=problem):
        fairness.limits.override(key, concurrency=1)
    assert run("limit", "override", key, "--concurrency", "1").exit_code == 2


def test_the_partitions_of_a_queue_have_a_pattern(run, client, fairness):
    declare(fairness, mails={"by_kind": True, "partition": {"concurrency": 9}})
    done = run("limit", "override", "queue:mails:*", "--concurrency", "1")
    assert done.output.startswith("queue:mails:*: concurrency 1 until it is cleared")
    assert run("limit", "show", "queue:mails:*").output.startswith("queue:mails:*: held 0\nlimit 1")
    installation = Installation(client)
    for number in range(4):
        limits = f"queue:mails:{number % 2}|q|w"
        installation.put(f"u{number}", f"t{number}", "mails", limits=limits)
    assert len(installation.claim(queue="mails")) == 2
    assert fairness.limits.inspect("queue:mails:1").override.pattern == "queue:mails:*"
    assert fairness.limits.inspect("queue:mails").override is None


def test_a_limit_that_a_pattern_has_opened_or_will_is_no_finding(client, fairness):
    installation = Installation(client)
    for number in range(6):
        installation.put(f"u{number}", f"t{number}", limits="api.stripe|C1|w")
    installation.claim()
    installation.claim()
    fairness.limits.override("api.*", concurrency=3)
    assert fairness.check().findings == ()
    installation.claim()
    fairness.limits.override("api.*", concurrency=0, for_seconds=0.001)
    assert fairness.check().findings == ()
