"""The book: a lease is held until its end, and its end is kept until it was told."""

from __future__ import annotations

import os

import pytest

from celery_fairness.scheduler.lease_table import LeaseTable
from celery_fairness.scheduler.types import Claimed, Verdict
from celery_fairness.transport.session import Claimant

TASK = Claimed("tag.1", "jobs", 1, "tenant:42", 0, "{}")


@pytest.fixture
def lease_table():
    return LeaseTable()


def told(lease_table):
    return [(end.lease, end.verdict) for end in lease_table.take_ends(64)]


def test_an_ended_lease_is_held_no_longer_and_its_first_end_counts(lease_table):
    held = lease_table.hold(TASK, 7)
    assert (len(lease_table.held()), held.key) == (1, "tenant:42")
    lease_table.end(held, Verdict.HEAD)
    lease_table.end(held, Verdict.DONE)
    lease_table.note(held, Verdict.ACKED)
    assert len(lease_table.held()) == 0
    assert lease_table.get("tag.1") is None
    assert told(lease_table) == [("tag.1", Verdict.HEAD)]
    assert told(lease_table) == []


def test_an_answer_that_comes_twice_is_held_once(lease_table):
    held = lease_table.hold(TASK, 7)
    assert lease_table.hold(TASK, 7) is None
    lease_table.end(held, Verdict.DONE)
    assert lease_table.hold(TASK, 7) is None


def test_an_end_takes_the_place_of_a_note_also_of_one_that_comes_back(lease_table):
    held = lease_table.hold(TASK, 7)
    lease_table.note(held, Verdict.BEGUN)
    assert lease_table.has_ends
    assert not lease_table.frees_slots
    sent = lease_table.take_ends(64)
    lease_table.end(held, Verdict.DONE)
    lease_table.give_back(sent)
    assert lease_table.frees_slots
    assert told(lease_table) == [("tag.1", Verdict.DONE)]


@pytest.mark.parametrize("back", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_calls_that_fail_in_any_order_lose_no_end(lease_table, back):
    held = lease_table.hold(TASK, 7)
    taken = []
    for verdict in (Verdict.BEGUN, Verdict.ACKED):
        lease_table.note(held, verdict)
        taken.append(lease_table.take_ends(64))
    lease_table.end(held, Verdict.DONE)
    taken.append(lease_table.take_ends(64))
    for number in back:
        lease_table.give_back(taken[number])
    assert told(lease_table) == [("tag.1", Verdict.DONE)]


def test_every_end_is_announced(lease_table):
    heard = []
    lease_table.changed = lambda: heard.append(len(lease_table.held()))
    lease_table.end(lease_table.hold(TASK, 7), Verdict.DONE)
    assert heard == [0]


def test_what_is_dropped_is_not_told(lease_table):
    lease_table.drop(lease_table.hold(TASK, 7))
    assert (len(lease_table.held()), lease_table.has_ends) == (0, False)


def test_a_claimant_is_named_by_its_host_in_words_that_redis_takes(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "we b\udcff")
    host, process, rest = Claimant().owner.split(":")
    assert (host, process) == ("web?", str(os.getpid()))
    assert len(rest) == 12
