"""Numbers of the Open Job Spec's rate limiting on the gate path: both windows, none, an override's.

Tests are named by the rows that they hold, as in ``test_open_job_spec_gate``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from celery_fairness import RateLimitPolicy
from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Admitted, Lease, Reason, SlotRequest
from tests.contract.conftest import FrozenClock
from tests.contract.test_open_job_spec_gate import TWO, admitted, ask, held, rejected, starts
from tests.support.limits import changed

#: More than any limit here lets start.
MANY = 9
FULL, RATE, THROTTLE = Reason.AT_CONCURRENCY_LIMIT, Reason.AT_RATE_LIMIT, Reason.AT_THROTTLE

Override = Callable[..., None]


def passes(limiter: Limiter, clock: FrozenClock, seconds: float) -> None:
    """The logical clock takes no longer step than a third of a lease."""
    left_ms = round(seconds * 1000)
    while left_ms > 0:
        step_ms = min(4_000, left_ms)
        clock.advance(step_ms / 1000)
        limiter.renew([])
        left_ms -= step_ms


def start_many(limiter: Limiter, limit: Limit) -> int:
    """Ask for more tasks at once than may start; return how many did."""
    return sum(isinstance(limiter.acquire(ask(limit)), Admitted) for _ in range(MANY))


# -- 6.2: concurrency that is not said ------------------------------------------------------------


@pytest.mark.parametrize("said", [{}, {"concurrency": None}])
def test_s18_a_concurrency_that_is_absent_or_null_is_unlimited(
    limiter: Limiter, said: dict[str, Any]
) -> None:
    policy = RateLimitPolicy.from_ojs({"key": "api", **said})
    hourly = RateLimitPolicy.from_ojs({"key": "api", "rate": {"limit": 20, "period": "PT1H"}})
    words = [write_limits((each.limit(),)) for each in (policy, hourly)]
    for number in range(30):
        admitted(limiter.acquire(SlotRequest(Lease(f"t{number}", "api"), "", "", limits=words[0])))
    # None is rejected, and each is counted for those who have a number.
    assert held(limiter, "api") == 30
    assert limiter.counts() == {}
    assert rejected(limiter.acquire(ask(Limit("api", concurrency=30)))).reason is FULL
    # Without a number for those that run, a rate is as it says.
    asked = [SlotRequest(Lease(f"r{n}", "api"), "", "", limits=words[1]) for n in range(21)]
    for request in asked[:20]:
        admitted(limiter.acquire(request))
    assert rejected(limiter.acquire(asked[20])).reason is RATE


# -- 6.2: rate and throttle together --------------------------------------------------------------


def test_s22_where_the_throttle_is_open_a_rate_that_is_shut_rejects(
    limiter: Limiter, clock: FrozenClock
) -> None:
    both = Limit("api", rate=((2, 60_000),), throttle=((1, 1_000),))
    admitted(limiter.acquire(ask(both)))
    passes(limiter, clock, 1.0)
    admitted(limiter.acquire(ask(both)))
    passes(limiter, clock, 9.0)
    answer = rejected(limiter.acquire(ask(both)))
    assert (answer.reason, answer.retry_after_seconds) == (RATE, 50.001)
    passes(limiter, clock, 50.0)
    assert rejected(limiter.acquire(ask(both))).reason is RATE
    passes(limiter, clock, 0.001)
    admitted(limiter.acquire(ask(both)))


def test_s22_where_the_rate_is_open_a_throttle_that_is_shut_rejects(
    limiter: Limiter, clock: FrozenClock
) -> None:
    both = Limit("api", rate=((3, 60_000),), throttle=((1, 5_000),))
    for _ in range(3):
        admitted(limiter.acquire(ask(both)))
        answer = rejected(limiter.acquire(ask(both)))
        # Of two that are shut the rate is named, and that is the third time.
        assert answer.reason is (THROTTLE if held(limiter, "api") < 3 else RATE)
        passes(limiter, clock, 5.0)


# -- 6.2: on_limit=reschedule ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "before", "opens"),
    [
        (Limit("api", rate=((3, 10_000),)), (0.0, 1.0, 1.0), 8.001),
        # Longer than a snooze is.
        (Limit("api", rate=((1, 40_000),)), (0.0,), 40.001),
        # A throttle makes up for a tenth of its interval, and the first start counts as late.
        (Limit("api", throttle=((1, 8_000),)), (0.0,), 7.2),
        (Limit("api", rate=((1, 9_000),), throttle=((1, 8_000),)), (0.0,), 9.001),
        (Limit("api", rate=((2, 5_000),), throttle=((1, 8_000),)), (0.0,), 7.2),
    ],
)
def test_s25_a_task_that_is_put_back_comes_when_the_window_opens(
    limiter: Limiter,
    clock: FrozenClock,
    limit: Limit,
    before: tuple[float, ...],
    opens: float,
) -> None:
    for seconds in before:
        passes(limiter, clock, seconds)
        admitted(limiter.acquire(ask(limit)))
    answer = rejected(limiter.acquire(ask(changed(limit, on_limit="reschedule"))))
    comes = answer.retry_after_seconds
    assert (answer.action, answer.key) == ("reschedule", "api")
    assert comes is not None
    longest_ms = max(
        period_ms for _, period_ms in (*(limit["rate"] or ()), *(limit["throttle"] or ((1, 0),)))
    )
    # In whole ms: 8.001 + 0.1 is less than 8.101 as a float.
    assert 0 <= round(1000 * (comes - opens)) <= longest_ms / 100
    # And that is when it opens: a moment before it is shut, and then nothing is in its way.
    passes(limiter, clock, opens - 0.001)
    rejected(limiter.acquire(ask(limit)))
    passes(limiter, clock, comes - opens + 0.001)
    admitted(limiter.acquire(ask(limit)))


# -- 10.2: overrides ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "numbers", "started", "reason"),
    [
        (Limit("api", concurrency=2, rate=((4, 60_000),)), {}, 2, FULL),
        (Limit("api", concurrency=2, rate=((4, 60_000),)), {"concurrency": 1}, 1, FULL),
        (Limit("api", concurrency=2, rate=((4, 60_000),)), {"concurrency": 3}, 3, FULL),
        (Limit("api", concurrency=2, rate=((4, 60_000),)), {"concurrency": 5}, 4, RATE),
        (Limit("api", concurrency=2, rate=((4, 60_000),)), {"concurrency": None}, 4, RATE),
        (Limit("api", concurrency=2, rate=((4, 60_000),)), {"rate": ((1, 60_000),)}, 1, RATE),
        (Limit("api", concurrency=2, rate=((4, 60_000),)), {"rate": ((5, 60_000),)}, 2, FULL),
        (Limit("api", concurrency=2, rate=((1, 60_000),)), {"rate": None}, 2, FULL),
        (
            Limit("api", concurrency=2, rate=((4, 60_000),)),
            {"throttle": ((1, 60_000),)},
            1,
            THROTTLE,
        ),
        (Limit("api", concurrency=9, rate=((4, 60_000),)), {"rate": ((6, 60_000),)}, 6, RATE),
        (Limit("api", concurrency=2), {"concurrency": None, "rate": ((3, 60_000),)}, 3, RATE),
        (
            Limit("api", concurrency=2, rate=((1, 60_000),)),
            {"concurrency": None, "rate": None},
            MANY,
            None,
        ),
        (Limit("api", concurrency=2, throttle=((1, 60_000),)), {"throttle": None}, 2, FULL),
        (Limit("api", throttle=((1, 60_000),)), {"concurrency": 3}, 1, THROTTLE),
        (Limit("api", throttle=((1, 60_000),)), {"concurrency": 3, "throttle": None}, 3, FULL),
    ],
)
def test_s44_rlr004_d04_an_override_says_single_numbers_and_the_others_are_as_before(
    limiter: Limiter,
    override: Override,
    limit: Limit,
    numbers: Mapping[str, Any],
    started: int,
    reason: Reason | None,
) -> None:
    if numbers:
        override("api", None, **numbers)
    assert start_many(limiter, limit) == started
    if reason is not None:
        assert rejected(limiter.acquire(ask(limit))).reason is reason
    # Nobody else's.
    assert start_many(limiter, changed(limit, key="db", rate=None, throttle=None)) == min(
        MANY, limit["concurrency"] or MANY
    )


def test_s44_rlr004_d04_it_lowers_and_raises_what_runs_already_is_checked_by(
    limiter: Limiter, override: Override
) -> None:
    leases = [admitted(limiter.acquire(ask(TWO))).lease for _ in range(2)]
    override("api", None, concurrency=1)
    limiter.release(leases[:1])
    rejected(limiter.acquire(ask(TWO)))
    assert held(limiter, "api") == 1, "what runs above it runs on"
    override("api", None, concurrency=4)
    assert start_many(limiter, TWO) == 3
    override("api", None)
    rejected(limiter.acquire(ask(TWO)))
    limiter.release(leases[1:])
    # Three run, and the task's own number is two.
    rejected(limiter.acquire(ask(TWO)))


def test_s44_rlr004_no_window_has_more_starts_than_the_override_s_rate_and_all_of_it_is_used(
    limiter: Limiter, override: Override, clock: FrozenClock
) -> None:
    override("api", None, rate=((2, 1_000),))
    seen = starts(limiter, clock, Limit("api", concurrency=5, rate=((9, 1_000),)), 4_000)
    assert all(later - first >= 1_000 for first, later in zip(seen, seen[2:], strict=False))
    assert len(seen) >= 7


def test_s44_rlr004_starts_are_spaced_by_the_override_s_throttle(
    limiter: Limiter, override: Override, clock: FrozenClock
) -> None:
    override("api", None, throttle=((4, 1_000),))
    seen = starts(limiter, clock, Limit("api", throttle=((1, 60_000),)), 3_000)
    assert min(later - first for first, later in itertools.pairwise(seen)) >= 0.9 * 250
    assert len(seen) >= 10


def test_s44_rlr004_where_an_override_s_window_ends_the_task_s_own_holds(
    limiter: Limiter, override: Override, clock: FrozenClock
) -> None:
    once, twice = Limit("api", rate=((1, 60_000),)), Limit("api", rate=((2, 60_000),))
    override("api", 8_000, rate=((3, 60_000),))
    assert start_many(limiter, once) == 3
    passes(limiter, clock, 8.0)
    answer = rejected(limiter.acquire(ask(twice)))
    # The starts of an override are the key's.
    assert (answer.reason, answer.retry_after_seconds) == (RATE, 52.001)
