"""The check finds and repairs each difference that is planted in what a gate has parked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from celery_fairness import Fairness
from celery_fairness.control.views import Check
from celery_fairness.limiter.types import Copy, Lease, Parking, SlotRequest
from tests.cli.conftest import named
from tests.support.parts import parts_of
from tests.support.waiting import eventually

#: Server time in ms that never comes.
FAR = 9_000_000_000_000


@pytest.fixture(params=["fairredis", "redis"])
def parked(
    request: Any, redis_url: str, client: Redis, make_fairness: Callable[..., Fairness]
) -> Callable[..., Check]:
    """Two tasks wait for one limit: one of them for two, one expires; a third was promoted."""
    of_scheme = {"fairredis": "", "redis": redis_url}
    fairness = make_fairness(url=of_scheme[request.param])
    limiter = parts_of(fairness).limiter

    def ask(name: str, *limits: str) -> SlotRequest:
        keys = (each.partition("|")[0] for each in limits)
        lease = Lease(name, ",".join((f"tenant:{name}", *keys)))
        return SlotRequest(lease, name, "free", Copy(name), f"n{name}", ",".join(limits))

    api, db = "api|1|||w", "db|1|||w"
    limiter.acquire(ask("holds", api))
    assert limiter.park(ask("waits", api, db), "{}") is Parking.PARKED
    assert limiter.park(ask("expires", api), "{}", FAR) is Parking.PARKED
    held = ask("held", db)
    limiter.acquire(held)
    assert limiter.park(ask("promoted", db), "{}") is Parking.PARKED
    limiter.release([held.lease])
    (task,) = limiter.promote(16, "s").tasks
    assert task.copy.message == "promoted"
    return fairness.check


def test_nothing_is_found_where_everything_agrees(parked: Callable[..., Check]) -> None:
    assert parked().findings == ()


WAITS = "gate_at:tenant:waits api|#||"
PLACE = "gate_turns:api|#||"
LOST = ("parked_task_lost", "gate_tasks", "waits")
NO_TURN = ("parked_without_turn", WAITS, "")
ALL_NO_TURN = {NO_TURN, ("parked_without_turn", "gate_at:tenant:expires api|#||", "")}
PLANTED: dict[str, tuple[tuple[Any, ...], set[tuple[str, str, str]]]] = {
    "a task that waits without its message": (
        ("ZADD", WAITS, 9, "gone"),
        {("parked_without_message", WAITS, "gone")},
    ),
    "a task that waits nowhere": (
        ("ZREM", WAITS, "waits"),
        {LOST, ("wait_without_task", PLACE, "0000000000000001 tenant:waits")},
    ),
    "a task that waits at two limits": (
        ("ZADD", "gate_at:tenant:waits db|#||", 1, "waits"),
        {LOST, ("parked_without_turn", "gate_at:tenant:waits db|#||", "")},
    ),
    "a promoted task that no sweep would find": (
        ("ZREM", "gate_promoted", "promoted"),
        {("parked_task_lost", "gate_tasks", "promoted")},
    ),
    "a limit at which nobody looks": (("ZREM", "gate_looks", "api"), ALL_NO_TURN),
    "a clock without the flag that tasks are parked": (
        ("HDEL", "clock", "parked"),
        {("flag_missing", "clock", "parked")},
    ),
    "a place that its key does not name": (("ZREM", "gate_places:api", "api|#||"), ALL_NO_TURN),
    "a tenant without its turn": (("ZREM", PLACE, "0000000000000001 tenant:waits"), {NO_TURN}),
    "turns that were deleted": (("DEL", PLACE), ALL_NO_TURN),
    "a turn of nobody": (
        ("ZADD", PLACE, 0, "0000000000000009 tenant:nobody"),
        {("wait_without_task", PLACE, "0000000000000009 tenant:nobody")},
    ),
    "a turn by a task that is not the first": (
        ("ZADD", PLACE, 0, "0000000000000002 tenant:waits"),
        {("wait_without_task", PLACE, "0000000000000002 tenant:waits")},
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found_and_repaired(
    parked: Callable[..., Check], fairness: Fairness, client: Redis, name: str
) -> None:
    (command, key, *args), expected = PLANTED[name]
    client.execute_command(command, "{fairness}:" + key, *args)
    assert named(parked()) == expected
    repaired = parked(repair=True)
    assert named(repaired) <= expected
    assert all(each.repaired for each in repaired.findings)
    assert parked().findings == ()


@pytest.mark.parametrize(
    "gone",
    [
        "clock",
        "gate_looks",
        "gate_places:*",
        "gate_turns:*",
        "gate_at:*",
        "gate_virtual",
        "gate_waiting",
    ],
)
def test_whatever_key_is_gone_a_repaired_gate_promotes(
    parked: Callable[..., Check], fairness: Fairness, client: Redis, gone: str
) -> None:
    client.delete(*client.keys("{fairness}:" + gone))
    parked(repair=True)
    assert parked().findings == ()
    limiter = parts_of(fairness).limiter
    limiter.release([Lease("holds", "tenant:holds,api")])
    eventually(lambda: limiter.promote(16, "s").tasks, 10)
