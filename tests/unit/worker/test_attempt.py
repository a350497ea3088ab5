"""One attempt: its body begins once, and its slot is released once."""

from __future__ import annotations

import pytest

from celery_fairness.limiter.types import Lease, SlotRequest
from celery_fairness.scheduler.types import Verdict
from celery_fairness.worker.attempt import Attempt
from tests.support.answering_limiter import AnsweringLimiter

LEASE = Lease("l1", "tenant:42")


@pytest.fixture
def limiter():
    made = AnsweringLimiter()
    made.acquire(SlotRequest(LEASE, "42", "free"))
    return made


def test_a_body_begins_once_and_only_for_its_own_task(limiter):
    task, other = object(), object()
    attempt = Attempt(task, LEASE, limiter)
    assert not attempt.begin(other)
    assert attempt.begin(task)
    assert not attempt.begin(task)


def test_its_slot_is_released_once(limiter):
    attempt = Attempt(object(), LEASE, limiter)
    attempt.end()
    assert limiter.leases == {}
    # Somebody else's by now: the second end must not touch it.
    limiter.acquire(SlotRequest(LEASE, "42", "free"))
    attempt.end()
    assert limiter.leases == {"l1": LEASE}


def test_an_attempt_without_a_slot_releases_nothing(limiter):
    Attempt(object(), None, limiter).end()
    assert limiter.leases == {"l1": LEASE}


def test_a_limiter_that_is_away_does_not_fail_the_task(limiter):
    limiter.away = True
    Attempt(object(), LEASE, limiter).end()
    assert limiter.called("release_soon") == [(LEASE, Verdict.DONE)]
