"""The audit finds every difference that is planted in what a gate has parked, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from celery_fairness import Fairness
from celery_fairness.decision import Copy, Lease, Parking, SlotRequest
from celery_fairness.looking.values import Audit

#: Server time in ms that never comes.
FAR = 9_000_000_000_000


@pytest.fixture(params=["fairredis", "redis"])
def parked(
    request: Any, redis_url: str, client: Redis, make_fairness: Callable[..., Fairness]
) -> Callable[[], Audit]:
    """Two tasks wait for one limit: one of them for two, one expires; a third was promoted."""
    of_scheme = {"fairredis": "", "redis": redis_url}
    fairness = make_fairness(url=of_scheme[request.param])
    limiter = fairness.limiter

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
    return fairness.audit


def test_nothing_is_found_where_everything_agrees(parked: Callable[[], Audit]) -> None:
    found = parked()
    assert found.findings == ()
    assert found.compared["parked"] == 3


PLANTED: dict[str, tuple[tuple[Any, ...], set[tuple[str, str]]]] = {
    "a task that waits without its record": (
        ("ZADD", "gate_at:api|1||", 1, "gone"),
        {("parked is kept", "gone")},
    ),
    "a task that expires without its record": (
        ("ZADD", "gate_expires", 1, "gone"),
        {("parked is kept", "gone")},
    ),
    "a task that waits nowhere": (
        ("ZREM", "gate_at:api|1||", "waits"),
        {("parked is in one place", "waits")},
    ),
    "a task that waits at two limits": (
        ("ZADD", "gate_at:db|1||", 1, "waits"),
        {("parked is in one place", "waits"), ("parked is looked at", "db|1||")},
    ),
    "a task that waits and was promoted": (
        ("ZADD", "gate_promoted", 1, "waits"),
        {("parked is in one place", "waits")},
    ),
    "a promoted task that no sweep would find": (
        ("ZREM", "gate_promoted", "promoted"),
        {("parked is in one place", "promoted")},
    ),
    "a task that would never expire": (
        ("ZREM", "gate_expires", "expires"),
        {("parked expires", "expires")},
    ),
    "a record that nobody can read": (
        ("HSET", "gate_tasks", "odd", "nonsense"),
        {("a record can be read", "odd")},
    ),
    "a limit at which nobody looks": (
        ("ZREM", "gate_looks", "api"),
        {("parked is looked at", "api|1||")},
    ),
    "a clock that does not say that something is parked": (
        ("HDEL", "clock", "parked"),
        {("parked is looked at", "api|1||")},
    ),
    "a place that its key does not know": (
        ("ZREM", "gate_places:api", "api|1||"),
        {("parked is looked at", "api|1||")},
    ),
    "a place at which nobody waits": (
        ("ZADD", "gate_places:api", 0, "api|7||"),
        {("a place has tasks", "api|7||")},
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(parked: Callable[[], Audit], client: Redis, name: str) -> None:
    (command, key, *args), expected = PLANTED[name]
    client.execute_command(command, "{fairness}:" + key, *args)
    assert {(each.check, each.name) for each in parked().findings} == expected
