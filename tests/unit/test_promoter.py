"""The promoter: what is parked comes back once the broker has it, whatever fails meanwhile."""

from __future__ import annotations

import logging
import threading

import pytest

from celery_fairness.decision import Copy, Enforcement, Lease, Parking, SlotRequest
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.memory import InMemoryLimiter
from celery_fairness.notice import Notices
from celery_fairness.settings import build_settings
from celery_fairness.worker.promoter import Promoter
from tests.support.waiting import eventually

WORD = "api|1|||w"


class Broker:
    """Takes what is published, or fails."""

    def __init__(self):
        self.has = []
        self.fails = 0

    def __call__(self, promoted):
        if self.fails:
            self.fails -= 1
            raise OSError("cut")
        self.has.append(promoted.copy.message)


@pytest.fixture
def limiter(clock):
    return InMemoryLimiter(build_settings({}), clock.ms)


@pytest.fixture
def broker():
    return Broker()


@pytest.fixture
def notices():
    return Notices(logging.getLogger("celery_fairness"))


@pytest.fixture
def promoter(limiter, broker, notices):
    made = Promoter(lambda: limiter, broker, Enforcement.ON, 5.0, notices)
    yield made
    made.stop()


def park(limiter, *names):
    limiter.acquire(SlotRequest(Lease("held", "api"), "", "", limits=WORD))
    for name in names:
        request = SlotRequest(Lease(name, "api"), "", "", Copy(name), f"n{name}", WORD)
        assert limiter.park(request, name) is Parking.PARKED


def test_nothing_parked_is_a_long_sleep(promoter, limiter):
    assert promoter.promote(limiter) is None


def test_what_the_broker_has_is_forgotten(promoter, limiter, broker, clock):
    park(limiter, "a", "b")
    assert promoter.promote(limiter) == 1.0
    limiter.release([Lease("held", "api")])
    promoter.promote(limiter)
    assert broker.has == ["a"]
    assert limiter.unpark(["a"]) == 0


def test_what_the_broker_did_not_confirm_is_promoted_again_after_a_lease(
    promoter, limiter, broker, clock
):
    park(limiter, "a")
    limiter.release([Lease("held", "api")])
    broker.fails = 1
    with pytest.raises(OSError, match="cut"):
        promoter.promote(limiter)
    assert promoter.promote(limiter) is not None
    assert broker.has == []
    for _ in range(4):
        clock.advance(5)
        limiter.renew([])
    promoter.promote(limiter)
    assert broker.has == ["a"]


def test_the_thread_wakes_when_a_slot_frees_and_when_its_worker_parks(promoter, limiter, broker):
    promoter.start()
    promoter.start()
    park(limiter, "a")
    promoter.ring()
    limiter.release([Lease("held", "api")])
    eventually(lambda: _equal(broker.has, ["a"]))


def test_the_thread_lives_through_a_redis_that_is_away(limiter, broker, notices, caplog):
    away = threading.Event()
    away.set()

    class Away(InMemoryLimiter):
        def promote(self, *args):
            if away.is_set():
                raise LimiterUnavailable("redis://nowhere", "no answer")
            return limiter.promote(*args)

    promoter = Promoter(Away, broker, Enforcement.ON, 5.0, notices)
    try:
        promoter.start()
        eventually(lambda: _in("parked tasks could not be promoted", caplog.text))
        park(limiter, "a")
        limiter.release([Lease("held", "api")])
        away.clear()
        eventually(lambda: _equal(broker.has, ["a"]))
    finally:
        promoter.stop()


def _equal(found, expected):
    assert found == expected


def _in(part, text):
    assert part in text
