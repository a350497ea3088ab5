"""The rate and the throttle of a tenant at a gate."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_fairness.config.rates import Rate
from celery_fairness.config.settings import Enforcement
from celery_fairness.config.tiers import Tier
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Admitted, Reason, Rejected
from tests.contract.conftest import FrozenClock
from tests.contract.test_parked import ONE, again, ask, names, park, promote, take

TWO = Rate(2, 10)


@pytest.fixture
def limiter(make_limiter: Callable[..., Limiter]) -> Limiter:
    """A limiter whose clock may go on by twenty seconds in a call: a third of its lease."""
    return make_limiter(lease_seconds=60)


@pytest.fixture
def rated(limiter: Limiter) -> Limiter:
    """A limiter whose tenants may start two tasks in ten seconds, and run any number at once."""
    limiter.publish_tiers([Tier("free", None, rate=TWO)], "database")
    return limiter


def fill(limiter: Limiter, tenant: str = "a") -> None:
    for _ in range(2):
        take(limiter, tenant=tenant)


def rejection(limiter: Limiter, *limits, tenant: str = "a") -> Rejected:
    answer = limiter.acquire(ask("r", *limits, tenant=tenant))
    assert isinstance(answer, Rejected)
    return answer


def test_a_rejection_by_the_rate_of_a_tier_has_the_true_time(
    rated: Limiter, clock: FrozenClock
) -> None:
    take(rated, tenant="a")
    clock.advance(4)
    take(rated, tenant="a")
    answer = rejection(rated)
    assert (answer.reason, answer.key, answer.action) == (Reason.AT_RATE_LIMIT, "", "wait")
    assert answer.retry_after_seconds == 6.001
    assert isinstance(rated.acquire(ask("b", tenant="b")), Admitted)
    clock.advance(answer.retry_after_seconds)
    take(rated, tenant="a")
    # The next start leaves the window when the second one does.
    assert rejection(rated).retry_after_seconds == 4.0


def test_a_throttle_of_a_tier_spaces_the_starts(limiter: Limiter, clock: FrozenClock) -> None:
    limiter.publish_tiers([Tier("free", None, throttle=TWO)], "database")
    take(limiter, tenant="a")
    answer = rejection(limiter)
    assert (answer.reason, answer.retry_after_seconds) == (Reason.AT_THROTTLE, 4.5)
    clock.advance(4.5)
    take(limiter, tenant="a")


def test_the_time_is_unknown_while_a_slot_is_missing_too(rated: Limiter) -> None:
    rated.publish_tiers([Tier("free", 2, rate=TWO)], "database")
    fill(rated)
    answer = rejection(rated)
    assert (answer.reason, answer.retry_after_seconds) == (Reason.AT_CONCURRENCY_LIMIT, None)


def test_the_time_is_the_latest_of_the_tier_and_the_limits(rated: Limiter) -> None:
    fill(rated)
    take(rated, ONE)
    answer = rejection(rated, ONE)
    # The lease of the limit may end at any time.
    assert (answer.reason, answer.retry_after_seconds) == (Reason.AT_RATE_LIMIT, None)


def test_the_numbers_of_the_settings_hold_until_tiers_are_published(
    make_limiter: Callable[..., Limiter],
) -> None:
    limiter = make_limiter(tiers={"free": {"concurrency": None, "rate": "2/10s"}})
    fill(limiter)
    assert rejection(limiter).reason is Reason.AT_RATE_LIMIT


@pytest.mark.parametrize("enforcement", [Enforcement.OBSERVE, Enforcement.OFF])
def test_a_gate_that_enforces_nothing_counts_the_starts(
    rated: Limiter, enforcement: Enforcement
) -> None:
    for number in range(3):
        answer = rated.acquire(ask(f"m{number}", tenant="a"), enforcement)
        assert isinstance(answer, Admitted)
    assert answer.over_limit is (enforcement is Enforcement.OBSERVE)
    assert rejection(rated).reason is Reason.AT_RATE_LIMIT


def test_a_rejected_copy_counts_no_start(rated: Limiter, clock: FrozenClock) -> None:
    fill(rated)
    for _ in range(5):
        rejection(rated)
    clock.advance(10.001)
    fill(rated)
    assert rejection(rated).retry_after_seconds == 10.001


def test_a_parked_task_is_promoted_when_its_window_opens_and_reserves_its_start(
    rated: Limiter, clock: FrozenClock
) -> None:
    fill(rated)
    requests = [ask(name, tenant="a") for name in ("p1", "p2", "p3")]
    for request in requests:
        park(rated, request)
    assert promote(rated) == []
    clock.advance(10.001)
    promoted = promote(rated)
    assert names(promoted) == ["p1", "p2"]
    # Both starts of the window are reserved.
    assert promote(rated) == []
    for request, each in zip(requests, promoted, strict=False):
        assert isinstance(rated.acquire(again(request, each)), Admitted)
    assert promote(rated) == []


def test_a_promoter_sleeps_no_longer_than_the_window(rated: Limiter, clock: FrozenClock) -> None:
    fill(rated)
    park(rated, ask("p1", tenant="a"))
    clock.advance(9.4)
    promote(rated)
    assert rated.promote(1).sleep_seconds == 0.601
