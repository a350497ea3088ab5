"""When a task comes again that a gate's limit puts back (``on_limit="reschedule"``).

A row of the checklist stands in the name of the tests that hold it. For claims it is
``tests/scheduler/test_pace.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_fairness.config.limit_spec import OF_QUEUE, Limit
from celery_fairness.config.queue_limits import DECLARED, SET
from celery_fairness.config.settings import Enforcement
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Rejected, SlotRequest
from tests.contract.conftest import FrozenClock
from tests.contract.test_open_job_spec_gate import admitted, ask, rejected
from tests.support.jitter import Jittered

ONE = Limit("api", concurrency=1, on_limit="reschedule")
TWO = Limit("api", concurrency=2, on_limit="reschedule")
SNOOZE = 30.0


class Gate:
    """Tasks that ask a limiter, as seconds pass."""

    def __init__(self, limiter: Limiter, clock: FrozenClock) -> None:
        self.limiter, self.clock = limiter, clock
        self.running: list[SlotRequest] = []

    def start(self, *limits: Limit, enforcement: Enforcement = Enforcement.ON) -> SlotRequest:
        request = ask(*limits)
        admitted(self.limiter.acquire(request, enforcement))
        self.running.append(request)
        return request

    def passes(self, seconds: float) -> None:
        """The logical clock takes no longer step than a third of a lease."""
        while seconds > 0:
            self.clock.advance(min(4.0, seconds))
            self.limiter.renew([each.lease for each in self.running])
            seconds -= 4.0

    def end(self, request: SlotRequest) -> None:
        self.running.remove(request)
        assert self.limiter.release([request.lease]) == len(request.lease.keys)

    def run(self, seconds: float, *limits: Limit) -> None:
        request = self.start(*limits)
        self.passes(seconds)
        self.end(request)

    def waits(self, *limits: Limit) -> float:
        """Return how long a task waits that is put back; it equals the wait without its jitter."""
        answer = rejected(self.limiter.acquire(ask(*limits)))
        assert answer.action == "reschedule"
        assert answer.retry_after_seconds is not None
        return Jittered(answer.retry_after_seconds)


@pytest.fixture
def gate(limiter: Limiter, clock: FrozenClock) -> Gate:
    return Gate(limiter, clock)


def test_d10_the_first_comes_when_the_first_lease_is_expected_to_end(gate: Gate) -> None:
    gate.run(8.0, TWO)
    gate.start(TWO)
    gate.passes(2.0)
    gate.start(TWO)
    gate.passes(1.0)
    # The first began three seconds ago and lives for eight; then a slot is free each four.
    assert [gate.waits(TWO) for _ in range(3)] == [5.0, 9.0, 13.0]
    gate.passes(1.0)
    assert gate.waits(TWO) == 16.0


def test_d10_at_least_a_second(gate: Gate) -> None:
    gate.run(0.2, ONE)
    gate.start(ONE)
    assert [gate.waits(ONE) for _ in range(3)] == [1.0, 1.2, 1.4]


def test_d10_at_most_the_snooze(gate: Gate) -> None:
    gate.start(ONE)
    waits = [gate.waits(ONE) for _ in range(40)]
    # None has ended yet: a lease lives for a second.
    assert waits == [*map(float, range(1, 31)), *[SNOOZE] * 10]


def test_d10_at_most_the_snooze_of_the_settings(
    make_limiter: Callable[..., Limiter], clock: FrozenClock
) -> None:
    gate = Gate(make_limiter(snooze_seconds=12, snooze_jitter_seconds=3), clock)
    gate.run(100.0, ONE)
    gate.start(ONE)
    assert gate.waits(ONE) == 12.0


def test_d10_what_runs_for_longer_than_the_mean_is_expected_to_go_on(gate: Gate) -> None:
    gate.start(ONE)
    gate.passes(4.0)
    assert [gate.waits(ONE) for _ in range(2)] == [4.0, 8.0]


def test_d10_the_mean_follows_what_ran_last(gate: Gate) -> None:
    gate.run(8.0, ONE)
    gate.run(16.0, ONE)
    gate.start(ONE)
    assert gate.waits(ONE) == 9.0


def test_d10_a_slot_that_is_given_back_without_an_answer_has_ended_too(gate: Gate) -> None:
    request = gate.start(ONE)
    gate.passes(8.0)
    gate.running.clear()
    gate.limiter.release_soon(request.lease)
    gate.start(ONE)
    assert gate.waits(ONE) == 8.0


def test_d10_what_ended_by_itself_has_lived_for_its_lease_whoever_notices_when(gate: Gate) -> None:
    gate.start(ONE)
    gate.running.clear()
    gate.passes(60.0)
    gate.start(ONE)
    # Nor is it waited for any more: the first that has begun is the one that runs.
    assert gate.waits(ONE) == 15.0


def test_d10_an_end_that_is_told_twice_counts_once(gate: Gate) -> None:
    request = gate.start(ONE)
    gate.passes(8.0)
    gate.end(request)
    gate.passes(8.0)
    assert gate.limiter.release([request.lease]) == 0
    gate.start(ONE)
    assert gate.waits(ONE) == 8.0


def test_d10_an_attempt_that_asks_again_has_begun_when_it_asked_first(gate: Gate) -> None:
    gate.run(8.0, ONE)
    request = gate.start(ONE)
    gate.passes(3.0)
    admitted(gate.limiter.acquire(request))
    assert gate.waits(ONE) == 5.0


def test_d10_who_meets_the_tier_waits_its_snooze(gate: Gate) -> None:
    admitted(gate.limiter.acquire(ask(tenant="42", tier="free")))
    for _ in range(2):
        answer = rejected(gate.limiter.acquire(ask(ONE, tenant="42", tier="free")))
        assert (answer.key, answer.action, answer.retry_after_seconds) == ("", "wait", None)
    # It has taken nobody's turn at the limit.
    gate.start(ONE)
    assert gate.waits(ONE) == 1.0


def test_d10_where_nothing_is_enforced_leases_are_watched_and_nobody_takes_a_turn(
    gate: Gate,
) -> None:
    for enforcement in (Enforcement.OBSERVE, Enforcement.OFF):
        request = gate.start(ONE, enforcement=enforcement)
        gate.passes(8.0)
        gate.end(request)
    gate.start(ONE)
    assert gate.waits(ONE) == 8.0


def test_d10_those_over_a_rate_come_one_by_one_too(gate: Gate) -> None:
    rate = Limit("api", rate=((2, 10_000),), on_limit="reschedule")
    for _ in range(2):
        gate.start(rate)
    assert [gate.waits(rate) for _ in range(3)] == [10.001, 15.151, 20.301]


@pytest.mark.parametrize(
    ("limit", "jitter"),
    [
        (Limit("api", rate=((2, 10_000),), on_limit="reschedule"), 0.100),
        (Limit("api", rate=((2, 10_000), (4, 6_000)), on_limit="reschedule"), 0.060),
        (Limit("api", throttle=((2, 10_000),), on_limit="reschedule"), 0.050),
        (Limit("api", concurrency=1, throttle=((2, 10_000),), on_limit="reschedule"), 0.050),
        (Limit("api", rate=((2, 10_000),), throttle=((1, 5_000),), on_limit="reschedule"), 0.050),
        (Limit("api", concurrency=1, on_limit="reschedule"), 0.250),
        # Nobody comes later than that by chance, however long the period is.
        (Limit("api", rate=((2, 18_000_000),), on_limit="reschedule"), 0.0),
    ],
)
def test_d10_the_jitter_under_a_rate_is_a_small_part_of_its_period(
    make_limiter: Callable[..., Limiter], clock: FrozenClock, limit: Limit, jitter: float
) -> None:
    """Whoever comes later than its turn uses less of the rate."""
    found = []
    for number in range(60):
        gate = Gate(make_limiter(namespace=f"n{number}"), clock)
        while True:
            answer = gate.limiter.acquire(ask(limit))
            if isinstance(answer, Rejected):
                break
        assert answer.retry_after_seconds is not None
        found.append(answer.retry_after_seconds)
    assert round(max(found) - min(found), 3) <= jitter
    assert max(found) - min(found) >= 0.8 * jitter


def test_d10_those_over_a_rate_for_longer_than_the_snooze_come_when_it_opens(gate: Gate) -> None:
    hourly = Limit("api", rate=((1, 3_600_000),), on_limit="reschedule")
    gate.start(hourly)
    assert [gate.waits(hourly) for _ in range(2)] == [3600.001] * 2


def test_d10_of_several_that_reject_the_last_to_open_says_how_soon(gate: Gate) -> None:
    rate = Limit("mail", rate=((1, 20_000),))
    gate.start(ONE, rate)
    assert [gate.waits(ONE, rate) for _ in range(2)] == [20.001, 21.001]
    assert gate.waits(ONE) == 22.001


def test_d10_keys_do_not_know_of_each_other(gate: Gate) -> None:
    other = Limit("db", concurrency=1, on_limit="reschedule")
    gate.run(8.0, other)
    gate.start(ONE)
    gate.start(other)
    assert [gate.waits(ONE), gate.waits(other)] == [1.0, 8.0]


@pytest.mark.parametrize("key", ["queue:q", "queue:q:one"])
def test_d10_so_it_is_of_the_limit_of_a_queue_and_of_its_partitions(gate: Gate, key: str) -> None:
    of_queue = Limit(key, of=OF_QUEUE)
    numbers = Limit("", concurrency=1, on_limit="reschedule")
    is_part = key.endswith("one")
    whole, part = (None, numbers) if is_part else (numbers, None)
    gate.limiter.limit_queue(DECLARED, "q", whole, part)
    gate.run(8.0, of_queue)
    gate.start(of_queue)
    assert [gate.waits(of_queue) for _ in range(2)] == [8.0, 16.0]


def crowd(gate: Gate, limit: Limit) -> None:
    gate.start(limit)
    assert [gate.waits(limit) for _ in range(30)][-1] == SNOOZE


def test_d10_when_people_change_a_key_nobody_waits_behind_those_of_before(
    gate: Gate, override: Callable[..., None]
) -> None:
    crowd(gate, ONE)
    override("other", None, concurrency=2)
    assert gate.waits(ONE) == SNOOZE
    override("api", None, concurrency=2)
    gate.start(ONE)
    # Two slots, each for a second.
    assert [gate.waits(ONE) for _ in range(3)] == [1.0, 1.5, 2.0]


def test_d10_nor_when_what_they_said_has_ended(gate: Gate, override: Callable[..., None]) -> None:
    override("api", 2_000, concurrency=1)
    crowd(gate, TWO)
    gate.passes(2.0)
    gate.start(TWO)
    assert gate.waits(TWO) == 1.0


def test_d10_nor_when_a_pause_has_ended(gate: Gate, stop: Callable[..., None]) -> None:
    crowd(gate, ONE)
    stop("cool", "api", 1.0)
    gate.passes(1.0)
    assert gate.waits(ONE) >= 29.0
    stop("pause", "api")
    stop("resume", "api")
    assert gate.waits(ONE) == 1.0


def test_d10_nor_when_a_queue_has_other_numbers(gate: Gate) -> None:
    one, two = (Limit("", concurrency=most, on_limit="reschedule") for most in (1, 2))
    of_queue = Limit("queue:q", of=OF_QUEUE)
    gate.limiter.limit_queue(SET, "q", one)
    crowd(gate, of_queue)
    gate.limiter.limit_queue(SET, "q", two)
    gate.start(of_queue)
    assert gate.waits(of_queue) == 1.0
