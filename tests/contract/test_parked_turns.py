"""Whose turn it is among what a gate has parked: no flood keeps others from what they share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_fairness.decision import Admitted, Lease, SlotRequest
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.scheduling.limits import Limit
from tests.contract.conftest import FrozenClock
from tests.contract.test_parked import again, ask, park, promote, take

API = Limit("api", 1)
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
        for number in range(tasks):
            request = self.requests[f"{tenant}{number}"] = ask(
                f"{tenant}{number}", *limits, tenant=tenant
            )
            park(self.limiter, request)

    def serve(self, rounds: int) -> str:
        """Each round what runs ends; return who has started, by the first letters."""
        for _ in range(rounds):
            self.limiter.release(self.held)
            self.held = []
            for _ in range(5):
                for task in promote(self.limiter):
                    name = task.copy.message
                    self.limiter.unpark([name])
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
    mine, others = Limit(f"{own}:A", 1), Limit(f"{own}:B", 1)
    gate = Gate(limiter, clock, take(limiter, mine, API, tenant="A"))
    gate.wait("A", 6, mine, API)
    gate.wait("B", 3, others, API)
    assert gate.serve(9)[:6] in IN_TURN


@pytest.mark.parametrize("shared", ["api", "zapi"])
def test_who_waits_at_its_tier_has_no_more_turns_at_a_shared_limit(
    make_limiter: Callable[..., Limiter], clock: FrozenClock, shared: str
) -> None:
    limiter = make_limiter(tier_on_limit="wait", tiers={"free": {"concurrency": 1}})
    limit = Limit(shared, 1)
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
        closed = Limit("api", 0, throttle=(number + 1, 1_000))
        park(limiter, ask(f"never{number}", closed, tenant="Z"))
    gate.wait("A", 6, API)
    gate.wait("B", 3, API)
    assert gate.serve(9) == "ABABABAAA"


def test_tenants_with_one_shared_limit_and_another_for_some_share_both(
    limiter: Limiter, clock: FrozenClock
) -> None:
    """A needs both, B the one and C the other: nobody starves, and nothing moves without an end."""
    other = Limit("mail", 1)
    gate = Gate(limiter, clock, take(limiter, API, other, tenant="X"))
    gate.wait("A", 6, API, other)
    gate.wait("B", 6, API)
    gate.wait("C", 6, other)
    gate.serve(12)
    assert {tenant: gate.started.count(tenant) for tenant in "ABC"} == {"A": 6, "B": 6, "C": 6}
    assert promote(limiter) == []
