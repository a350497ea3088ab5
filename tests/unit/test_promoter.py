"""The promoter: what is parked comes back once the broker has it, whatever fails meanwhile."""

from __future__ import annotations

import json
import logging

import pytest
from kombu.exceptions import OperationalError

from celery_fairness.config.settings import Enforcement
from celery_fairness.limiter.types import Lease, Parking, Promoted, Promotion, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.testing.fake_limiter import FakeLimiter
from celery_fairness.util.throttled_log import Notices
from celery_fairness.worker.promoter import TRIES_AT_MOST, Promoter
from celery_fairness.worker.resend import NotAccepted
from tests.support.waiting import eventually

LIMIT = "api|1|||w"
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
def limiter():
    return FakeLimiter()


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


def parked(limiter, *tries):
    """Let each try give the limiter's parked tasks of these names."""
    for names in tries:
        tasks = tuple(Promoted(Copy(name, f"n{name}"), MESSAGE) for name in names)
        limiter.promotions.append(Promotion(tasks, 1.0))


def test_nothing_parked_is_a_long_sleep(promoter, limiter):
    assert promoter.promote(limiter) is None


def test_what_the_broker_has_is_forgotten(promoter, limiter, broker):
    parked(limiter, ["a", "b"])
    assert promoter.promote(limiter) == 1.0
    assert broker.has == ["a", "b"]
    assert limiter.called("unpark") == [(["a"], "published"), (["b"], "published")]


def test_where_there_is_no_broker_all_stay_promised_until_a_lease_has_ended(
    promoter, limiter, broker
):
    parked(limiter, ["a", "b"])
    broker.fails = 1
    with pytest.raises(OperationalError, match="away"):
        promoter.promote(limiter)
    assert broker.has == []
    assert limiter.called("unpark") == limiter.called("put_off") == []


def test_a_task_that_cannot_be_published_is_put_off_and_the_others_go_on(
    promoter, limiter, broker, caplog
):
    parked(limiter, ["a", "b"])
    broker.rejects["a"] = OSError("cut")
    assert promoter.promote(limiter) == 1.0
    assert "parked task shop.work[t1] could not be published" in caplog.text
    assert broker.has == ["b"]
    assert limiter.called("put_off") == [("a",)]
    assert limiter.called("unpark") == [(["b"], "published")]


def test_a_task_that_came_to_a_gate_by_an_earlier_try_is_left_alone(
    promoter, limiter, broker, caplog, monkeypatch
):
    parked(limiter, ["a"])
    broker.rejects["a"] = NotAccepted("no queue")
    monkeypatch.setattr(limiter, "put_off", lambda _: 0)
    promoter.promote(limiter)
    assert (caplog.text, broker.failed, limiter.called("unpark")) == ("", [], [])


@pytest.mark.parametrize("error", [NotAccepted("no queue"), OSError("cut")])
def test_only_what_the_broker_does_not_take_fails_after_some_tries(
    promoter, limiter, broker, error
):
    parked(limiter, *[["a"]] * TRIES_AT_MOST)
    broker.rejects["a"] = error
    for _ in range(TRIES_AT_MOST - 1):
        promoter.promote(limiter)
    assert broker.failed == limiter.called("unpark") == []
    promoter.promote(limiter)
    fails = isinstance(error, NotAccepted)
    assert broker.failed == ([("a", error)] if fails else [])
    assert limiter.called("unpark") == ([(["a"], "failed")] if fails else [])


def test_the_thread_wakes_when_a_slot_frees_and_when_its_worker_parks(
    make_redis_limiter, broker, notices
):
    limiter, lease = make_redis_limiter(), Lease("held", "api")
    promoter = Promoter(lambda: limiter, broker, broker.fail, Enforcement.ON, 5.0, notices)
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
    parked(limiter, ["a"])
    limiter.away = False
    eventually(lambda: _equal(broker.has, ["a"]))


def _equal(found, expected):
    assert found == expected


def _in(part, text):
    assert part in text
