"""Parked tasks: in which order they are promoted, and what is promised to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import OF_QUEUE, Limit, write_limits
from celery_fairness.config.queue_limits import CLEARED, SET, QueueNumbers
from celery_fairness.config.settings import Enforcement
from celery_fairness.config.tenants import tier_key
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.limiter.types import (
    Admitted,
    Lease,
    Parking,
    Promoted,
    Reason,
    Rejected,
    SlotRequest,
)
from celery_fairness.message.headers import Copy
from tests.contract.conftest import FrozenClock

_serials = itertools.count(1)

ONE, TWO = Limit("api", 1), Limit("api", 2)
OTHER = Limit("db", 1)


def ask(name: str, *limits: Limit, tenant: str = "", copy: Copy | None = None) -> SlotRequest:
    keys = [tier_key(tenant)] if tenant else []
    lease = Lease(f"{name}.{next(_serials)}", ",".join([*keys, *(each.key for each in limits)]))
    tier = "free" if tenant else ""
    serial = f"n{next(_serials)}"
    return SlotRequest(lease, tenant, tier, copy or Copy(name), serial, write_limits(limits))


def park(limiter: Limiter, request: SlotRequest, expires_ms: int | None = None) -> None:
    """What a gate does with a task that is refused."""
    assert isinstance(limiter.acquire(request), Rejected)
    assert request.copy is not None
    message = f"message of {request.copy.message}"
    assert limiter.park(request, message, expires_ms) is Parking.PARKED


def take(limiter: Limiter, *limits: Limit, tenant: str = "") -> Lease:
    request = ask(f"held{next(_serials)}", *limits, tenant=tenant)
    assert isinstance(limiter.acquire(request), Admitted)
    return request.lease


def promote(
    limiter: Limiter, want: int = 16, enforcement: Enforcement = Enforcement.ON
) -> list[Promoted]:
    return list(limiter.promote(want, f"p{next(_serials)}x", enforcement).tasks)


def names(tasks: list[Promoted]) -> list[str]:
    for task in tasks:
        assert task.message == f"message of {task.copy.message}"
    return [task.copy.message for task in tasks]


def again(request: SlotRequest, promoted: Promoted) -> SlotRequest:
    """The promoted task, as it comes to a gate."""
    assert request.copy is not None
    return replace(
        ask(request.copy.message, copy=promoted.copy),
        lease=Lease(f"again.{next(_serials)}", request.lease.key),
        tenant=request.tenant,
        tier=request.tier,
        limits=request.limits,
        job=request.job,
    )


def test_s24_s27_who_was_parked_first_is_promoted_first_and_one_for_each_slot(
    limiter: Limiter,
) -> None:
    held = [take(limiter, TWO) for _ in range(2)]
    for name in ("a", "b", "c"):
        park(limiter, ask(name, TWO))
    assert promote(limiter) == []
    limiter.release([held[0]])
    assert names(promote(limiter)) == ["a"]
    assert promote(limiter) == []
    limiter.release([held[1]])
    assert names(promote(limiter)) == ["b"]


def test_nothing_that_ends_between_refusal_and_parking_is_missed(limiter: Limiter) -> None:
    held = take(limiter, ONE)
    request = ask("a", ONE)
    assert isinstance(limiter.acquire(request), Rejected)
    limiter.release([held])
    assert limiter.park(request, "message") is Parking.ASK_AGAIN
    assert isinstance(limiter.acquire(request), Admitted)


def test_a_limit_that_drops_by_then_has_its_say(limiter: Limiter) -> None:
    take(limiter, ONE)
    drops = Limit("db", 1, on_limit="drop")
    request = ask("a", ONE, drops)
    answer = limiter.acquire(request)
    assert isinstance(answer, Rejected)
    assert answer.action == "wait"
    take(limiter, drops)
    assert limiter.park(request, "message") is Parking.ASK_AGAIN
    answer = limiter.acquire(request)
    assert isinstance(answer, Rejected)
    assert (answer.action, answer.key) == ("drop", "db")


def test_a_newcomer_takes_neither_what_is_promised_nor_the_place_of_others(
    limiter: Limiter,
) -> None:
    held = take(limiter, ONE)
    first, second, third = ask("a", ONE), ask("b", ONE), ask("c", ONE)
    park(limiter, first)
    park(limiter, second)
    limiter.release([held])
    # A slot is free, and it is of those that wait.
    answer = limiter.acquire(third)
    assert isinstance(answer, Rejected)
    assert (answer.reason, answer.key, answer.action) == (Reason.BEHIND_OTHERS, "api", "wait")
    assert limiter.park(third, "message of c") is Parking.PARKED
    (promoted,) = promote(limiter)
    # It is promised, and nobody else waits for it... but the others.
    assert isinstance(limiter.acquire(ask("d", ONE)), Rejected)
    came = again(first, promoted)
    assert isinstance(limiter.acquire(came), Admitted)
    limiter.release([came.lease])
    assert names(promote(limiter)) == ["b"]


def test_a_newcomer_stands_behind_others_of_a_queue_whose_limit_is_cleared(
    limiter: Limiter, clock: FrozenClock
) -> None:
    emails = Limit("queue:emails", OF_QUEUE)
    limiter.limit_queue(SET, "emails", QueueNumbers(1))
    take(limiter, emails)
    park(limiter, ask("a", emails))
    limiter.limit_queue(CLEARED, "emails")
    answer = limiter.acquire(ask("b", emails))
    assert isinstance(answer, Rejected)
    assert (answer.reason, answer.key) == (Reason.BEHIND_OTHERS, "queue:emails")
    clock.advance(1.0)
    assert names(promote(limiter)) == ["a"]


def test_what_is_promised_is_not_taken_though_nobody_else_waits(limiter: Limiter) -> None:
    held = take(limiter, ONE)
    request = ask("a", ONE)
    park(limiter, request)
    limiter.release([held])
    (promoted,) = promote(limiter)
    assert isinstance(limiter.acquire(ask("b", ONE)), Rejected)
    assert isinstance(limiter.acquire(again(request, promoted)), Admitted)


def test_who_is_not_to_wait_does_not_stand_behind_others(limiter: Limiter) -> None:
    held = take(limiter, TWO)
    take(limiter, TWO)
    park(limiter, ask("a", TWO))
    limiter.release([held])
    drops = Limit("api", 2, on_limit="drop")
    assert isinstance(limiter.acquire(ask("b", drops)), Admitted)


def test_a_promise_ends_after_a_lease_and_a_late_one_takes_its_old_place(
    limiter: Limiter, clock: FrozenClock
) -> None:
    held = take(limiter, ONE)
    first, second = ask("a", ONE), ask("b", ONE)
    park(limiter, first)
    park(limiter, second)
    limiter.release([held])
    (promoted,) = promote(limiter)
    assert limiter.unpark(["a"]) == 1
    for _ in range(4):
        clock.advance(5)
        limiter.renew([])
    (other,) = promote(limiter)
    assert other.copy.message == "b"
    came = again(second, other)
    assert isinstance(limiter.acquire(came), Admitted)
    park(limiter, ask("c", ONE))
    late = again(first, promoted)
    park(limiter, late)
    limiter.release([came.lease])
    assert names(promote(limiter)) == ["a"]


def test_a_promoter_that_died_is_followed_by_another_and_one_copy_starts(
    limiter: Limiter, clock: FrozenClock
) -> None:
    held = take(limiter, ONE)
    request = ask("a", ONE)
    park(limiter, request)
    limiter.release([held])
    (first,) = promote(limiter)
    assert promote(limiter) == []
    for _ in range(4):
        clock.advance(5)
        limiter.renew([])
    (second,) = promote(limiter)
    assert second.copy.message == first.copy.message == "a"
    assert second.copy.serial != first.copy.serial
    # The dead one's had arrived.
    came = again(request, first)
    assert isinstance(limiter.acquire(came), Admitted)
    answer = limiter.acquire(again(request, second))
    assert isinstance(answer, Rejected)
    assert answer.reason is Reason.SUPERSEDED
    limiter.release([came.lease])
    assert limiter.promote(1, "x").sleep_seconds is None


def test_what_a_dead_promoter_had_waits_again_in_its_place(
    limiter: Limiter, clock: FrozenClock
) -> None:
    held = take(limiter, ONE)
    park(limiter, ask("a", ONE))
    limiter.release([held])
    assert names(promote(limiter)) == ["a"]
    assert limiter.unpark(["a"], "cancelled") == 0
    for _ in range(4):
        clock.advance(5)
        limiter.renew([])
    drops = Limit("api", 1, on_limit="drop")
    take(limiter, drops)
    assert promote(limiter) == []
    assert limiter.look("api")["parked"] == 1
    assert limiter.unpark(["a"], "cancelled") == 1


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_what_is_to_be_ended_is_ended_also_where_its_promoter_dies(
    limiter: Limiter, clock: FrozenClock, how: str
) -> None:
    held = take(limiter, ONE)
    park(limiter, ask("a", ONE), expires_ms=clock.now_ms + 10 if how == "expired" else None)
    if how == "cancelled":
        assert limiter.unpark(["a"], "cancelled") == 1
    clock.advance(0.01)
    assert [each.ended for each in promote(limiter)] == [True]
    limiter.release([held])
    again = []
    for _ in range(4):
        clock.advance(5)
        limiter.renew([])
        again += promote(limiter)
    assert [each.ended for each in again] == [True]


def test_a_task_whose_copy_has_started_is_not_promoted_again(
    limiter: Limiter, clock: FrozenClock
) -> None:
    held = take(limiter, ONE)
    request = ask("a", ONE)
    park(limiter, request)
    limiter.release([held])
    (first,) = promote(limiter)
    for _ in range(4):
        clock.advance(5)
        limiter.renew([])
    take(limiter, TWO)
    assert isinstance(limiter.acquire(ask("low", ONE)), Rejected)
    assert promote(limiter) == []
    # It comes to a gate that asks nothing, and waits here no longer.
    came = again(request, first)
    assert isinstance(limiter.acquire(came, Enforcement.OFF), Admitted)
    assert limiter.look("api")["parked"] == 0
    assert promote(limiter, 16, Enforcement.OFF) == []


def test_the_old_message_delivered_again_is_dropped_while_its_task_is_parked(
    limiter: Limiter,
) -> None:
    held = take(limiter, ONE)
    park(limiter, ask("a", ONE))
    answer = limiter.acquire(ask("a", ONE))
    assert isinstance(answer, Rejected)
    assert answer.reason is Reason.SUPERSEDED
    limiter.release([held])
    assert names(promote(limiter)) == ["a"]


def test_a_task_that_needs_two_limits_moves_from_one_to_the_other_with_its_age(
    limiter: Limiter,
) -> None:
    api, db = take(limiter, ONE), take(limiter, OTHER)
    park(limiter, ask("a", ONE, OTHER))
    park(limiter, ask("b", OTHER))
    assert (limiter.look("api")["parked"], limiter.look("db")["parked"]) == (1, 1)
    limiter.release([api])
    assert promote(limiter) == []
    assert (limiter.look("api")["parked"], limiter.look("db")["parked"]) == (0, 2)
    limiter.release([db])
    assert names(promote(limiter)) == ["a"]


def test_a_rate_promises_no_more_starts_than_it_has(limiter: Limiter, clock: FrozenClock) -> None:
    rate = Limit("api", rates=((2, 1_000),))
    for _ in range(2):
        limiter.release([take(limiter, rate)])
    for name in "abcde":
        park(limiter, ask(name, rate))
    assert promote(limiter) == []
    clock.advance(1.001)
    assert names(promote(limiter)) == ["a", "b"]
    assert isinstance(limiter.acquire(ask("f", rate)), Rejected)


def test_a_throttle_promises_one_start_after_the_other(
    limiter: Limiter, clock: FrozenClock
) -> None:
    spaced = Limit("api", throttle=(2, 1_000))
    limiter.release([take(limiter, spaced)])
    for name in "abc":
        park(limiter, ask(name, spaced))
    seen = []
    for _ in range(30):
        clock.advance(0.1)
        seen.append(names(promote(limiter)))
    assert [each for each in seen if each] == [["a"], ["b"], ["c"]]


def test_what_was_promised_to_a_task_that_ended_is_given_to_the_next(limiter: Limiter) -> None:
    held = take(limiter, ONE)
    request = ask("a", ONE)
    park(limiter, request)
    park(limiter, ask("b", ONE))
    limiter.release([held])
    assert names(promote(limiter)) == ["a"]
    assert limiter.unpark(["a"]) == 1
    limiter.release_reservation("a", ["api"])
    assert names(promote(limiter)) == ["b"]


@pytest.mark.parametrize("how", ["pause", "cool"])
def test_what_is_stopped_is_parked_and_comes_when_it_is_let_go_on(
    limiter: Limiter, clock: FrozenClock, stop: Callable[..., None], how: str
) -> None:
    stop(how, "api", 0.0 if how == "pause" else 9.0)
    park(limiter, ask("a", Limit("api", 1, on_limit="reschedule")))
    clock.advance(1)
    assert promote(limiter) == []
    stop("resume" if how == "pause" else "clear", "api")
    clock.advance(1)
    assert names(promote(limiter)) == ["a"]


def test_an_override_is_seen_within_a_second(
    limiter: Limiter, clock: FrozenClock, override: Callable[..., None]
) -> None:
    take(limiter, ONE)
    park(limiter, ask("a", ONE))
    override("api", None, concurrency=2)
    clock.advance(1)
    assert names(promote(limiter)) == ["a"]


def test_a_lease_that_ended_makes_room_within_a_second(
    limiter: Limiter, clock: FrozenClock
) -> None:
    take(limiter, ONE)
    park(limiter, ask("a", ONE))
    for _ in range(3):
        clock.advance(5)
        limiter.renew([])
    clock.advance(1)
    assert names(promote(limiter)) == ["a"]


def test_what_expires_is_given_to_be_ended_whatever_its_limits_say(
    limiter: Limiter, clock: FrozenClock
) -> None:
    take(limiter, ONE)
    park(limiter, ask("a", ONE), clock.now_ms + 4_000)
    park(limiter, ask("b", ONE))
    clock.advance(3.999)
    assert promote(limiter) == []
    clock.advance(0.001)
    (given,) = promote(limiter)
    assert (given.copy.message, given.ended) == ("a", True)


def test_what_is_cancelled_is_given_to_be_ended_and_a_promoted_one_is_not(
    limiter: Limiter,
) -> None:
    held = take(limiter, ONE)
    for name in "abc":
        park(limiter, ask(name, ONE))
    assert limiter.unpark(["b", "nobody"], "cancelled") == 1
    (given,) = promote(limiter)
    assert (given.copy.message, given.ended) == ("b", True)
    limiter.release([held])
    assert names(promote(limiter)) == ["a"]
    assert limiter.unpark(["a"], "cancelled") == 0


def test_off_promotes_everything_a_bounded_number_at_a_time(
    limiter: Limiter, clock: FrozenClock
) -> None:
    take(limiter, ONE)
    for name in "abcdefghij":
        park(limiter, ask(name, ONE))
    clock.advance(1)
    assert names(promote(limiter, 3, Enforcement.OFF)) == ["a", "b", "c"]
    rest = [names(promote(limiter, 16, Enforcement.OFF)) for _ in range(2)]
    assert rest == [["d", "e", "f", "g", "h", "i", "j"], []]


def test_one_call_promotes_a_bounded_number_of_one_key(
    limiter: Limiter, override: Callable[..., None], clock: FrozenClock
) -> None:
    take(limiter, ONE)
    for name in "abcdefghij":
        park(limiter, ask(name, ONE))
    override("api", None, concurrency=20)
    clock.advance(1)
    assert [len(promote(limiter, 64)) for _ in range(3)] == [8, 2, 0]


def test_one_call_looks_at_a_bounded_number_of_keys(limiter: Limiter) -> None:
    keys = [Limit(f"api{number:02}", 1) for number in range(20)]
    held = [take(limiter, key) for key in keys]
    for key in keys:
        park(limiter, ask(key.key, key))
    limiter.release(held)
    assert [len(promote(limiter, 64)) for _ in range(3)] == [16, 4, 0]


def test_a_promoter_that_says_late_what_it_published_is_believed(
    limiter: Limiter, clock: FrozenClock, stop: Callable[..., None]
) -> None:
    held = take(limiter, ONE)
    expires_ms = clock.now_ms + 60_000
    park(limiter, ask("a", ONE), expires_ms)
    park(limiter, ask("b", ONE))
    limiter.release([held])
    assert names(promote(limiter)) == ["a"]
    stop("pause", "api", 0.0)
    for _ in range(4):
        clock.advance(5)
        limiter.renew([])
    assert promote(limiter) == []
    assert limiter.look("api")["parked"] == 2
    assert limiter.unpark(["a"]) == 1
    assert limiter.look("api")["parked"] == 1
    clock.now_ms = expires_ms
    assert promote(limiter) == []


def test_a_task_that_waits_again_may_be_cancelled_though_nobody_said_that_it_was_published(
    limiter: Limiter, stop: Callable[..., None]
) -> None:
    held = take(limiter, ONE)
    request = ask("a", ONE)
    park(limiter, request)
    limiter.release([held])
    (promoted,) = promote(limiter)
    stop("pause", "api", 0.0)
    park(limiter, again(request, promoted))
    assert limiter.unpark(["a"], "cancelled") == 1


def test_a_tenant_of_a_tier_that_nobody_knows_is_parked_by_the_default_tiers_limit(
    make_limiter: Callable[..., Limiter],
) -> None:
    limiter = make_limiter(tier_on_limit="wait", tiers={"free": {"concurrency": 2}})
    strange = [replace(ask(f"t{n}", tenant="42"), tier="gold") for n in range(3)]
    for request in strange[:2]:
        assert isinstance(limiter.acquire(request), Admitted)
    park(limiter, strange[2])
    limiter.release([strange[0].lease])
    assert names(promote(limiter)) == ["t2"]


def test_a_tier_parks_where_its_setting_says_so(
    make_limiter: Callable[..., Limiter], clock: FrozenClock
) -> None:
    limiter = make_limiter(tier_on_limit="wait")
    held = take(limiter, tenant="42")
    request = ask("a", tenant="42")
    park(limiter, request)
    park(limiter, ask("b", ONE, tenant="42"))
    assert limiter.look("tenant:42")["parked"] == 2
    take(limiter, tenant="43")
    limiter.release([held])
    assert names(promote(limiter)) == ["a"]
    assert isinstance(limiter.acquire(ask("c", tenant="42")), Rejected)


def test_a_tiers_slot_that_is_promised_is_not_taken_though_nobody_else_waits(
    make_limiter: Callable[..., Limiter],
) -> None:
    limiter = make_limiter(tier_on_limit="wait")
    held = take(limiter, tenant="42")
    request = ask("a", tenant="42")
    park(limiter, request)
    limiter.release([held])
    (promoted,) = promote(limiter)
    answer = limiter.acquire(ask("b", tenant="42"))
    assert isinstance(answer, Rejected)
    assert answer.reason is Reason.AT_CONCURRENCY_LIMIT
    assert isinstance(limiter.acquire(again(request, promoted)), Admitted)


def test_a_task_that_is_parked_costs_nothing_of_what_has_no_place_here(limiter: Limiter) -> None:
    assert limiter.promote(1, "x").sleep_seconds is None
    take(limiter, ONE)
    park(limiter, ask("a", ONE))
    assert limiter.promote(1, "x").sleep_seconds == 1.0
    with pytest.raises(ValueError, match="copy: expected"):
        limiter.park(replace(ask("b", ONE), copy=None), "message")


def test_a_key_that_is_freed_comes_behind_those_that_are_due_since_longer(
    limiter: Limiter, clock: FrozenClock
) -> None:
    """Else keys that are freed all the time would keep the others from being looked at."""
    take(limiter, ONE)
    held = take(limiter, OTHER)
    park(limiter, ask("a", ONE))
    clock.advance(0.1)
    park(limiter, ask("b", OTHER))
    clock.advance(1.5)
    limiter.release([held])
    given = limiter.promote(1, "s")
    assert names(list(given.tasks)) == ["b"]
    # The other was looked at, and is closed.
    assert given.sleep_seconds == 1.0


def test_what_is_parked_again_before_its_promoter_says_so_stays(limiter: Limiter) -> None:
    held, request = take(limiter, ONE), ask("a", ONE)
    park(limiter, request)
    limiter.release([held])
    (promoted,) = promote(limiter)
    take(limiter, Limit("api"))
    park(limiter, again(request, promoted))
    assert limiter.unpark(["a"]) == 0
    assert limiter.look("api")["parked"] == 1


def test_what_could_not_be_published_comes_after_a_growing_pause_and_reserves_nothing(
    limiter: Limiter, clock: FrozenClock
) -> None:
    held = take(limiter, ONE)
    park(limiter, ask("a", ONE))
    limiter.release([held])
    assert names(promote(limiter)) == ["a"]
    pauses = []
    for tries in range(1, 7):
        assert limiter.put_off("a") == tries
        # Another takes the slot, which nothing reserves.
        limiter.release([take(limiter, ONE)])
        looks = 0
        while not (given := promote(limiter)):
            clock.advance(0.5)
            looks += 1
        assert names(given) == ["a"]
        pauses.append(looks / 2)
    # From a sixteenth of a lease of 15 seconds to a whole one.
    assert pauses == [1, 2, 4, 7.5, 15, 15]
    assert limiter.unpark(["a"], "failed") == 1
    assert limiter.unpark(["a"], "failed") == 0
    assert limiter.put_off("a") == 0
    assert limiter.promote(1, "x").sleep_seconds is None
