"""Limits of queues on the gate path: taken with a task's other limits, by the same numbers."""

from __future__ import annotations

import itertools

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.queue_limits import CLEARED, DECLARED, SET
from celery_fairness.config.settings import Enforcement
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Admitted, Lease, Reason, Rejected, SlotRequest
from celery_fairness.message.partition import queue_limits_text
from tests.contract.conftest import FrozenClock, override_key

_ids = itertools.count(1)

WHOLE = queue_limits_text("emails", None)
#: Two customers of one queue.
ONE, TWO = (queue_limits_text("emails", f"queue:emails:{number}") for number in (1, 2))


def ask(words: str) -> SlotRequest:
    keys = [word.partition("|")[0] for word in words.split(",")]
    return SlotRequest(
        Lease(f"lease{next(_ids)}", ",".join(dict.fromkeys(keys))), "", "", limits=words
    )


def starts(limiter: Limiter, words: str, times: int = 9) -> list[Lease]:
    answers = [limiter.acquire(ask(words)) for _ in range(times)]
    return [each.lease for each in answers if isinstance(each, Admitted)]


def rejected(limiter: Limiter, words: str) -> Rejected:
    answer = limiter.acquire(ask(words))
    assert isinstance(answer, Rejected)
    return answer


def test_s30_rlr005_a_queue_s_limit_holds_for_all_its_tasks(limiter: Limiter) -> None:
    limiter.limit_queue(SET, "emails", Limit("", concurrency=2))
    leases = starts(limiter, WHOLE)
    assert len(leases) == 2
    answer = rejected(limiter, WHOLE)
    assert (answer.reason, answer.key, answer.action) == (
        Reason.AT_CONCURRENCY_LIMIT,
        "queue:emails",
        "wait",
    )
    limiter.release(leases[:1])
    assert len(starts(limiter, WHOLE)) == 1


def test_new_numbers_hold_at_the_next_question(limiter: Limiter) -> None:
    assert len(starts(limiter, WHOLE, 3)) == 3
    limiter.limit_queue(DECLARED, "emails", Limit("", concurrency=4))
    assert len(starts(limiter, WHOLE)) == 1
    limiter.limit_queue(SET, "emails", Limit("", concurrency=6))
    assert len(starts(limiter, WHOLE)) == 2
    limiter.limit_queue(CLEARED, "emails")
    assert rejected(limiter, WHOLE).key == "queue:emails"


@pytest.mark.parametrize("action", ["wait", "reschedule", "drop"])
def test_what_becomes_of_a_task_is_the_queue_s_to_say(limiter: Limiter, action: str) -> None:
    limiter.limit_queue(SET, "emails", Limit("", concurrency=1, on_limit=action))
    starts(limiter, WHOLE, 1)
    assert rejected(limiter, WHOLE).action == action


def test_a_rate_of_a_queue_is_kept(limiter: Limiter, clock: FrozenClock) -> None:
    limiter.limit_queue(SET, "emails", Limit("", rate=((3, 1_000),)))
    assert len(starts(limiter, WHOLE)) == 3
    answer = rejected(limiter, WHOLE)
    assert (answer.reason, answer.retry_after_seconds) == (Reason.AT_RATE_LIMIT, 1.001)
    clock.advance(1.001)
    assert len(starts(limiter, WHOLE)) == 3


def test_s32_the_queue_s_limit_and_the_task_s_both_hold(limiter: Limiter) -> None:
    limiter.limit_queue(SET, "emails", Limit("", concurrency=2))
    assert len(starts(limiter, f"api|C1|w,{WHOLE}")) == 1
    assert len(starts(limiter, WHOLE)) == 1
    assert rejected(limiter, f"api|C5|w,{WHOLE}").key == "queue:emails"


def test_s32_a_policy_with_the_queue_s_key_counts_a_start_once(limiter: Limiter) -> None:
    limiter.limit_queue(SET, "emails", Limit("", rate=((4, 60_000),)))
    assert len(starts(limiter, f"queue:emails|C9|w,{WHOLE}")) == 4


def test_each_partition_has_the_numbers_for_itself(limiter: Limiter) -> None:
    limiter.limit_queue(DECLARED, "emails", None, Limit("", concurrency=1))
    assert len(starts(limiter, ONE)) == 1
    assert len(starts(limiter, TWO)) == 1
    assert rejected(limiter, ONE).key == "queue:emails:1"


def test_the_whole_queue_and_each_partition_have_numbers_of_their_own(limiter: Limiter) -> None:
    limiter.limit_queue(DECLARED, "emails", Limit("", concurrency=3), Limit("", concurrency=2))
    leases = starts(limiter, ONE)
    assert len(leases) == 2
    assert len(starts(limiter, TWO)) == 1
    assert rejected(limiter, TWO).key == "queue:emails"
    limiter.release(leases)
    assert len(starts(limiter, TWO)) == 1
    assert rejected(limiter, TWO).key == "queue:emails:2"


def test_a_partition_is_overridden_by_its_key(limiter: Limiter, clock: FrozenClock) -> None:
    limiter.limit_queue(DECLARED, "emails", Limit("", concurrency=9), Limit("", concurrency=1))
    override_key(limiter, clock, "queue:emails:1", None, concurrency=2)
    assert [len(starts(limiter, each)) for each in (ONE, TWO)] == [2, 1]
    override_key(limiter, clock, "queue:emails", None, concurrency=3)
    assert rejected(limiter, TWO).key == "queue:emails:2"


def test_who_enforces_nothing_rejects_nothing(limiter: Limiter) -> None:
    limiter.limit_queue(SET, "emails", Limit("", concurrency=1))
    for _ in range(3):
        assert isinstance(limiter.acquire(ask(WHOLE), Enforcement.OBSERVE), Admitted)
    assert len(limiter.queue_rows()) == 1
