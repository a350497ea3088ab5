"""``fairness.limits.report``: from the headers of an answer to what people see."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Installation

KEY = "api.stripe.com"
QUOTA = {"X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "600"}


@pytest.fixture
def calling(client):
    """Two tasks of the API wait."""
    made = Installation(client)
    for number in range(2):
        made.put(f"u{number}", f"t{number}", task_id=f"id-{number}", limits=f"{KEY}|C5|w")
    return made


def test_a_report_is_stored_with_one_call(fairness, client, calling):
    before = client.info("commandstats")["cmdstat_fcall"]["calls"]
    found = fairness.limits.report(KEY, QUOTA)
    assert client.info("commandstats")["cmdstat_fcall"]["calls"] == before + 1
    assert (found.is_read, found.left, found.cool_down_seconds) == (True, 1, 0.0)
    assert found.until is not None


def test_headers_that_say_nothing_cost_no_call(fairness, client, calling):
    before = client.info("commandstats")["cmdstat_fcall"]["calls"]
    assert not fairness.limits.report(KEY, {"Content-Type": "text/plain"}).is_read
    assert client.info("commandstats")["cmdstat_fcall"]["calls"] == before


def test_people_see_how_many_starts_are_free_and_why_a_task_waits(run, fairness, calling):
    fairness.limits.report(KEY, QUOTA)
    assert fairness.limits.inspect(KEY).holds.reported_left == 1
    assert "an API has reported 1 free start until " in run("limit", "show", KEY).output
    assert len(calling.claim()) == 1
    shown = run("task", "explain", "id-1").output
    assert f"blocked by {KEY}: cool-down, held 1 of 5, available in " in shown
    assert ": an API has reported that no start is free" in shown


def test_a_retry_after_cools_the_key_down(fairness, calling, caplog):
    found = fairness.limits.report(KEY, {"Retry-After": "90"})
    assert 89 < found.cool_down_seconds <= 90
    assert caplog.messages == [f"{KEY} cools down for 90.0 s: the API has reported its limit"]
    assert not calling.claim()
    fairness.limits.clear_cool_down(KEY)
    assert len(calling.claim()) == 2


@pytest.mark.parametrize(
    ("key", "problem"),
    [("tenant:42", "tenant"), ("a b", "key: expected the key of a limit such as")],
)
def test_a_key_that_cannot_have_a_report_is_an_error(fairness, client, key, problem):
    with pytest.raises(ValueError, match=problem):
        fairness.limits.report(key, QUOTA)
