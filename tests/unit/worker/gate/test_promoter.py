"""The promoter: it publishes parked tasks and reports what became of each, whatever fails."""

from __future__ import annotations

import json
import logging

import pytest
from kombu.exceptions import OperationalError

from celery_fairness.config.settings import Enforcement
from celery_fairness.limiter.types import Lease, Parking, Promoted, Promotion, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.util.throttled_log import Notices
from celery_fairness.worker.gate.promoter import BATCH_SIZE, Promoter
from celery_fairness.worker.gate.resender import NotAccepted
from tests.support.answering_limiter import AnsweringLimiter
from tests.support.waiting import eventually

LIMIT = "api|C1|w"
MESSAGE = json.dumps({"headers": {"task": "shop.work", "id": "t1"}})


class Broker:
    """Takes what is published, or fails."""

    def __init__(self):
        self.has = []
        self.fails = 0
        self.rejects = {}

    def __call__(self, promoted):
        if self.fails:
            self.fails -= 1
            raise OperationalError("away")
        if promoted.copy.message in self.rejects:
            raise self.rejects[promoted.copy.message]
        self.has.append(promoted.copy.message)


@pytest.fixture
def limiter():
    return AnsweringLimiter()


@pytest.fixture
def broker():
    return Broker()


@pytest.fixture
def notices():
    return Notices(logging.getLogger("celery_fairness"))


@pytest.fixture
def promoter(limiter, broker, notices):
    made = Promoter(lambda: limiter, broker, Enforcement.ON, notices)
    yield made
    made.stop()


def parked(limiter, *names):
    """Let the next try give the limiter's parked tasks of these names."""
    tasks = tuple(Promoted(Copy(name, f"{name}.1.p"), MESSAGE) for name in names)
    limiter.promotions.append(Promotion(tasks, 0.5))


def reported(limiter):
    return [(promoted.copy.serial, how) for promoted, how in limiter.called("end_promotion")]


def test_the_limiter_says_how_long_it_sleeps(promoter, limiter):
    limiter.promotions.append(Promotion((), 7.0))
    assert promoter.promote(limiter) == 7.0
    assert limiter.called("promote") == [(BATCH_SIZE, Enforcement.ON)]


def test_what_the_broker_has_is_reported(promoter, limiter, broker):
    parked(limiter, "a", "b")
    assert promoter.promote(limiter) == 0.5
    assert broker.has == ["a", "b"]
    assert reported(limiter) == [("a.1.p", "sent"), ("b.1.p", "sent")]


def test_where_there_is_no_broker_all_wait_until_a_lease_has_ended(promoter, limiter, broker):
    parked(limiter, "a", "b")
    broker.fails = 1
    with pytest.raises(OperationalError, match="away"):
        promoter.promote(limiter)
    assert broker.has == reported(limiter) == []


@pytest.mark.parametrize(
    ("error", "how"), [(OSError("cut"), "unsent"), (NotAccepted("no queue"), "rejected")]
)
def test_a_task_that_cannot_be_published_is_reported_and_the_others_go_on(
    promoter, limiter, broker, caplog, error, how
):
    parked(limiter, "a", "b")
    broker.rejects["a"] = error
    assert promoter.promote(limiter) == 0.5
    assert f"parked task shop.work[t1] could not be published, it is tried again: {error!r}" in (
        caplog.text
    )
    assert broker.has == ["b"]
    assert reported(limiter) == [("a.1.p", how), ("b.1.p", "sent")]


def test_the_thread_wakes_when_a_slot_frees_and_when_its_worker_parks(
    make_redis_limiter, broker, notices
):
    limiter, lease = make_redis_limiter(), Lease("held", "api")
    promoter = Promoter(lambda: limiter, broker, Enforcement.ON, notices)
    promoter.start()
    promoter.start()
    try:
        limiter.acquire(SlotRequest(lease, "", "", limits=LIMIT))
        request = SlotRequest(Lease("a", "api"), "", "", Copy("a"), "na", LIMIT)
        assert limiter.park(request, MESSAGE) is Parking.PARKED
        promoter.ring()
        limiter.release([lease])
        eventually(lambda: _equal(broker.has, ["a"]))
    finally:
        promoter.stop()


def test_the_thread_lives_through_a_redis_that_is_away(promoter, limiter, broker, caplog):
    limiter.away = True
    promoter.start()
    eventually(lambda: _in("parked tasks could not be promoted", caplog.text))
    parked(limiter, "a")
    limiter.away = False
    eventually(lambda: _equal(broker.has, ["a"]))


def _equal(found, expected):
    assert found == expected


def _in(part, text):
    assert part in text
