"""The check of the index by priority that a queue with `priority_scope="queue"` has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_fairness.scheduler import calls
from tests.cli.conftest import RULES, named

BY_QUEUE = replace(RULES, priority_scope="queue", default_limit=None)
AGED = replace(BY_QUEUE, priority_aging_ms=2)


@pytest.fixture
def ranked(installation):
    """Tenants of several ranks, two that came and went, and one that came back."""
    for number in range(4):
        installation.put(f"t{number}", f"r{number}", rank=2 * number)
    installation.claim(1, rules=BY_QUEUE)
    installation.claim(1, rules=BY_QUEUE)
    installation.put("t1", "r9", rank=9)
    (task,) = installation.claim(1, rules=BY_QUEUE)
    installation.settle(task)
    return installation


def test_nothing_is_found_where_everything_agrees(ranked, check):
    assert ranked.client.keys(ranked.key("rank:*"))
    assert check().findings == ()


def test_nothing_is_found_where_no_claim_has_looked_at_all_yet(installation, client, check):
    for number in range(100):
        installation.put(f"t{number}", f"r{number}", rank=number % 3)
    installation.claim(1, rules=BY_QUEUE)
    assert client.exists(installation.key("ages:celery"))
    assert check().findings == ()


def test_nothing_is_found_where_all_were_taken(ranked, client, check):
    ranked.run(calls.PURGE, ["celery"])
    assert not client.keys(ranked.key("rank*"))
    assert check().findings == ()


@pytest.mark.parametrize(
    ("command", "key", "words", "of"),
    [
        ("ZREM", "ranked:celery", ["tenant:t1"], "tenant:t1"),
        ("ZADD", "ranked:celery", [9, "tenant:t1"], "tenant:t1"),
        ("ZADD", "ranked:celery", [9, "tenant:idle"], "tenant:idle"),
        ("ZREM", "rank:2 celery", ["tenant:t1"], "tenant:t1"),
        ("ZADD", "rank:2 celery", [77, "tenant:t1"], "tenant:t1"),
        ("ZADD", "rank:8 celery", [1, "tenant:t1"], "tenant:t1"),
        ("ZADD", "rank:8 celery", [1, "tenant:idle"], "tenant:idle"),
    ],
)
def test_what_is_planted_is_found_and_repaired(ranked, client, check, command, key, words, of):
    client.execute_command(command, ranked.key(key), *words)
    assert named(check()) == {("rank_index", "ranked:celery", of)}
    assert all(each.repaired for each in check(repair=True).findings)
    assert check().findings == ()


def test_an_index_that_was_deleted_is_made_anew(ranked, client, check):
    client.delete(ranked.key("rank:2 celery"))
    assert named(check()) == {("rank_index", "ranked:celery", "tenant:t1")}
    check(repair=True)
    assert client.zrange(ranked.key("rank:2 celery"), 0, -1) == ["tenant:t1"]


@pytest.fixture
def aged(installation):
    """Tasks whose waiting time counts, and one that a claim has raised."""
    installation.put("t0", "long", rank=3)
    raised = installation.key("rank:9 celery")
    while installation.client.zscore(raised, "tenant:t0") is None:
        installation.claim(0, rules=AGED)
    installation.put("t1", "new", rank=3)
    installation.put("t2", "urgent", rank=9)
    return installation


def test_nothing_is_found_where_waiting_time_counts(aged, client, check):
    assert {"tenant:t0", "tenant:t2"} <= set(client.zrange(aged.key("rank:9 celery"), 0, -1))
    assert check().findings == ()


def test_a_lost_age_is_found_and_made_anew(aged, client, check):
    client.zrem(aged.key("ages:celery"), "3 tenant:t0", "3 tenant:t1")
    # A task that is raised goes early without it.
    assert named(check()) == {("age_lost", "ages:celery", "3 tenant:t1")}
    assert all(each.repaired for each in check(repair=True).findings)
    assert check().findings == ()
