"""The rate-limiting extension of the Open Job Spec on the gate path, row by row.

Each test is named by the rows that it holds. ``tests/scheduler/test_open_job_spec.py`` has those of
the dispatch path. What is asked here is whether a task may start; skipping and priority (S-33 to
S-38) are a broker's that claims.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest
from redis import Redis

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.settings import Enforcement
from celery_fairness.config.tenants import tier_key
from celery_fairness.config.tiers import Tier
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import (
    Admitted,
    Job,
    Lease,
    Parking,
    Reason,
    Rejected,
    SlotRequest,
)
from celery_fairness.message.headers import Copy
from tests.contract.conftest import FrozenClock

_ids = itertools.count(1)

TWO = Limit("api", concurrency=2)
THREE_A_MINUTE = Limit("api", rate=((3, 60_000),))
SPACED = Limit("api", throttle=((5, 1_000),))


def ask(
    *limits: Limit,
    tenant: str = "",
    tier: str = "pro",
    copy: Copy | None = None,
    job: Job | None = None,
) -> SlotRequest:
    keys = [tier_key(tenant)] if tenant else []
    keys += [limit.key for limit in limits if limit.key not in keys]
    lease = Lease(f"lease{next(_ids)}", ",".join(keys))
    return SlotRequest(lease, tenant, tier, copy, "next", write_limits(limits), job)


def admitted(answer: Admitted | Rejected) -> Admitted:
    assert isinstance(answer, Admitted), answer
    return answer


def rejected(answer: Admitted | Rejected) -> Rejected:
    assert isinstance(answer, Rejected), answer
    return answer


def held(limiter: Limiter, key: str) -> int:
    return limiter.leases_of(key).held


def starts(limiter: Limiter, clock: FrozenClock, limit: Limit, milliseconds: int) -> list[int]:
    """Let tasks of one key start as soon as they may; return when each did."""
    seen = []
    for now in range(0, milliseconds, 50):
        request = ask(limit)
        if isinstance(limiter.acquire(request), Admitted):
            limiter.release([request.lease])
            seen.append(now)
        clock.advance(0.05)
    return seen


# -- 4 and 5.1: concurrency -----------------------------------------------------------------------


def test_s01_s19_rl001_askers_at_once_start_no_more_than_the_limit(limiter: Limiter) -> None:
    most, asked = [], threading.Barrier(6)

    def work() -> None:
        asked.wait()
        for _ in range(50):
            request = ask(Limit("api", concurrency=3))
            if isinstance(limiter.acquire(request), Admitted):
                most.append(held(limiter, "api"))
                limiter.release([request.lease])

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most
    assert max(most) <= 3
    assert held(limiter, "api") == 0


@pytest.mark.parametrize(
    "closed",
    [
        Limit("zz", concurrency=0),
        Limit("zz", concurrency=1),
        Limit("zz", rate=((1, 1_000),)),
        Limit("zz", throttle=((1, 1_000),)),
        Limit("aa", concurrency=1),
    ],
)
def test_s02_s22_s32_rl002_all_limits_are_taken_or_none(limiter: Limiter, closed: Limit) -> None:
    other, rate = Limit("db", concurrency=5), Limit("mail", rate=((1, 1_000),))
    limiter.acquire(ask(closed))
    for _ in range(3):
        rejected(limiter.acquire(ask(other, closed, rate, tenant="42")))
    assert [held(limiter, key) for key in ("db", "mail", "tenant:42")] == [0, 0, 0]
    # No start was counted either.
    admitted(limiter.acquire(ask(other, rate, tenant="42")))
    assert [held(limiter, key) for key in ("db", "mail", "tenant:42")] == [1, 1, 1]


def test_s02_a_rejection_by_the_tier_takes_nothing_of_the_limits(limiter: Limiter) -> None:
    admitted(limiter.acquire(ask(tenant="42", tier="free")))
    rate = Limit("mail", rate=((1, 60_000),))
    answer = rejected(limiter.acquire(ask(TWO, rate, tenant="42", tier="free")))
    assert (answer.key, answer.reason) == ("", Reason.AT_CONCURRENCY_LIMIT)
    assert held(limiter, "api") == 0
    admitted(limiter.acquire(ask(TWO, rate, tenant="7", tier="free")))


def test_s03_s05_s24_s27_rl003_by_default_a_task_over_its_limit_waits(limiter: Limiter) -> None:
    for _ in range(2):
        admitted(limiter.acquire(ask(TWO)))
    answer = rejected(limiter.acquire(ask(TWO)))
    assert (answer.action, answer.key) == ("wait", "api")
    assert limiter.counts() == {"limited": 1}


def test_s04_at_the_limit_nothing_starts_until_a_task_ends(limiter: Limiter) -> None:
    first = ask(TWO)
    admitted(limiter.acquire(first))
    admitted(limiter.acquire(ask(TWO)))
    answer = rejected(limiter.acquire(ask(TWO)))
    assert (answer.reason, answer.retry_after_seconds) == (Reason.AT_CONCURRENCY_LIMIT, None)
    limiter.release([first.lease])
    admitted(limiter.acquire(ask(TWO)))


def test_s06_s07_every_slot_is_free_when_one_ends_and_twice_frees_nothing(
    limiter: Limiter,
) -> None:
    requests = [ask(TWO, Limit("db", concurrency=2), tenant="42") for _ in range(2)]
    for request in requests:
        admitted(limiter.acquire(request))
    assert limiter.release([requests[0].lease]) == 1
    assert limiter.release([requests[0].lease]) == 0
    assert [held(limiter, key) for key in ("api", "db", "tenant:42")] == [1, 1, 1]
    limiter.release_soon(requests[1].lease)
    limiter.release_soon(requests[1].lease)
    assert [held(limiter, key) for key in ("api", "db", "tenant:42")] == [0, 0, 0]


def test_s06_every_slot_is_free_when_nobody_renews_it_and_none_while_somebody_does(
    limiter: Limiter, clock: FrozenClock
) -> None:
    lives, dead = ask(TWO, Limit("db", concurrency=2), tenant="42"), ask(TWO, tenant="42")
    admitted(limiter.acquire(lives))
    admitted(limiter.acquire(dead))
    for _ in range(3):
        clock.advance(5)
        assert limiter.renew([lives.lease]).gone == ()
    assert [held(limiter, key) for key in ("api", "db", "tenant:42")] == [1, 1, 1]
    admitted(limiter.acquire(ask(TWO)))
    assert limiter.renew([dead.lease, lives.lease]).gone == (dead.lease,)
    assert held(limiter, "api") == 2


def test_s07_the_same_lease_again_counts_nothing_twice(limiter: Limiter) -> None:
    request = ask(TWO, Limit("mail", rate=((2, 60_000),)), tenant="42")
    for _ in range(3):
        admitted(limiter.acquire(request))
    assert [held(limiter, key) for key in ("api", "mail", "tenant:42")] == [1, 1, 1]
    admitted(limiter.acquire(ask(Limit("mail", rate=((2, 60_000),)))))


def test_s16_a_key_is_shared_by_whoever_names_it_and_judged_by_each_ones_numbers(
    limiter: Limiter,
) -> None:
    admitted(limiter.acquire(ask(TWO, tenant="42")))
    admitted(limiter.acquire(ask(Limit("api", concurrency=5), tenant="7")))
    assert rejected(limiter.acquire(ask(TWO))).key == "api"
    admitted(limiter.acquire(ask(Limit("api", concurrency=3))))


def test_a_policy_of_the_tiers_key_is_held_by_the_tier_too(limiter: Limiter) -> None:
    one = Limit("tenant:42", concurrency=1)
    admitted(limiter.acquire(ask(one, tenant="42")))
    assert held(limiter, "tenant:42") == 1
    assert rejected(limiter.acquire(ask(one, tenant="42"))).key == "tenant:42"
    admitted(limiter.acquire(ask(tenant="42")))


# -- 5.2, 5.3 and 6.2: rates and throttles --------------------------------------------------------


def test_s08_s10_s11_s20_rlr001_no_window_has_more_starts_than_the_rate(
    limiter: Limiter, clock: FrozenClock
) -> None:
    seen = starts(limiter, clock, Limit("api", rate=((3, 1_000),)), 4_000)
    assert len(seen) >= 10
    assert all(later - first >= 1_000 for first, later in zip(seen, seen[3:], strict=False))


def test_s09_a_task_over_its_rate_waits_and_starts_when_that_is_open(
    limiter: Limiter, clock: FrozenClock
) -> None:
    once = Limit("api", rate=((1, 60_000),))
    admitted(limiter.acquire(ask(once)))
    late = ask(once, copy=Copy("m1"))
    answer = rejected(limiter.acquire(late))
    assert (answer.action, limiter.counts()) == ("wait", {"limited": 1})
    assert limiter.park(late, "as it came") is Parking.PARKED
    assert limiter.promote(1).tasks == ()
    assert limiter.look("api")["waiting_count"] == 1
    for _ in range(13):
        clock.advance(5)
        limiter.renew([])
    (task,) = limiter.promote(1).tasks
    assert task.message == "as it came"
    admitted(limiter.acquire(ask(once, copy=task.copy)))


def test_s08_a_rate_says_when_it_is_open(limiter: Limiter, clock: FrozenClock) -> None:
    for _ in range(3):
        limiter.acquire(ask(THREE_A_MINUTE))
        clock.advance(1)
    answer = rejected(limiter.acquire(ask(THREE_A_MINUTE)))
    assert (answer.reason, answer.key) == (Reason.AT_RATE_LIMIT, "api")
    assert answer.retry_after_seconds == 57.001


def test_s13_s14_s21_rlr002_starts_are_spaced_evenly(limiter: Limiter, clock: FrozenClock) -> None:
    seen = starts(limiter, clock, SPACED, 3_000)
    gaps = [later - first for first, later in itertools.pairwise(seen)]
    assert len(seen) >= 14
    assert min(gaps) >= 180


def test_s13_a_throttle_says_when_the_next_is_due(limiter: Limiter) -> None:
    admitted(limiter.acquire(ask(SPACED)))
    answer = rejected(limiter.acquire(ask(SPACED)))
    assert answer.reason is Reason.AT_THROTTLE
    assert answer.retry_after_seconds == pytest.approx(0.2, abs=0.021)


def test_s22_of_several_that_reject_the_last_to_open_says_how_soon(limiter: Limiter) -> None:
    both = Limit("api", rate=((1, 60_000),), throttle=((1, 30_000),))
    admitted(limiter.acquire(ask(both)))
    answer = rejected(limiter.acquire(ask(Limit("db", rate=((1, 1_000),)), both)))
    assert (answer.key, answer.reason) == ("api", Reason.AT_RATE_LIMIT)
    assert answer.retry_after_seconds == 60.001
    # Nobody knows when a running task ends.
    admitted(limiter.acquire(ask(Limit("one", concurrency=1))))
    assert (
        rejected(limiter.acquire(ask(both, Limit("one", concurrency=1)))).retry_after_seconds
        is None
    )


# -- 6.2: zero, and on_limit ----------------------------------------------------------------------


def test_s18_zero_pauses_and_nobody_knows_until_when(limiter: Limiter) -> None:
    answer = rejected(
        limiter.acquire(ask(THREE_A_MINUTE, Limit("off", concurrency=0, on_limit="drop")))
    )
    assert (answer.reason, answer.key, answer.action) == (Reason.PAUSED, "off", "wait")
    assert answer.retry_after_seconds is None


@pytest.mark.parametrize(
    ("first", "second", "action", "key"),
    [
        ("wait", "wait", "wait", "a"),
        ("wait", "reschedule", "reschedule", "b"),
        ("reschedule", "drop", "drop", "b"),
        ("drop", "reschedule", "drop", "a"),
        ("reschedule", "reschedule", "reschedule", "a"),
    ],
)
def test_s25_s26_of_several_drop_goes_before_reschedule_and_that_before_wait(
    limiter: Limiter, first: str, second: str, action: str, key: str
) -> None:
    limits = (
        Limit("a", concurrency=1, on_limit=first),
        Limit("b", rate=((1, 60_000),), on_limit=second),
    )
    open_one = Limit("c", concurrency=9, on_limit="drop")
    admitted(limiter.acquire(ask(*limits, open_one)))
    answer = rejected(limiter.acquire(ask(*limits, open_one)))
    assert (answer.action, answer.key) == (action, key)
    counted = {"drop": ["dropped"], "reschedule": ["rescheduled"]}.get(action, [])
    assert limiter.counts() == dict.fromkeys([*counted, "limited"], 1)


def test_s26_a_limit_drops_though_the_tier_rejects_too(limiter: Limiter) -> None:
    drops = Limit("a", concurrency=1, on_limit="drop")
    admitted(limiter.acquire(ask(drops, tenant="42", tier="free")))
    answer = rejected(limiter.acquire(ask(drops, tenant="42", tier="free")))
    assert (answer.action, answer.key) == ("drop", "a")
    assert limiter.counts() == {"limited": 1, "dropped": 1, "rejected:free": 1}


def test_s26_of_a_dropped_message_no_other_copy_starts(limiter: Limiter) -> None:
    drops, waits = Limit("a", concurrency=1, on_limit="drop"), Limit("b", concurrency=1)
    blocker = ask(drops, waits)
    admitted(limiter.acquire(blocker))
    rejected(limiter.acquire(ask(waits, copy=Copy("m1"))))
    assert rejected(limiter.acquire(ask(drops, copy=Copy("m1", "next")))).action == "drop"
    limiter.release([blocker.lease])
    answer = rejected(limiter.acquire(ask(drops, copy=Copy("m1"))))
    assert answer.reason is Reason.SUPERSEDED
    # The one that was dropped, delivered again, is judged again.
    admitted(limiter.acquire(ask(drops, copy=Copy("m1", "next"))))


def test_a_task_without_a_tenant_has_its_limits_alone(limiter: Limiter) -> None:
    limiter.publish_tiers([Tier("free", 0)], "database")
    answer = admitted(limiter.acquire(ask(TWO, tier="")))
    assert (answer.tier, answer.limit, answer.held) == ("", None, 0)
    assert answer.lease.keys == ["api"]


# -- 9.1: stops -----------------------------------------------------------------------------------


@pytest.mark.parametrize("on_limit", ["wait", "reschedule", "drop"])
def test_s40_s42_rlr003_under_a_key_that_cools_down_nothing_starts_and_nothing_is_dropped(
    limiter: Limiter, clock: FrozenClock, stop: Callable[..., None], on_limit: str
) -> None:
    limit = Limit("api", concurrency=5, on_limit=on_limit)
    stop("cool", "api", 8.0)
    clock.advance(3)
    answer = rejected(limiter.acquire(ask(limit)))
    assert (answer.reason, answer.action) == (Reason.COOLING_DOWN, "wait")
    assert (answer.key, answer.retry_after_seconds) == ("api", 5.0)
    clock.advance(5)
    admitted(limiter.acquire(ask(limit)))


def test_a_paused_key_starts_nothing_until_it_is_resumed(
    limiter: Limiter, stop: Callable[..., None]
) -> None:
    stop("pause", "api")
    answer = rejected(limiter.acquire(ask(TWO)))
    assert (answer.reason, answer.retry_after_seconds) == (Reason.PAUSED, None)
    stop("resume", "api")
    admitted(limiter.acquire(ask(TWO)))


# -- enforcement ----------------------------------------------------------------------------------


def test_observe_counts_what_limits_would_reject_and_rejects_nothing(limiter: Limiter) -> None:
    limit = Limit("api", concurrency=1, on_limit="drop")
    answers = [limiter.acquire(ask(limit), Enforcement.OBSERVE) for _ in range(3)]
    assert [admitted(answer).over_limit for answer in answers] == [False, True, True]
    assert limiter.counts() == {"limited": 2}
    assert held(limiter, "api") == 3


def test_off_rejects_nothing_and_counts_what_runs_and_starts(
    limiter: Limiter, stop: Callable[..., None]
) -> None:
    limit = Limit("api", concurrency=1, rate=((2, 60_000),))
    stop("pause", "api")
    for _ in range(3):
        assert not admitted(limiter.acquire(ask(limit), Enforcement.OFF)).over_limit
    stop("resume", "api")
    assert limiter.counts() == {}
    assert held(limiter, "api") == 3
    rate = Limit("api", rate=limit["rate"])
    assert rejected(limiter.acquire(ask(rate))).retry_after_seconds == 60.001


# -- what people say ----------------------------------------------------------------------------


def test_a_tenant_that_is_paused_is_admitted_by_no_gate(limiter, stop, clock) -> None:
    stop("pause", tier_key("42"))
    for limits in ((), (TWO,)):
        assert rejected(limiter.acquire(ask(*limits, tenant="42"))).reason is Reason.PAUSED
        admitted(limiter.acquire(ask(*limits, tenant="43")))
    stop("pause", tier_key("42"), 5.0)
    clock.advance(5.0)
    admitted(limiter.acquire(ask(tenant="42")))


def test_s44_rlr004_an_override_stands_in_the_place_of_a_key_s_numbers(
    limiter, override, clock
) -> None:
    override("api", 5_000, concurrency=1)
    override(tier_key("42"), None, concurrency=2)
    admitted(limiter.acquire(ask(TWO)))
    assert rejected(limiter.acquire(ask(TWO))).key == "api"
    for _ in range(2):
        admitted(limiter.acquire(ask(tenant="42", tier="free")))
    assert rejected(limiter.acquire(ask(tenant="42", tier="pro"))).limit == 2
    clock.advance(5.0)
    admitted(limiter.acquire(ask(TWO)))


def test_s44_rlr004_an_override_of_0_pauses_a_key(limiter, override) -> None:
    override("api", None, concurrency=0)
    assert rejected(limiter.acquire(ask(TWO))).reason is Reason.PAUSED


def test_what_people_said_for_a_time_is_forgotten_by_who_renews(limiter, override, clock) -> None:
    lease = admitted(limiter.acquire(ask(TWO, tenant="42"))).lease
    override("api", 5_000, concurrency=1)
    clock.advance(5.0)
    limiter.renew([lease])
    with Redis.from_url(limiter.connection.address.urls[0], decode_responses=True) as client:
        assert not client.exists(f"{limiter.prefix}changes", f"{limiter.prefix}changes_end")
        assert client.hget(f"{limiter.prefix}clock", "has_overrides") is None
    admitted(limiter.acquire(ask(TWO)))


# -- 11: events -----------------------------------------------------------------------------------

JOB = {"job_id": "t1", "job_type": "shop.pay", "queue": "q"}


def emitted(limiter: Limiter, what: str) -> list[dict[str, str]]:
    """Return the events of one type."""
    with Redis.from_url(limiter.connection.address.urls[0], decode_responses=True) as client:
        entries = client.xrange(f"{limiter.prefix}events")
    events = [dict(fields) for _, fields in entries]
    return [each for each in events if each.pop("type") == f"rate_limit.{what}"]


class Waits:
    """A task that asks, is rejected, and asks again as the copy that its rejection published."""

    def __init__(self, limiter: Limiter, *limits: Limit, number: int = 1, **more: str) -> None:
        self.limiter, self.limits, self.more = limiter, limits, more
        self.job = Job(f"t{number}", "shop.pay", "q")
        self.copy = Copy(f"m{number}")

    def ask(self, enforcement: Enforcement = Enforcement.ON) -> Admitted | Rejected:
        request = ask(*self.limits, copy=self.copy, job=self.job, **self.more)
        answer = self.limiter.acquire(request, enforcement)
        if isinstance(answer, Rejected):
            self.copy = Copy(self.copy.message, "next")
        return answer


@pytest.mark.parametrize(
    ("limits", "tenant", "numbers"),
    [
        ((TWO,), "", ("api", "concurrency", "2", "2")),
        ((Limit("api", rate=((2, 60_000),)),), "", ("api", "rate", "2", "2")),
        ((SPACED,), "", ("api", "throttle", "5", "5")),
        ((Limit("api", concurrency=0),), "", ("api", "paused", "0", "0")),
        ((Limit("cold", concurrency=5),), "", ("cold", "cool-down", "0", "0")),
        (
            (Limit("api", concurrency=1, on_limit="reschedule"),),
            "",
            ("api", "concurrency", "1", "1"),
        ),
        ((), "42", ("tenant:42", "concurrency", "1", "1")),
        ((Limit("db", concurrency=1),), "42", ("tenant:42", "concurrency", "1", "1")),
        ((), "off", ("tenant:off", "paused", "0", "0")),
        ((Limit("db", concurrency=1),), "off", ("tenant:off", "paused", "0", "0")),
    ],
)
def test_s46_rl006_d12_a_job_that_is_rejected_is_reported_once_and_each_rejection_is_not(
    limiter: Limiter,
    stop: Callable[..., None],
    limits: tuple[Limit, ...],
    tenant: str,
    numbers: tuple[str, ...],
) -> None:
    limiter.publish_tenant("off", "free", {"concurrency": 0})
    if numbers[0] == "cold":
        stop("cool", "cold", 8.0)
    for _ in range(2):
        limiter.acquire(ask(*limits, tenant=tenant, tier="free"))
    waits = Waits(limiter, *limits, tenant=tenant, tier="free")
    for _ in range(3):
        rejected(waits.ask())
    named = dict(zip(("key", "strategy", "limit", "current"), numbers, strict=True))
    assert emitted(limiter, "exceeded") == [{**JOB, **named}]
    assert emitted(limiter, "released") == []


@pytest.mark.parametrize(
    ("limits", "tenant"), [((Limit("api", concurrency=1),), ""), ((), "42"), ((TWO,), "42")]
)
def test_s47_rl006_d13_one_released_for_each_exceeded_with_the_same_job(
    limiter: Limiter, limits: tuple[Limit, ...], tenant: str
) -> None:
    waiting = [Waits(limiter, *limits, number=n, tenant=tenant, tier="free") for n in (1, 2, 3)]
    # In the second round they are delivered again, as where a worker has died.
    for _ in range(2):
        blocker = admitted(limiter.acquire(ask(*limits, tenant=tenant, tier="free")))
        for each in [*waiting, *waiting]:
            rejected(each.ask())
        limiter.release([blocker.lease])
        for each in waiting:
            limiter.release([admitted(each.ask()).lease])
    ids = [[each["job_id"] for each in emitted(limiter, what)] for what in ("exceeded", "released")]
    assert ids == [["t1", "t2", "t3"]] * 2
    key = "tenant:42" if tenant else "api"
    assert emitted(limiter, "released")[0] == {**JOB, "key": key, "strategy": "concurrency"}


def test_s48_a_job_that_is_dropped_is_reported(limiter: Limiter) -> None:
    drops = Limit("full", concurrency=1, on_limit="drop")
    admitted(limiter.acquire(ask(drops)))
    assert rejected(Waits(limiter, THREE_A_MINUTE, drops).ask()).action == "drop"
    assert emitted(limiter, "dropped") == [{**JOB, "key": "full"}]
    assert emitted(limiter, "exceeded") == []


def test_s49_a_key_that_cools_down_is_reported_with_its_time_and_reason(
    limiter: Limiter, clock: FrozenClock, stop: Callable[..., None]
) -> None:
    stop("cool", "api", 8.0)
    until = str(clock.now_ms + 8_000)
    assert emitted(limiter, "dynamic_adjusted") == [{"key": "api", "until": until, "reason": ""}]
    stop("cool", "api", 1.0)
    assert len(emitted(limiter, "dynamic_adjusted")) == 1, "what is shorter changes nothing"
