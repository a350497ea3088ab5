"""The commands that stop keys of limits: what they do, say, and how they exit."""

from __future__ import annotations

import json

import pytest

KEY = "api.stripe.com"


def test_a_key_is_paused_and_resumed(run, client, installation):
    done = run("pause", KEY)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{KEY}: paused until it is resumed, by ada since 2")
    assert client.smembers(installation.key("paused")) == {KEY}
    done = run("resume", KEY)
    assert (done.exit_code, done.output) == (0, f"{KEY}: nothing stops it\n")
    assert not client.exists(installation.key("paused"))


def test_a_key_cools_down_longer_and_never_shorter(run):
    assert run("cool-down", KEY, "60", "--reason", "ticket 7").stdout.startswith(
        f"{KEY}: cool-down until 2"
    )
    found = json.loads(run("cool-down", KEY, "5", "--json").stdout)
    assert (found["key"], found["paused"]) == (KEY, False)
    assert 50 < found["cool_down_seconds"] <= 60
    assert run("cool-down", KEY, "--clear").output == f"{KEY}: nothing stops it\n"


def test_a_pause_says_also_that_the_key_cools_down(run):
    run("cool-down", KEY, "60")
    pause, _, cool_down = run("pause", KEY).output.partition("; ")
    assert pause.startswith(f"{KEY}: paused until it is resumed, by ada since ")
    assert cool_down.startswith("cool-down until 2")
    assert run("resume", KEY).output.startswith(f"{KEY}: cool-down until 2")


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("pause", "tenant:"), "key: expected tenant:{tenant}, got: 'tenant:'"),
        (("pause", KEY, "--for", "0"), "expires_in: expected seconds from 0.001 to 31622400"),
        (("resume", "a b"), "got: 'a b'"),
        (("cool-down", "tenant:42", "9"), "a tenant is paused: pause(tenant=…)"),
        (("cool-down", KEY), "expected SECONDS, from 1 to 86400, or --clear"),
        (("cool-down", KEY, "9", "--clear"), "expected SECONDS, from 1 to 86400, or --clear"),
        (("cool-down", KEY, "0"), "0.0 is not in the range 1<=x<=86400"),
        (("cool-down", KEY, "86401"), "86401.0 is not in the range 1<=x<=86400"),
        (("cool-down", KEY, "soon"), "'soon' is not a valid float"),
        (("pause",), "Missing argument 'KEY'"),
    ],
)
def test_wrong_usage_names_what_is_expected(run, client, installation, args, problem):
    done = run(*args)
    assert done.exit_code == 2
    assert problem in " ".join(done.output.split())
    assert not client.exists(installation.key("paused"), installation.key("cooled"))
