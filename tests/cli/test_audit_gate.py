"""The audit finds every difference that is planted in what a gate has parked, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from celery_fairness import Fairness
from celery_fairness.control.views import Audit
from celery_fairness.limiter.types import Lease, Parking, SlotRequest
from celery_fairness.message.headers import Copy
from tests.support.parts import parts_of

#: Server time in ms that never comes.
FAR = 9_000_000_000_000


@pytest.fixture(params=["fairredis", "redis"])
def parked(
    request: Any, redis_url: str, client: Redis, make_fairness: Callable[..., Fairness]
) -> Callable[[], Audit]:
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


def test_nothing_is_found_where_everything_agrees(parked: Callable[[], Audit]) -> None:
    found = parked()
    assert found.findings == ()
    assert found.compared["parked"] == 3


WAITS = "gate_at:tenant:waits api|#||"
TURN = "tenant:waits api|#||"
PLANTED: dict[str, tuple[tuple[Any, ...], set[tuple[str, str]]]] = {
    "a task that waits without its record": (
        ("ZADD", WAITS, 9, "gone"),
        {("parked is kept", "gone"), ("parked of a key", "api")},
    ),
    "a task that expires without its record": (
        ("ZADD", "gate_expires", 1, "gone"),
        {("parked is kept", "gone")},
    ),
    "a task that waits nowhere": (
        ("ZREM", WAITS, "waits"),
        {
            ("parked is in one place", "waits"),
            ("parked has its turn", TURN),
        },
    ),
    "a task that waits at two limits": (
        ("ZADD", "gate_at:tenant:waits db|#||", 1, "waits"),
        {
            ("parked is in one place", "waits"),
            ("parked has its turn", "tenant:waits db|#||"),
        },
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
        {("parked is looked at", "api")},
    ),
    "a clock that does not say that something is parked": (
        ("HDEL", "clock", "parked"),
        {("parked is looked at", "api")},
    ),
    "a place that its key does not know": (
        ("ZREM", "gate_places:api", "api|#||"),
        {
            ("a place has tasks", "api|#||"),
            ("a key has parked tasks", "api"),
            ("parked of a key", "api"),
        },
    ),
    "a place at which nobody waits": (
        ("ZADD", "gate_places:api", 0, "api||#|"),
        {("a place has tasks", "api||#|")},
    ),
    "a tenant without its turn": (
        ("ZREM", "gate_turns:api|#||", "0000000000000001 tenant:waits"),
        {("parked has its turn", TURN), ("parked of a key", "api")},
    ),
    "a turn of nobody": (
        ("ZADD", "gate_turns:api|#||", 0, "0000000000000009 tenant:nobody"),
        {("parked has its turn", "tenant:nobody api|#||")},
    ),
    "a turn by a task that is not the first": (
        ("ZADD", "gate_turns:api|#||", 0, "0000000000000002 tenant:waits"),
        {("parked has its turn", TURN), ("parked of a key", "api")},
    ),
    "a key whose tasks are not counted": (
        ("HDEL", "gate_waiting", "api"),
        {("parked is looked at", "api")},
    ),
    "a key that counts too many": (
        ("HINCRBY", "gate_waiting", "api", 1),
        {("parked of a key", "api")},
    ),
    "a key whose time stands still": (
        ("HDEL", "gate_virtual", "api"),
        {("parked is looked at", "api")},
    ),
    "a count of a key at which nobody waits": (
        ("HSET", "gate_waiting", "db", 1),
        {("a key has parked tasks", "db"), ("parked of a key", "db")},
    ),
    "a debt at a key at which nobody waits": (
        ("ZADD", "gate_finish:db", 1, "tenant:waits"),
        {("a key has parked tasks", "db")},
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(parked: Callable[[], Audit], client: Redis, name: str) -> None:
    (command, key, *args), expected = PLANTED[name]
    client.execute_command(command, "{fairness}:" + key, *args)
    assert {(each.check, each.name) for each in parked().findings} == expected
