"""The commands that stop keys of limits: what they do, say, and how they exit."""

from __future__ import annotations

import json
import time

import pytest

KEY = "api.stripe.com"


def test_a_key_is_paused_and_resumed(run, client, installation):
    done = run("limit", "pause", KEY)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{KEY}: paused until it is resumed, by ada since 2")
    assert client.hget(installation.key("changes"), f"pause {KEY}").startswith(" ")
    done = run("limit", "resume", KEY)
    assert (done.exit_code, done.output) == (
        0,
        f"{KEY}: not stopped: tasks start as its limits allow\n",
    )
    assert not client.exists(installation.key("changes"))


def test_a_pause_in_the_place_of_one_without_an_end_is_an_event(run, fairness, monkeypatch):
    run("limit", "pause", KEY)
    monkeypatch.setenv("LOGNAME", "grace")
    run("limit", "pause", KEY)
    paused = fairness.events.read(types=["fairness.paused"]).events
    assert [each.data["by"] for each in paused] == ["ada", "grace"]


def test_a_key_cools_down_longer_and_never_shorter(run):
    assert run("limit", "cool-down", KEY, "--for", "60", "--reason", "ticket 7").stdout.startswith(
        f"{KEY}: cool-down until 2"
    )
    found = json.loads(run("limit", "cool-down", KEY, "--for", "5", "--json").stdout)
    assert (found["key"], found["paused"]) == (KEY, False)
    assert 10 < found["cool_down_seconds"] <= 60
    ended = run("limit", "cool-down", KEY, "--clear").output
    assert ended == f"{KEY}: not stopped: tasks start as its limits allow\n"


def test_a_pause_says_also_that_the_key_cools_down(run):
    run("limit", "cool-down", KEY, "--for", "60")
    pause, _, cool_down = run("limit", "pause", KEY).output.partition("; ")
    assert pause.startswith(f"{KEY}: paused until it is resumed, by ada since ")
    assert cool_down.startswith("cool-down until 2")
    assert run("limit", "resume", KEY).output.startswith(f"{KEY}: cool-down until 2")


def test_the_end_of_a_stop_is_a_time_of_the_server(fairness, monkeypatch):
    end, client_time = time.time() + 1800, time.time
    monkeypatch.setattr("time.time", lambda: client_time() + 3600)
    for stop in (fairness.limits.pause, fairness.limits.cool_down):
        holds = stop(KEY, until=end)
    assert holds.paused_until.timestamp() == pytest.approx(end, abs=1)
    assert holds.cool_down_seconds == pytest.approx(1800, abs=30)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("limit", "pause", "tenant:"), "key: expected tenant:{tenant}, got: 'tenant:'"),
        (
            ("limit", "pause", KEY, "--for", "0"),
            "for_seconds: expected seconds from 0.001 to 31622400",
        ),
        (("limit", "resume", "a b"), "got: 'a b'"),
        (
            ("limit", "cool-down", "tenant:42", "--for", "9"),
            "a tenant is paused: fairness tenant pause TENANT",
        ),
        (("limit", "cool-down", KEY), "expected --for DURATION, --until TIME or --clear"),
        (
            ("limit", "cool-down", KEY, "--for", "9", "--clear"),
            "expected --for DURATION, --until TIME or --clear",
        ),
        (("limit", "cool-down", KEY, "--for", "0"), "--for: expected 1 to 86400 seconds"),
        (("limit", "cool-down", KEY, "--for", "86401"), "--for: expected 1 to 86400 seconds"),
        (
            ("limit", "cool-down", KEY, "--for", "soon"),
            "expected a duration such as 30, 30s, 1m30s, 500ms or PT30S, got: 'soon'",
        ),
        (
            (
                "limit",
                "pause",
            ),
            "Missing argument 'KEY'",
        ),
    ],
)
def test_wrong_usage_names_what_is_expected(run, client, installation, args, problem):
    done = run(*args)
    assert done.exit_code == 2
    assert problem in " ".join(done.output.split())
    assert not client.exists(installation.key("changes"), installation.key("cool_downs"))
