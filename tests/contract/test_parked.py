"""Parked tasks: in which order they are promoted, and what is promised to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import OF_QUEUE, Limit, write_limits
from celery_fairness.config.queue_limits import CLEARED, SET
from celery_fairness.config.settings import Enforcement
from celery_fairness.config.tenants import tier_key
from celery_fairness.config.tiers import Tier
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import (
    Admitted,
    Lease,
    Parking,
    Promoted,
    PromotionEnd,
    Reason,
    Rejected,
    SlotRequest,
)
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler import calls
from tests.contract.conftest import FrozenClock, override_key, stop_key

_serials = itertools.count(1)

ONE, TWO = Limit("api", concurrency=1), Limit("api", concurrency=2)
OTHER = Limit("db", concurrency=1)


def ask(name: str, *limits: Limit, tenant: str = "", copy: Copy | None = None) -> SlotRequest:
    keys = [tier_key(tenant)] if tenant else []
    lease = Lease(f"{name}.{next(_serials)}", ",".join([*keys, *(each.key for each in limits)]))
    tier = "free" if tenant else ""
    serial = f"n{next(_serials)}"
    return SlotRequest(lease, tenant, tier, copy or Copy(name), serial, write_limits(limits))


def park(limiter: Limiter, request: SlotRequest, expires_ms: int = 0) -> None:
    """What a gate does with a task that is rejected."""
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
    return list(limiter.promote(want, enforcement).tasks)


def promoted_one(limiter: Limiter) -> tuple[SlotRequest, Promoted]:
    """Park the task ``a`` at a full limit, free the limit, and promote the task."""
    held = take(limiter, ONE)
    request = ask("a", ONE)
    park(limiter, request)
    limiter.release([held])
    (promoted,) = promote(limiter)
    return request, promoted


def end_unstarted(limiter: Limiter, promoted: Promoted) -> None:
    """What a worker does with a promoted task that was revoked."""
    limiter.release([Lease(promoted.copy.serial, "")])


def cancel(limiter: Limiter, *tags: str) -> int:
    """What a person does; return how many of them waited."""
    args = calls.cancel_args(tags, 15_000, limiter._now_text())
    return sum(calls.read_done(limiter.connection.run(calls.CANCEL, limiter.prefix, args)))


def outcome(limiter: Limiter) -> tuple[str, str]:
    """Return the tag and the state of the task whose result is written next; "" for none."""
    found = limiter.next_outcome("")
    return (found.tag, found.state) if found else ("", "")


def let_a_lease_end(limiter: Limiter, clock: FrozenClock) -> None:
    for _ in range(4):
        clock.advance(5)
        limiter.renew([])


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


def test_nothing_that_ends_between_rejection_and_parking_is_missed(limiter: Limiter) -> None:
    held = take(limiter, ONE)
    request = ask("a", ONE)
    assert isinstance(limiter.acquire(request), Rejected)
    limiter.release([held])
    assert limiter.park(request, "message of a") is Parking.PARKED
    assert names(promote(limiter)) == ["a"]


def test_a_limit_that_drops_by_then_has_its_say(limiter: Limiter) -> None:
    take(limiter, ONE)
    drops = Limit("db", concurrency=1, on_limit="drop")
    request = ask("a", ONE, drops)
    answer = limiter.acquire(request)
    assert isinstance(answer, Rejected)
    assert answer.action == "wait"
    take(limiter, drops)
    assert limiter.park(request, "message of a") is Parking.PARKED
    assert promote(limiter) == []
    assert outcome(limiter) == ("a", "dropped")


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


def test_a_newcomer_stands_behind_others_at_the_second_of_two_limits_with_one_key(
    limiter: Limiter,
) -> None:
    both = Limit("queue:emails", concurrency=9), Limit("queue:emails", of=OF_QUEUE)
    limiter.limit_queue(SET, "emails", Limit("", concurrency=1))
    held = take(limiter, *both)
    park(limiter, ask("a", *both))
    limiter.release([held])
    answer = limiter.acquire(ask("b", *both))
    assert isinstance(answer, Rejected)
    assert (answer.reason, answer.key) == (Reason.BEHIND_OTHERS, "queue:emails")


def test_a_newcomer_stands_behind_others_of_a_queue_whose_limit_is_cleared(
    limiter: Limiter, clock: FrozenClock
) -> None:
    emails = Limit("queue:emails", of=OF_QUEUE)
    limiter.limit_queue(SET, "emails", Limit("", concurrency=1))
    take(limiter, emails)
    park(limiter, ask("a", emails))
    limiter.limit_queue(CLEARED, "emails")
    answer = limiter.acquire(ask("b", emails))
    assert isinstance(answer, Rejected)
    assert (answer.reason, answer.key) == (Reason.BEHIND_OTHERS, "queue:emails")
    clock.advance(1.0)
    assert names(promote(limiter)) == ["a"]


def test_what_is_promised_is_not_taken_though_nobody_else_waits(limiter: Limiter) -> None:
    request, promoted = promoted_one(limiter)
    assert isinstance(limiter.acquire(ask("b", ONE)), Rejected)
    assert isinstance(limiter.acquire(again(request, promoted)), Admitted)


def test_who_is_not_to_wait_does_not_stand_behind_others(limiter: Limiter) -> None:
    held = take(limiter, TWO)
    take(limiter, TWO)
    park(limiter, ask("a", TWO))
    limiter.release([held])
    drops = Limit("api", concurrency=2, on_limit="drop")
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
    limiter.end_promotion(promoted, "sent")
    let_a_lease_end(limiter, clock)
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
    request, first = promoted_one(limiter)
    assert promote(limiter) == []
    let_a_lease_end(limiter, clock)
    (second,) = promote(limiter)
    assert second.copy.message == first.copy.message == "a"
    assert second.copy.serial != first.copy.serial
    # The dead one's had arrived.
    answer = limiter.acquire(again(request, first))
    assert isinstance(answer, Rejected)
    assert answer.reason is Reason.SUPERSEDED
    came = again(request, second)
    assert isinstance(limiter.acquire(came), Admitted)
    limiter.release([came.lease])
    assert promote(limiter) == []
    assert limiter.promote(1).sleep_seconds == 5.0


def test_what_a_dead_promoter_had_waits_again_in_its_place(
    limiter: Limiter, clock: FrozenClock
) -> None:
    held = take(limiter, ONE)
    park(limiter, ask("a", ONE))
    limiter.release([held])
    assert names(promote(limiter)) == ["a"]
    park(limiter, ask("b", ONE))
    assert cancel(limiter, "a") == 0
    let_a_lease_end(limiter, clock)
    assert names(promote(limiter)) == ["a"]
    let_a_lease_end(limiter, clock)
    assert cancel(limiter, "a") == 1
    assert names(promote(limiter)) == ["b"]


def test_a_task_whose_copy_has_started_is_not_promoted_again(
    limiter: Limiter, clock: FrozenClock
) -> None:
    request, first = promoted_one(limiter)
    let_a_lease_end(limiter, clock)
    # It comes to a gate, and waits here no longer.
    assert isinstance(limiter.acquire(again(request, first)), Admitted)
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
    limiter.release([api])
    assert promote(limiter) == []
    limiter.release([db])
    assert names(promote(limiter)) == ["a"]


def test_a_rate_promises_no_more_starts_than_it_has(limiter: Limiter, clock: FrozenClock) -> None:
    rate = Limit("api", rate=((2, 1_000),))
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
    spaced = Limit("api", throttle=((2, 1_000),))
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
    (promoted,) = promote(limiter)
    limiter.end_promotion(promoted, "sent")
    assert promote(limiter) == []
    end_unstarted(limiter, promoted)
    assert names(promote(limiter)) == ["b"]


@pytest.mark.parametrize("how", ["pause", "cool"])
def test_what_is_stopped_is_parked_and_comes_when_it_is_let_go_on(
    limiter: Limiter, clock: FrozenClock, stop: Callable[..., None], how: str
) -> None:
    stop(how, "api", 0.0 if how == "pause" else 9.0)
    park(limiter, ask("a", Limit("api", concurrency=1, on_limit="reschedule")))
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


def test_what_expires_ends_whatever_its_limits_say(limiter: Limiter, clock: FrozenClock) -> None:
    held = take(limiter, ONE)
    park(limiter, ask("a", ONE), clock.now_ms + 4_000)
    park(limiter, ask("b", ONE))
    clock.advance(3.999)
    assert (promote(limiter), outcome(limiter)) == ([], ("", ""))
    clock.advance(0.001)
    assert (promote(limiter), outcome(limiter)) == ([], ("a", "expired"))
    limiter.release([held])
    assert names(promote(limiter)) == ["b"]


def test_a_promoted_task_still_expires(limiter: Limiter, clock: FrozenClock) -> None:
    held = take(limiter, ONE)
    park(limiter, ask("a", ONE), clock.now_ms + 20_000)
    limiter.release([held])
    assert names(promote(limiter)) == ["a"]
    let_a_lease_end(limiter, clock)
    clock.advance(5)
    assert (promote(limiter), outcome(limiter)) == ([], ("a", "expired"))


def test_what_waits_is_cancelled_and_what_is_promoted_is_not(limiter: Limiter) -> None:
    held = take(limiter, ONE)
    for name in "abc":
        park(limiter, ask(name, ONE))
    assert cancel(limiter, "b", "nobody") == 1
    assert (promote(limiter), outcome(limiter)) == ([], ("b", "cancelled"))
    limiter.release([held])
    assert names(promote(limiter)) == ["a"]
    assert cancel(limiter, "a") == 0


@pytest.mark.parametrize("key", ["api", "tenant:42"])
def test_who_enforces_nothing_promotes_what_is_paused_too(
    limiter: Limiter, stop: Callable[..., None], key: str
) -> None:
    take(limiter, ONE)
    park(limiter, ask("a", ONE, tenant="42"))
    stop("pause", key)
    assert promote(limiter) == []
    assert names(promote(limiter, 16, Enforcement.OFF)) == ["a"]


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


def test_a_promoter_that_says_late_what_it_published_is_too_late(
    limiter: Limiter, clock: FrozenClock, stop: Callable[..., None]
) -> None:
    held = take(limiter, ONE)
    park(limiter, ask("a", ONE))
    park(limiter, ask("b", ONE))
    limiter.release([held])
    (promoted,) = promote(limiter)
    stop("pause", "api", 0.0)
    let_a_lease_end(limiter, clock)
    limiter.end_promotion(promoted, "sent")
    stop("resume", "api", 0.0)
    # Its lease has ended, and nobody can say whether the copy is on the broker. A gate starts one.
    assert names(promote(limiter)) == ["a"]


def test_a_task_that_waits_again_may_be_cancelled_though_nobody_said_that_it_was_published(
    limiter: Limiter, stop: Callable[..., None]
) -> None:
    request, promoted = promoted_one(limiter)
    stop("pause", "api", 0.0)
    park(limiter, again(request, promoted))
    assert cancel(limiter, "a") == 1


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
    take(limiter, tenant="43")
    limiter.release([held])
    assert names(promote(limiter)) == ["a"]
    assert isinstance(limiter.acquire(ask("c", tenant="42")), Rejected)


@pytest.mark.parametrize("change", ["its tier", "the table of tiers", "a resume", "an override"])
def test_a_task_that_its_tier_parked_starts_within_a_second_of_a_change_of_its_tenant(
    make_limiter: Callable[..., Limiter], clock: FrozenClock, change: str
) -> None:
    limiter = make_limiter(tier_on_limit="wait")
    take(limiter, tenant="42")
    if change == "a resume":
        limiter.publish_tenant("42", "pro", {"concurrency": None})
        stop_key(limiter, clock, "pause", "tenant:42")
    park(limiter, ask("a", tenant="42"))
    clock.advance(1)
    assert promote(limiter) == []
    if change == "its tier":
        limiter.publish_tenant("42", "pro", {"concurrency": None})
    elif change == "the table of tiers":
        limiter.publish_tiers([Tier("free", 2)], "settings")
    elif change == "a resume":
        stop_key(limiter, clock, "resume", "tenant:42")
    else:
        override_key(limiter, clock, "tenant:42", None, concurrency=2)
    clock.advance(1)
    assert names(promote(limiter)) == ["a"]


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
    assert limiter.promote(1).sleep_seconds == 5.0
    take(limiter, ONE)
    park(limiter, ask("a", ONE))
    assert limiter.promote(1).sleep_seconds == 1.0
    with pytest.raises(ValueError, match="copy: expected"):
        limiter.park(replace(ask("b", ONE), copy=None), "message")


def test_what_is_parked_again_before_its_promoter_says_so_stays(limiter: Limiter) -> None:
    held, request = take(limiter, ONE), ask("a", ONE)
    park(limiter, request)
    limiter.release([held])
    (promoted,) = promote(limiter)
    end_unstarted(limiter, promoted)
    held_by_others = take(limiter, Limit("api", concurrency=2, on_limit="drop"))
    park(limiter, again(request, promoted))
    limiter.end_promotion(promoted, "sent")
    limiter.release([held_by_others])
    assert names(promote(limiter)) == ["a"]


@pytest.mark.parametrize("how", ["unsent", "rejected"])
def test_what_could_not_be_published_comes_after_a_growing_pause_and_reserves_nothing(
    limiter: Limiter, clock: FrozenClock, how: PromotionEnd
) -> None:
    _, given = promoted_one(limiter)
    pauses = []
    for _ in range(9):
        limiter.end_promotion(given, how)
        # Another takes the slot, which nothing reserves.
        limiter.release([take(limiter, ONE)])
        looks, found = 0, promote(limiter)
        while not found:
            clock.advance(0.5)
            looks, found = looks + 1, promote(limiter)
        assert names(found) == ["a"]
        given = found[0]
        pauses.append(looks / 2)
    # From a sixteenth of a lease of 15 seconds to a whole one.
    assert pauses == [1, 2, 4, 7.5, 15, 15, 15, 15, 15]
    limiter.end_promotion(given, how)
    assert outcome(limiter) == (("a", "unpublished") if how == "rejected" else ("", ""))
    clock.advance(15)
    assert names(promote(limiter)) == ([] if how == "rejected" else ["a"])


def test_two_promotions_of_a_task_have_two_names(limiter: Limiter, clock: FrozenClock) -> None:
    request, first = promoted_one(limiter)
    # The broker has the copy, so nothing but the memory of copies is left of the task.
    limiter.end_promotion(first, "sent")
    let_a_lease_end(limiter, clock)
    held = take(limiter, ONE)
    park(limiter, again(request, first))
    limiter.release([held])
    (second,) = promote(limiter)
    assert second.copy.serial != first.copy.serial


def test_no_copy_of_a_cancelled_task_starts(limiter: Limiter, clock: FrozenClock) -> None:
    request, promoted = promoted_one(limiter)
    let_a_lease_end(limiter, clock)
    assert cancel(limiter, "a") == 1
    answer = limiter.acquire(again(request, promoted))
    assert isinstance(answer, Rejected)
    assert answer.reason is Reason.SUPERSEDED


def test_a_promotion_reserves_a_start_until_its_lease_ends_or_its_copy_starts(
    limiter: Limiter, clock: FrozenClock
) -> None:
    rate = Limit("api", rate=((1, 1_000),))
    limiter.release([take(limiter, rate)])
    first = ask("a", rate)
    park(limiter, first)
    park(limiter, ask("b", rate))
    clock.advance(1.001)
    assert names(promote(limiter)) == ["a"]
    assert promote(limiter) == []
    let_a_lease_end(limiter, clock)
    (promoted,) = promote(limiter)
    came = again(first, promoted)
    assert isinstance(limiter.acquire(came), Admitted)
    assert promote(limiter) == []
    clock.advance(1.001)
    # The first task still runs, so no end of a lease has woken the second one.
    assert names(promote(limiter)) == ["b"]


def test_a_late_end_of_a_body_leaves_its_task_parked(limiter: Limiter, clock: FrozenClock) -> None:
    request, promoted = promoted_one(limiter)
    frozen = again(request, promoted)
    assert isinstance(limiter.acquire(frozen), Admitted)
    let_a_lease_end(limiter, clock)
    held = take(limiter, ONE)
    # The broker delivers the same message to another worker.
    park(limiter, again(request, promoted))
    limiter.release([frozen.lease])
    limiter.release([held])
    assert names(promote(limiter)) == ["a"]
