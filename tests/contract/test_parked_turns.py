"""Whose turn it is among what a gate has parked: no flood keeps others from what they share.

All tasks of a key are judged by its newest numbers, and its tenants have their turns by weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.tiers import Tier
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Admitted, Lease, Rejected, SlotRequest
from tests.contract.conftest import FrozenClock
from tests.contract.test_parked import (
    ONE,
    TWO,
    again,
    ask,
    end_unstarted,
    names,
    park,
    promote,
    take,
)

API = Limit("api", concurrency=1)
#: Who waits at the shared limit itself may come first.
IN_TURN = ("ABABAB", "BABABA")


class Gate:
    """Tasks that wait at a gate, one slot that frees again and again, and who starts then."""

    def __init__(self, limiter: Limiter, clock: FrozenClock, held: Lease) -> None:
        self.limiter, self.clock = limiter, clock
        self.requests: dict[str, SlotRequest] = {}
        self.held = [held]
        self.started = ""

    def wait(self, tenant: str, tasks: int, *limits: Limit) -> None:
        for _ in range(tasks):
            name = f"{tenant}{len(self.requests)}"
            self.requests[name] = ask(name, *limits, tenant=tenant)
            park(self.limiter, self.requests[name])

    def serve(self, rounds: int) -> str:
        """Each round what runs ends; return who has started, by the first letters."""
        for _ in range(rounds):
            self.limiter.release(self.held)
            self.held = []
            for _ in range(5):
                for task in promote(self.limiter):
                    name = task.copy.message
                    self.limiter.end_promotion(task, "sent")
                    came = again(self.requests[name], task)
                    assert isinstance(self.limiter.acquire(came), Admitted)
                    self.held.append(came.lease)
                    self.started += name[0]
                self.clock.advance(0.001)
        return self.started


@pytest.mark.parametrize("own", ["account", "zone"])
def test_who_has_a_limit_of_its_own_beside_the_shared_one_has_no_more_turns(
    limiter: Limiter, clock: FrozenClock, own: str
) -> None:
    """An end frees both keys, and the one that comes first in the alphabet is looked at first."""
    mine, others = Limit(f"{own}:A", concurrency=1), Limit(f"{own}:B", concurrency=1)
    gate = Gate(limiter, clock, take(limiter, mine, API, tenant="A"))
    gate.wait("A", 6, mine, API)
    gate.wait("B", 3, others, API)
    assert gate.serve(9)[:6] in IN_TURN


def test_of_two_that_are_due_at_once_the_one_that_waits_longer_is_before(
    limiter: Limiter, clock: FrozenClock
) -> None:
    mine = Limit("account:A", concurrency=1)
    gate = Gate(limiter, clock, take(limiter, mine, API, tenant="A"))
    gate.wait("B", 3, Limit("account:B", concurrency=1), API)
    gate.wait("A", 3, mine, API)
    assert gate.serve(6) == "BABABA"


@pytest.mark.parametrize("shared", ["api", "zapi"])
def test_who_waits_at_its_tier_has_no_more_turns_at_a_shared_limit(
    make_limiter: Callable[..., Limiter], clock: FrozenClock, shared: str
) -> None:
    limiter = make_limiter(tier_on_limit="wait", tiers={"free": {"concurrency": 1}})
    limit = Limit(shared, concurrency=1)
    gate = Gate(limiter, clock, take(limiter, limit, tenant="A"))
    gate.wait("A", 6, limit)
    gate.wait("B", 3, limit)
    assert gate.serve(9)[:6] in IN_TURN


@pytest.mark.parametrize("places", [3, 17])
def test_turns_are_taken_however_many_numbers_a_key_has(
    limiter: Limiter, clock: FrozenClock, places: int
) -> None:
    gate = Gate(limiter, clock, take(limiter, API, tenant="X"))
    for number in range(places):
        closed = Limit("api", concurrency=0, throttle=((number + 1, 1_000),))
        park(limiter, ask(f"never{number}", closed, tenant="Z"))
    gate.wait("A", 6, API)
    gate.wait("B", 3, API)
    assert gate.serve(9) == "ABABABAAA"


def test_a_tenant_with_tasks_of_other_numbers_has_no_more_turns_at_their_key(
    limiter: Limiter, clock: FrozenClock
) -> None:
    gate = Gate(limiter, clock, take(limiter, API, tenant="X"))
    gate.wait("A", 3, API)
    gate.wait("A", 3, Limit("api", concurrency=1, rate=((1_000, 1_000),)))
    gate.wait("B", 3, API)
    assert gate.serve(9) == "ABABABAAA"


def test_tenants_with_one_shared_limit_and_another_for_some_share_both(
    limiter: Limiter, clock: FrozenClock
) -> None:
    """A needs both, B the one and C the other: nobody starves, and nothing moves without an end."""
    other = Limit("mail", concurrency=1)
    gate = Gate(limiter, clock, take(limiter, API, other, tenant="X"))
    gate.wait("A", 6, API, other)
    gate.wait("B", 6, API)
    gate.wait("C", 6, other)
    gate.serve(12)
    assert {tenant: gate.started.count(tenant) for tenant in "ABC"} == {"A": 6, "B": 6, "C": 6}
    assert promote(limiter) == []


def test_d03_older_numbers_of_a_key_keep_nobody_back(limiter: Limiter) -> None:
    held = take(limiter, ONE)
    park(limiter, ask("never", Limit("api", concurrency=0)))
    park(limiter, ask("old", ONE))
    assert promote(limiter) == []
    newest = ask("newest", TWO)
    # Who comes with a higher number stands behind those that wait, and lets them start.
    assert isinstance(limiter.acquire(newest), Rejected)
    (given,) = promote(limiter)
    assert given.copy.message == "old"
    end_unstarted(limiter, given)
    limiter.release([held])
    assert promote(limiter) == []


def test_d03_a_retry_and_a_copy_declare_no_numbers(limiter: Limiter) -> None:
    held = take(limiter, TWO)
    old = replace(ask("retry", Limit("api", concurrency=9)), is_new=False)
    assert isinstance(limiter.acquire(old), Admitted)
    assert isinstance(
        limiter.acquire(replace(ask("copy", Limit("api", concurrency=9)), is_new=False)), Rejected
    )
    limiter.release([held, old.lease])
    # Where nobody has declared any they hold.
    first = replace(ask("first", Limit("mail", concurrency=1)), is_new=False)
    assert isinstance(limiter.acquire(first), Admitted)
    second = replace(ask("second", Limit("mail", concurrency=9)), is_new=False)
    assert isinstance(limiter.acquire(second), Rejected)


def test_d03_a_newcomer_stands_behind_those_of_its_key_and_no_others(limiter: Limiter) -> None:
    take(limiter, ONE)
    park(limiter, ask("old", ONE))
    assert isinstance(limiter.acquire(ask("wide", Limit("api", concurrency=3))), Rejected)
    # A number that is 0 stops one task alone, and another kind of number waits on its own.
    assert isinstance(limiter.acquire(ask("rated", Limit("api", rate=((5, 1_000),)))), Admitted)
    assert isinstance(limiter.acquire(ask("never", Limit("api", concurrency=0))), Rejected)
    assert names(promote(limiter)) == ["old"]


def test_of_one_key_the_eldest_is_promoted_first_whatever_its_numbers(limiter: Limiter) -> None:
    numbers = [Limit("api", concurrency=n) for n in (4, 3, 2, 5)]
    held = [take(limiter, Limit("api", concurrency=5)) for _ in range(5)]
    for name, limit in zip("abcdefgh", numbers * 2, strict=True):
        park(limiter, ask(name, limit))
    limiter.acquire(ask("last", Limit("api", concurrency=5)))
    limiter.release(held)
    # As many as the newest number allows, and no more.
    assert names(promote(limiter)) == ["a", "b", "c", "d", "e"]


def test_a_key_with_many_numbers_is_looked_at_a_bounded_number_at_a_time(
    limiter: Limiter, clock: FrozenClock
) -> None:
    limits = [Limit("api", concurrency=0, throttle=((1, 1_000 + n),)) for n in range(30)]
    for n, limit in enumerate(limits):
        park(limiter, ask(f"never{n}", limit))
    held = take(limiter, ONE)
    park(limiter, ask("a", ONE))
    limiter.release([held])
    given: list[str] = []
    for _ in range(8):
        clock.advance(0.001)
        given += names(promote(limiter))
    assert given == ["a"]
    # And nobody is asked again at once when all were looked at.
    assert limiter.promote(16).sleep_seconds > 0.5


def order_of(limiter: Limiter, held: Lease, times: int) -> tuple[str, Lease]:
    """Return who starts when one slot frees after the other, by first letters, and who holds it."""
    given = ""
    for _ in range(times):
        limiter.release([held])
        (task,) = promote(limiter)
        given += task.copy.message[0]
        limiter.end_promotion(task, "sent")
        held = Lease(task.copy.serial, "")
    return given, held


def test_a_limit_that_tenants_share_is_divided_among_them_by_turns(limiter: Limiter) -> None:
    held = take(limiter, ONE)
    for n in range(9):
        park(limiter, ask(f"flood{n}", ONE, tenant="flood"))
    for n in range(2):
        park(limiter, ask(f"quiet{n}", ONE, tenant="quiet"))
        park(limiter, ask(f"system{n}", ONE))
    order = order_of(limiter, held, 9)[0]
    # Who is due at the same time comes in any order.
    assert [set(order[:3]), set(order[3:6]), order[6:]] == [set("fqs"), set("fqs"), "fff"]


def test_those_that_wait_have_their_turns_by_weight(limiter: Limiter) -> None:
    limiter.publish_tiers([Tier("free", None), Tier("pro", None, weight=2.0)], "settings")
    held = take(limiter, ONE)
    for n in range(12):
        heavy = replace(ask(f"heavy{n}", ONE, tenant="heavy"), tier="pro")
        park(limiter, heavy)
        park(limiter, ask(f"light{n}", ONE, tenant="light"))
    assert Counter(order_of(limiter, held, 12)[0]) == {"h": 8, "l": 4}


def test_who_waits_with_one_task_after_the_other_has_no_more_turns(limiter: Limiter) -> None:
    """Whose start was forgotten with its last task would be first each time."""
    held = take(limiter, ONE)
    for tenant in "abc":
        for n in range(9):
            park(limiter, ask(f"{tenant}{n}", ONE, tenant=tenant))
    order = "x"
    for n in range(16):
        if order[-1] == "x":
            park(limiter, ask(f"x{n}", ONE, tenant="x"))
        given, held = order_of(limiter, held, 1)
        order += given
    assert Counter(order[1:]) == dict.fromkeys("abcx", 4)
