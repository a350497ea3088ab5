"""`local_limit` at the gate: so many of a queue, or of one of its partitions, run in one worker."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.queue_limits import CLEARED, DECLARED, SET
from celery_fairness.config.settings import Enforcement
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Admitted, Lease, Parking, Reason, Rejected, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.message.partition import queue_limits_text
from tests.contract.conftest import FrozenClock
from tests.support.jitter import Jittered

_ids = itertools.count(1)

WHOLE = queue_limits_text("emails", None)
#: Two customers of one queue.
ONE, TWO = (queue_limits_text("emails", f"queue:emails:{number}") for number in (1, 2))


def ask(worker: str, words: str = WHOLE, tenant: str = "") -> SlotRequest:
    keys = [f"tenant:{tenant}"] if tenant else []
    keys += [word.partition("|")[0] for word in words.split(",")]
    number = next(_ids)
    id_ = f"{worker}@{number}" if worker else str(number)
    lease = Lease(id_, ",".join(dict.fromkeys(keys)))
    return SlotRequest(lease, tenant, "free", Copy(f"m{number}"), f"n{number}", words)


def starts(limiter: Limiter, worker: str, words: str = WHOLE, times: int = 5) -> list[Lease]:
    answers = [limiter.acquire(ask(worker, words)) for _ in range(times)]
    return [each.lease for each in answers if isinstance(each, Admitted)]


def rejected(limiter: Limiter, worker: str, words: str = WHOLE, tenant: str = "") -> Rejected:
    answer = limiter.acquire(ask(worker, words, tenant))
    assert isinstance(answer, Rejected)
    return answer


def waits(limiter: Limiter, worker: str, times: int) -> list[float]:
    """Return how long tasks wait that are put back; each equals the wait without its jitter."""
    answers = [rejected(limiter, worker).retry_after_seconds for _ in range(times)]
    return [Jittered(each) for each in answers if each is not None]


def limit(limiter: Limiter, local: int | None, most: int | None = None, **said: str) -> None:
    limiter.limit_queue(SET, "emails", Limit("", concurrency=most, local_limit=local, **said))


def test_rlr005_so_many_run_in_one_worker_and_two_workers_run_more(limiter: Limiter) -> None:
    limit(limiter, 2)
    leases = starts(limiter, "w1")
    assert len(leases) == 2
    assert len(starts(limiter, "w2")) == 2
    limiter.release(leases[1:])
    limiter.release(leases[1:])
    assert len(starts(limiter, "w1")) == 1
    assert starts(limiter, "w2") == []


@pytest.mark.parametrize("on_limit", ["wait", "drop", "reschedule"])
def test_a_task_that_its_worker_rejects_goes_back_whatever_the_queue_says(
    limiter: Limiter, on_limit: str
) -> None:
    limit(limiter, 1, on_limit=on_limit)
    assert len(starts(limiter, "w1", times=1)) == 1
    answer = rejected(limiter, "w1")
    assert answer.reason is Reason.AT_LOCAL_LIMIT
    assert (answer.key, answer.action) == ("queue:emails", "reschedule")
    assert answer.retry_after_seconds is not None
    assert Jittered(answer.retry_after_seconds) == 1.0
    counts = limiter.counts()
    assert (counts["limited"], counts["rescheduled"], counts.get("dropped", 0)) == (1, 1, 0)


def test_what_a_worker_puts_back_comes_as_many_a_second_as_it_may_run(
    make_limiter: Callable[..., Limiter], clock: FrozenClock
) -> None:
    limiter = make_limiter(snooze_seconds=2)
    limit(limiter, 2)
    for worker in ("w1", "w2"):
        starts(limiter, worker, times=2)
        assert waits(limiter, worker, 5) == [1.0, 1.5, 2.0, 2.0, 2.0]
    clock.advance(5)
    assert waits(limiter, "w1", 1) == [1.0]
    limit(limiter, 1)
    assert waits(limiter, "w2", 3) == [1.0, 2.0, 2.0]


def test_the_smaller_of_both_limits_holds_and_the_global_one_parks(limiter: Limiter) -> None:
    limit(limiter, 3, 2)
    assert len(starts(limiter, "w1")) == 2
    answer = rejected(limiter, "w1")
    assert (answer.reason, answer.action) == (Reason.AT_CONCURRENCY_LIMIT, "wait")


def test_a_promoted_task_that_its_worker_rejects_gives_its_slots_back(
    limiter: Limiter,
) -> None:
    limit(limiter, 1, 2)
    assert len(starts(limiter, "w1", times=1)) == 1
    other = starts(limiter, "w2", times=1)
    request = ask("w1")
    assert isinstance(limiter.acquire(request), Rejected)
    assert limiter.park(request, "m") is Parking.PARKED
    limiter.release(other)
    (promoted,) = limiter.promote(9).tasks
    limiter.end_promotion(promoted, "sent")
    # Nobody else has its slots, until its worker rejects it.
    assert starts(limiter, "w2") == []
    lease = Lease("w1@again", request.lease.key)
    again = replace(request, lease=lease, copy=promoted.copy, next_serial="later")
    answer = limiter.acquire(again)
    assert isinstance(answer, Rejected)
    assert (answer.reason, answer.action) == (Reason.AT_LOCAL_LIMIT, "reschedule")
    assert len(starts(limiter, "w2")) == 1
    elsewhere = Lease("w3@again", request.lease.key)
    last = replace(again, lease=elsewhere, copy=replace(promoted.copy, serial="later"))
    assert isinstance(limiter.acquire(last), Rejected)
    limit(limiter, 1, 3)
    assert isinstance(limiter.acquire(last), Admitted)


def test_a_promoted_task_that_its_worker_rejects_lets_another_one_go(limiter: Limiter) -> None:
    limit(limiter, 1, 2)
    assert len(starts(limiter, "w1", times=1)) == 1
    other = starts(limiter, "w2", times=1)
    first, second = ask("w1"), ask("w1")
    for request in (first, second):
        assert isinstance(limiter.acquire(request), Rejected)
        assert limiter.park(request, "m") is Parking.PARKED
    limiter.release(other)
    (promoted,) = limiter.promote(9).tasks
    assert limiter.promote(9).tasks == ()
    again = replace(first, lease=Lease("w1@again", first.lease.key), copy=promoted.copy)
    assert isinstance(limiter.acquire(again), Rejected)
    (promoted,) = limiter.promote(9).tasks
    assert second.copy is not None
    assert promoted.copy.message == second.copy.message


def test_what_is_rejected_takes_no_slot(limiter: Limiter) -> None:
    limit(limiter, 1)
    starts(limiter, "w1", times=1)
    rejected(limiter, "w1", f"api|C1|w,{WHOLE}", tenant="42")
    for key in ("api", "tenant:42"):
        assert limiter.leases_of(key).held == 0
    assert isinstance(limiter.acquire(ask("w2", f"api|C1|w,{WHOLE}", tenant="42")), Admitted)
    # What another limit rejects counts for no worker either.
    rejected(limiter, "w3", f"api|C1|w,{WHOLE}")
    assert len(starts(limiter, "w3")) == 1


def test_where_the_tier_rejects_too_the_tier_says_what_becomes_of_the_task(
    limiter: Limiter,
) -> None:
    limit(limiter, 1)
    assert isinstance(limiter.acquire(ask("w1", tenant="42")), Admitted)
    answer = rejected(limiter, "w1", tenant="42")
    assert (answer.reason, answer.key) == (Reason.AT_CONCURRENCY_LIMIT, "")
    assert limiter.counts() == {"rejected:free": 1}


def test_each_partition_counts_apart_in_each_worker(limiter: Limiter) -> None:
    limiter.limit_queue(DECLARED, "emails", None, Limit("", local_limit=1))
    assert len(starts(limiter, "w1", ONE)) == 1
    assert len(starts(limiter, "w1", TWO)) == 1
    assert len(starts(limiter, "w2", ONE)) == 1
    assert rejected(limiter, "w1", ONE).key == "queue:emails:1"


def test_new_numbers_hold_at_the_next_question_for_what_runs_already(limiter: Limiter) -> None:
    limit(limiter, None)
    leases = starts(limiter, "w1", times=3)
    limit(limiter, 3)
    assert starts(limiter, "w1") == []
    limit(limiter, 4)
    assert len(starts(limiter, "w1")) == 1
    limit(limiter, 2)
    limiter.release(leases[:2])
    assert starts(limiter, "w1") == []
    limiter.release(leases[2:])
    assert len(starts(limiter, "w1")) == 1
    limit(limiter, 0)
    assert starts(limiter, "w2") == []
    limiter.limit_queue(CLEARED, "emails")
    assert len(starts(limiter, "w1")) == 5
    # Nothing of what began while there was no number is overlooked.
    limit(limiter, 5)
    assert starts(limiter, "w1") == []


def test_a_dead_worker_s_leases_end_by_themselves(limiter: Limiter, clock: FrozenClock) -> None:
    limit(limiter, 2)
    kept, _ = starts(limiter, "w1", times=2)
    for _ in range(3):
        clock.advance(5)
        limiter.renew([kept])
    assert len(starts(limiter, "w1")) == 1
    clock.advance(4)
    limiter.renew([kept])
    assert starts(limiter, "w1") == []


def test_what_is_entered_again_counts_again(limiter: Limiter) -> None:
    limit(limiter, 2)
    epoch = limiter.renew([]).epoch
    # Others have asked since the memory was lost.
    assert len(starts(limiter, "w1", times=1)) == 1
    lost = ask("w1").lease
    assert limiter.renew([lost], epoch - 1).entered == (lost,)
    assert starts(limiter, "w1") == []
    limiter.release([lost])
    assert len(starts(limiter, "w1")) == 1


def test_the_same_lease_again_is_admitted_and_counts_once(limiter: Limiter) -> None:
    limit(limiter, 2)
    request = ask("w1")
    for _ in range(3):
        assert isinstance(limiter.acquire(request), Admitted)
    assert len(starts(limiter, "w1")) == 1


def test_a_policy_with_the_queue_s_key_does_not_hide_it(limiter: Limiter) -> None:
    limit(limiter, 1)
    assert len(starts(limiter, "w1", f"queue:emails|C9|w,{WHOLE}")) == 1


def test_a_lease_that_names_no_worker_has_no_limit_of_one(limiter: Limiter) -> None:
    limit(limiter, 1)
    assert len(starts(limiter, "")) == 5
    assert len(starts(limiter, "w1")) == 1


def test_who_enforces_nothing_rejects_nothing_and_counts_what_runs(limiter: Limiter) -> None:
    limit(limiter, 1)
    answers = [limiter.acquire(ask("w1"), Enforcement.OBSERVE) for _ in range(2)]
    assert [getattr(each, "over_limit", None) for each in answers] == [False, True]
    assert limiter.counts()["limited"] == 1
    assert isinstance(limiter.acquire(ask("w1"), Enforcement.OFF), Admitted)
    assert limiter.counts()["limited"] == 1
    assert starts(limiter, "w1") == []
