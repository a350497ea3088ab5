"""The promoter: what is parked comes back once the broker has it, whatever fails meanwhile."""

from __future__ import annotations

import json
import logging
import threading

import pytest
from kombu.exceptions import OperationalError

from celery_fairness.config.settings import Enforcement, build_settings
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.memory import InMemoryLimiter
from celery_fairness.limiter.types import Lease, Parking, Reason, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.util.throttled_log import Notices
from celery_fairness.worker.promoter import TRIES_AT_MOST, Promoter
from celery_fairness.worker.resend import NotTaken
from tests.support.waiting import eventually

WORD = "api|1|||w"
MESSAGE = json.dumps({"headers": {"task": "shop.work", "id": "t1"}})


class Broker:
    """Takes what is published, or fails."""

    def __init__(self):
        self.has = []
        self.failed = []
        self.fails = 0
        self.rejects = {}

    def __call__(self, promoted):
        if self.fails:
            self.fails -= 1
            raise OperationalError("away")
        if promoted.copy.message in self.rejects:
            raise self.rejects[promoted.copy.message]
        self.has.append(promoted.copy.message)

    def fail(self, promoted, error):
        self.failed.append((promoted.copy.message, error))


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
    made = Promoter(lambda: limiter, broker, broker.fail, Enforcement.ON, 5.0, notices)
    yield made
    made.stop()


def park(limiter, *names):
    limiter.acquire(SlotRequest(Lease("held", "api"), "", "", limits=WORD))
    for name in names:
        request = SlotRequest(Lease(name, "api"), "", "", Copy(name), f"n{name}", WORD)
        assert limiter.park(request, MESSAGE) is Parking.PARKED


def test_nothing_parked_is_a_long_sleep(promoter, limiter):
    assert promoter.promote(limiter) is None


def test_what_the_broker_has_is_forgotten(promoter, limiter, broker, clock):
    park(limiter, "a", "b")
    assert promoter.promote(limiter) == 1.0
    limiter.release([Lease("held", "api")])
    promoter.promote(limiter)
    assert broker.has == ["a"]
    assert limiter.unpark(["a"]) == 0


def advance(clock, limiter, seconds):
    """Move the limiter's clock, which moves a third of a lease at each call."""
    while seconds > 0:
        clock.advance(min(seconds, 5))
        limiter.renew([])
        seconds -= 5


def test_where_there_is_no_broker_all_are_promoted_again_after_a_lease(
    promoter, limiter, broker, clock
):
    park(limiter, "a")
    limiter.release([Lease("held", "api")])
    broker.fails = 1
    with pytest.raises(OperationalError, match="away"):
        promoter.promote(limiter)
    assert promoter.promote(limiter) is not None
    assert broker.has == []
    advance(clock, limiter, 20)
    promoter.promote(limiter)
    assert broker.has == ["a"]


def test_a_task_that_cannot_be_published_reserves_nothing_and_comes_again_after_a_pause(
    promoter, limiter, broker, clock, caplog
):
    park(limiter, "a", "b")
    limiter.release([Lease("held", "api")])
    broker.rejects["a"] = OSError("cut")
    promoter.promote(limiter)
    assert "parked task shop.work[t1] could not be published" in caplog.text
    advance(clock, limiter, 0.9)
    promoter.promote(limiter)
    assert broker.has == []
    advance(clock, limiter, 0.1)
    broker.rejects.clear()
    promoter.promote(limiter)
    # The first in its turn again.
    assert broker.has == ["a"]


@pytest.mark.parametrize("error", [NotTaken("no queue"), OSError("cut")])
def test_only_what_the_broker_does_not_take_fails_after_some_tries(
    promoter, limiter, broker, clock, error
):
    park(limiter, "a", "b")
    limiter.release([Lease("held", "api")])
    broker.rejects["a"] = error
    for _ in range(3 * TRIES_AT_MOST):
        promoter.promote(limiter)
        advance(clock, limiter, 5)
    assert broker.has == ["b"]
    fails = isinstance(error, NotTaken)
    assert broker.failed == ([("a", error)] if fails else [])
    assert limiter.unpark(["a"], "cancelled") == 0
    copy = limiter.acquire(SlotRequest(Lease("late", "api"), "", "", Copy("a"), "n", WORD))
    assert copy.reason is Reason.SUPERSEDED


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

    promoter = Promoter(Away, broker, broker.fail, Enforcement.ON, 5.0, notices)
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
