"""The fake limiter grants, rejects or is away, as a test chooses, and records every call."""

from __future__ import annotations

import pytest

from celery_fairness.config.settings import Enforcement
from celery_fairness.config.tiers import Tier
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.types import (
    Admitted,
    Lease,
    Parking,
    Promoted,
    Promotion,
    Reason,
    Rejected,
    SlotRequest,
)
from celery_fairness.message.headers import Copy
from celery_fairness.testing.fake_limiter import Call, FakeLimiter

LEASE = Lease("l1", "tenant:42,api")
REQUEST = SlotRequest(LEASE, "42", "free")
REJECTION = Rejected(Reason.AT_RATE_LIMIT, 5.0, key="api")


@pytest.fixture
def limiter():
    return FakeLimiter()


def test_a_request_is_granted_until_its_lease_is_released(limiter):
    assert limiter.acquire(REQUEST) == Admitted(LEASE, "free", None, 1)
    assert limiter.leases_of("api").held == 1
    assert limiter.release([LEASE, LEASE]) == 1
    assert (limiter.leases_of("api").held, limiter.leases) == (0, {})


def test_a_rejection_is_the_answer_so_often_as_a_test_asks(limiter):
    limiter.reject(REJECTION, times=2)
    assert [limiter.acquire(REQUEST) for _ in range(2)] == [REJECTION] * 2
    assert isinstance(limiter.acquire(REQUEST), Admitted)
    limiter.reject(REJECTION)
    assert [limiter.acquire(REQUEST) for _ in range(3)] == [REJECTION] * 3
    limiter.grant()
    assert isinstance(limiter.acquire(REQUEST), Admitted)


@pytest.mark.parametrize("enforcement", [Enforcement.OBSERVE, Enforcement.OFF])
def test_without_enforcement_nothing_is_rejected(limiter, enforcement):
    limiter.reject(REJECTION)
    assert isinstance(limiter.acquire(REQUEST, enforcement), Admitted)


def test_every_call_is_recorded(limiter):
    limiter.acquire(REQUEST)
    limiter.release_soon(LEASE)
    assert limiter.calls == [
        Call("acquire", (REQUEST, Enforcement.ON)),
        Call("release_soon", (LEASE,)),
    ]
    assert limiter.requests == [REQUEST]
    assert limiter.called("release_soon") == [(LEASE,)]


def test_while_it_is_away_every_call_fails_and_is_recorded(limiter):
    limiter.away = True
    with pytest.raises(LimiterUnavailable):
        limiter.acquire(REQUEST)
    limiter.away = False
    assert limiter.requests == [REQUEST]
    assert limiter.leases == {}


def test_after_a_lost_memory_leases_are_entered_again_in_the_next_epoch(limiter):
    limiter.acquire(REQUEST)
    epoch = limiter.renew([LEASE]).epoch
    assert not limiter.announce("w", epoch)
    limiter.lose_memory()
    assert limiter.renew([LEASE]).gone == (LEASE,)
    assert limiter.announce("w", epoch)
    assert limiter.renew([LEASE], epoch).entered == (LEASE,)
    assert limiter.leases == {"l1": LEASE}


def test_parking_and_promotion_are_what_a_test_says(limiter):
    assert limiter.park(REQUEST, "{}") is Parking.PARKED
    limiter.parking = Parking.SUPERSEDED
    assert limiter.park(REQUEST, "{}", rank=9) is Parking.SUPERSEDED
    assert [args[-1] for args in limiter.called("park")] == [0, 9]
    task = Promoted(Copy("a", "a.1.p"), "{}")
    limiter.promotions = [Promotion((task,), 1.0)]
    assert limiter.promote(1) == Promotion((task,), 1.0)
    assert limiter.promote(1).tasks == ()
    limiter.end_promotion(task, "sent")
    assert limiter.called("end_promotion") == [(task, "sent")]
    assert limiter.supersede(Copy("a"), "s")


def test_what_is_published_can_be_read(limiter):
    assert limiter.publish_tiers(iter([Tier("free", 2)]), "database")
    assert not limiter.publish_tiers([], "settings", force=False)
    assert limiter.published_tiers() == ("database", {"free": Tier("free", 2)})
    limiter.publish_tenant("42", "pro", "")
    assert (limiter.published_tenant("42"), limiter.config_version()) == ("pro", 2)
    limiter.publish_tenant("42", None, "")
    assert limiter.published_tenant("42") is None
    limiter.count("opened", 3)
    assert limiter.counts() == {"opened": 3}
