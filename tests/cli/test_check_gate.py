"""The check finds and repairs each difference that is planted in what a gate has parked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from celery_fairness import Fairness
from celery_fairness.config.queue_limits import PARKED_QUEUES
from celery_fairness.limiter.types import Copy, Lease, Parking, SlotRequest
from tests.cli.conftest import named
from tests.support.parts import parts_of
from tests.support.waiting import at_most, eventually

#: Server time in ms that never comes.
FAR = 9_000_000_000_000
API, DB, RATE = "api|C1|w", "db|C1|w", "rate|R3/60000|w"


@pytest.fixture(params=["fairredis", "redis"])
def parked(
    request: Any, redis_url: str, client: Redis, make_fairness: Callable[..., Fairness]
) -> Fairness:
    """Two tasks wait for one limit, and one of them expires; one was promoted, and one was sent."""
    client.flushdb()
    of_scheme = {"fairredis": "", "redis": redis_url}
    fairness = make_fairness(url=of_scheme[request.param])
    limiter = parts_of(fairness).limiter

    def ask(name: str, *limits: str) -> SlotRequest:
        keys = (each.partition("|")[0] for each in limits)
        lease = Lease(name, ",".join((f"tenant:{name}", *keys)))
        return SlotRequest(lease, name, "free", Copy(name), f"n{name}", ",".join(limits))

    limiter.acquire(ask("holds", API))
    assert limiter.park(ask("waits", API, DB), "{}") is Parking.PARKED
    assert limiter.park(ask("expires", API), "{}", FAR) is Parking.PARKED
    for name in ("sent", "promoted"):
        assert limiter.park(ask(name, RATE), "{}") is Parking.PARKED
    tasks = {task.copy.message: task for task in limiter.promote(16).tasks}
    assert set(tasks) == {"sent", "promoted"}
    limiter.end_promotion(tasks["sent"], "sent")
    return fairness


def lease_of(client: Redis, tag: str) -> str:
    """Return the name of the lease of a promoted task."""
    (row,) = [row for field, row in client.hgetall("{fairness}:running").items() if field == tag]
    return f"{tag}.{row.split(' ')[0]}"


def queue_of(client: Redis) -> str:
    """Return the queue of the parked tasks."""
    (queue,) = client.hkeys("{fairness}:waiting")
    assert queue.startswith(PARKED_QUEUES)
    return str(queue)


def test_nothing_is_found_where_everything_agrees(parked: Fairness) -> None:
    assert parked.check().findings == ()


#: QUEUE, SENT and PROMOTED stand for the queue and for the leases.
PLANTED: dict[str, tuple[tuple[Any, ...], set[tuple[str, str, str]]]] = {
    "a promoted task without its record": (
        ("HDEL", "tasks", "promoted"),
        {
            ("promotion_without_task", "running", "promoted"),
            ("message_without_task", "messages", "promoted"),
        },
    ),
    "a task that its broker has, with a record": (
        ("HSET", "tasks", "sent", "9 1 0 1 0 sent  free   - -  QUEUE"),
        {("sent_task_known", "running", "sent"), ("message_lost", "tasks", "sent")},
    ),
    "a start that nobody has reserved": (
        ("ZADD", "reserved:rate", "inf", "gone.1.x"),
        {("start_without_promotion", "reserved:rate", "gone.1.x")},
    ),
    "a start that was reserved at another key": (
        ("ZADD", "reserved:api", "inf", "SENT"),
        {("start_without_promotion", "reserved:api", "SENT")},
    ),
    "a promotion that is not counted": (
        ("ZREM", "leases:rate", "PROMOTED"),
        {("task_not_counted", "leases:rate", "PROMOTED")},
    ),
    "a promotion that never ends": (
        ("ZREM", "ends", "SENT"),
        {("task_without_end", "running", "sent")},
    ),
    "a clock without the flag that tasks are parked": (
        ("HDEL", "clock", "parked"),
        {("flag_missing", "clock", "parked")},
    ),
    "a tenant without its turn": (
        ("ZREM", "blocked:QUEUE", "tenant:waits"),
        {
            ("task_without_turn", "tenant_state:tenant:waits", "QUEUE"),
            ("queue_count", "waiting", "QUEUE"),
        },
    ),
    "a limit at which nobody looks": (
        ("DEL", "waiters:api"),
        {
            ("blocked_lane_lost", "blocked_lanes:tenant:expires api|C#|w QUEUE", ""),
            ("blocked_lane_lost", "blocked_lanes:tenant:waits api|C#|w,db|C#|w QUEUE", ""),
        },
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found_and_repaired(parked: Fairness, client: Redis, name: str) -> None:
    names = {"QUEUE": queue_of(client)}
    names |= {tag.upper(): lease_of(client, tag) for tag in ("sent", "promoted")}

    def said(word: Any) -> Any:
        for short, long in names.items():
            word = word.replace(short, long) if isinstance(word, str) else word
        return word

    (command, key, *args), rows = PLANTED[name]
    expected = {(check, said(table), said(row)) for check, table, row in rows}
    client.execute_command(command, "{fairness}:" + said(key), *map(said, args))
    assert named(parked.check()) == expected
    repaired = parked.check(repair=True)
    assert named(repaired) <= expected
    # Only a person can say what a message without its record means, or a record without it.
    left = {each.check for each in repaired.findings if not each.repaired}
    assert left <= {"message_without_task", "message_lost"}
    assert {each.check for each in parked.check().findings} == left - {"message_lost"}


def test_the_flag_is_missed_too_if_every_parked_task_is_promoted(
    parked: Fairness, client: Redis
) -> None:
    for tenant in ("waits", "expires"):
        assert parked.tenants.purge(tenant).cancelled == 1
    client.hdel("{fairness}:clock", "parked")
    assert named(parked.check()) == {("flag_missing", "clock", "parked")}


@pytest.mark.parametrize(
    "gone", ["clock", "waiters:*", "blocked_lanes:*", "available:*", "waiting"]
)
def test_whatever_key_is_gone_a_repaired_gate_promotes(
    parked: Fairness, client: Redis, gone: str
) -> None:
    client.delete(*client.keys("{fairness}:" + gone))
    parked.check(repair=True)
    assert parked.check().findings == ()
    limiter = parts_of(parked).limiter
    limiter.release([Lease("holds", "tenant:holds,api")])
    eventually(lambda: limiter.promote(16).tasks, at_most(10))
