"""The book: a lease is held until its end, and its end is kept until it was told."""

from __future__ import annotations

import os

import pytest

from celery_fairness.scheduler.types import Claimed, Verdict
from celery_fairness.transport.book import LeaseTable
from celery_fairness.transport.session import Claimant

TASK = Claimed("tag.1", "jobs", 1, "tenant:42", 0, "{}")


@pytest.fixture
def book():
    return LeaseTable()


def told(book):
    return [(end.lease, end.verdict) for end in book.take_ends(64)]


def test_an_ended_lease_is_held_no_longer_and_its_first_end_counts(book):
    held = book.hold(TASK, 7)
    assert (len(book), held.lane) == (1, "tenant:42 0 jobs")
    book.end(held, Verdict.HEAD)
    book.end(held, Verdict.DONE)
    book.note(held, Verdict.ACKED)
    assert len(book) == 0
    assert book.get("tag.1") is None
    assert told(book) == [("tag.1", Verdict.HEAD)]
    assert told(book) == []


def test_an_answer_that_comes_twice_is_held_once(book):
    held = book.hold(TASK, 7)
    assert book.hold(TASK, 7) is None
    book.end(held, Verdict.DONE)
    assert book.hold(TASK, 7) is None


def test_an_end_takes_the_place_of_a_note_also_of_one_that_comes_back(book):
    held = book.hold(TASK, 7)
    book.note(held, Verdict.BEGUN)
    assert book.has_ends
    assert not book.frees_slots
    sent = book.take_ends(64)
    book.end(held, Verdict.DONE)
    book.give_back(sent)
    assert book.frees_slots
    assert told(book) == [("tag.1", Verdict.DONE)]


@pytest.mark.parametrize("back", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_calls_that_fail_in_any_order_lose_no_end(book, back):
    held = book.hold(TASK, 7)
    taken = []
    for verdict in (Verdict.BEGUN, Verdict.ACKED):
        book.note(held, verdict)
        taken.append(book.take_ends(64))
    book.end(held, Verdict.DONE)
    taken.append(book.take_ends(64))
    for number in back:
        book.give_back(taken[number])
    assert told(book) == [("tag.1", Verdict.DONE)]


def test_every_end_is_announced(book):
    heard = []
    book.changed = lambda: heard.append(len(book))
    book.end(book.hold(TASK, 7), Verdict.DONE)
    assert heard == [0]


def test_what_is_dropped_is_not_told(book):
    book.drop(book.hold(TASK, 7))
    assert (len(book), book.has_ends) == (0, False)


def test_a_claimant_is_named_by_its_host_in_words_that_redis_takes(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "we b\udcff")
    host, process, rest = Claimant().owner.split(":")
    assert (host, process) == ("web?", str(os.getpid()))
    assert len(rest) == 12
