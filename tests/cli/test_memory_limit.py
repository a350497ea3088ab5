"""The commands on a Redis at its memory limit, where an operator needs them.

Redis rejects to queue what is to be run as one there; Valkey 9 does not.
"""

from __future__ import annotations

import json

import pytest

from tests.cli.clearing import send

KEY = "api.stripe.com"
ASKED = (
    ("status",),
    (
        "limit",
        "list",
    ),
    ("limit", "show", "tenant:42"),
    ("limit", "show", KEY),
    ("tenant", "tier", "42"),
    ("task", "explain", "second"),
    ("events",),
    (
        "task",
        "dead",
    ),
)


@pytest.fixture
def full(installation, client):
    """The installation with a few tasks, on a server that rejects whatever could need memory."""
    client.flushdb()
    limits = f"{KEY}|C1;R5/60000|w"
    send(installation, "42", "first", limits=limits)
    send(installation, "42", "second", limits=limits)
    send(installation, "43", "third", limits=limits)
    installation.claim()
    kept = client.config_get("maxmemory*")
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    yield installation
    client.config_set("maxmemory", kept["maxmemory"])
    client.config_set("maxmemory-policy", kept["maxmemory-policy"])


@pytest.mark.parametrize("asked", ASKED, ids=" ".join)
def test_what_looks_answers(run, full, asked):
    done = run(*asked)
    assert (done.exit_code, done.stderr) == (0, "")


def test_what_is_said_holds_and_is_answered(run, full, fairness):
    done = run("limit", "override", KEY, "--concurrency", "2", "--json")
    assert (done.exit_code, json.loads(done.stdout)["override"]["concurrency"]) == (0, 2)
    assert len(full.claim()) == 1
    assert "paused until it is resumed, by ada since 2" in run("limit", "pause", "tenant:42").stdout
    assert (
        run("limit", "resume", "tenant:42").stdout
        == "tenant:42: not stopped: tasks start as its limits allow\n"
    )
    assert run("limit", "override", KEY, "--clear").exit_code == 0


def test_a_check_needs_its_library_and_no_other_memory(run, without_check_library, full, client):
    done = run("check")
    assert done.exit_code == 69
    assert "has no function library: " in done.stderr
    assert "memory is full and the library cf_" in done.stderr
    client.config_set("maxmemory", 0)
    assert run("check").exit_code == 0
    client.config_set("maxmemory", 1)
    assert (run("check").exit_code, run("check", "--repair").exit_code) == (0, 0)
