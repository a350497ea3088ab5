"""What a gate tells of a task, once each, and where it remembers that it did."""

from __future__ import annotations

import itertools

import pytest
from redis import Redis

from celery_fairness.config.limit_spec import OF_QUEUE, Limit, write_limits
from celery_fairness.config.queue_limits import CLEARED, SET
from celery_fairness.config.settings import Enforcement
from celery_fairness.config.tenants import key_part
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
from celery_fairness.store.keys import Names
from tests.contract.conftest import override_key, stop_key

NAMES = Names("fairness")
KEEP_MS = 1_200_000
ONE = Limit("api", concurrency=1)

_ids = itertools.count(1)


def ask(name: str, *limits: Limit, tenant: str = "", serial: str = "", **more) -> SlotRequest:
    keys = [f"tenant:{tenant}"] * bool(tenant) + [limit.key for limit in limits]
    lease = Lease(f"{name}.{next(_ids)}", ",".join(keys))
    asked = {"copy": Copy(name, serial), "job": Job(name, "shop.pay", "q"), **more}
    words = write_limits(limits)
    return SlotRequest(lease, tenant, "free", next_serial="s2", limits=words, **asked)


def emitted(client: Redis, *fields: str) -> list[tuple[str, ...]]:
    """Return the type of each event of a limit, without its family, and some of its fields."""
    events = [event for _, event in client.xrange(NAMES.events)]
    events = [each for each in events if each["type"].startswith("rate_limit.")]
    short = [each["type"].removeprefix("rate_limit.") for each in events]
    return [
        (what, *(event.get(name, "") for name in fields))
        for what, event in zip(short, events, strict=True)
    ]


def reject(limiter: Limiter, request: SlotRequest) -> Rejected:
    answer = limiter.acquire(request)
    assert isinstance(answer, Rejected), answer
    return answer


def admit(limiter: Limiter, request: SlotRequest, *enforcement: Enforcement) -> Lease:
    answer = limiter.acquire(request, *enforcement)
    assert isinstance(answer, Admitted), answer
    return answer.lease


@pytest.fixture
def limiter(make_limiter) -> Limiter:
    return make_limiter(frozen=True)


HOW = pytest.mark.parametrize("how", [{"tenant": "42"}, {"limits": (ONE,)}])


def by(how, name, **more):
    how = dict(how)
    return ask(name, *how.pop("limits", ()), **how, **more)


@HOW
def test_a_task_that_is_admitted_at_once_costs_no_command(limiter, client, commands, how):
    admit(limiter, by(how, "warm"))
    with commands() as first:
        admit(limiter, by(how, "t1", job=None), Enforcement.OFF)
    with commands() as second:
        admit(limiter, by(how, "t2"), Enforcement.OFF)
    # It is counted (test_gate_minutes.py).
    assert second == {**first, "hincrby": first.get("hincrby", 0) + 1}
    assert emitted(client) == []
    assert not client.exists(NAMES.of("copy", "t1"), NAMES.of("copy", "t2"))


@HOW
def test_a_first_rejection_writes_one_entry_and_the_others_none(limiter, client, commands, how):
    admit(limiter, by(how, "held"))
    counted = []
    for _ in range(3):
        with commands() as ran:
            reject(limiter, by(how, "t1"))
        counted.append(ran.get("xadd", 0))
    assert counted == [1, 0, 0]


@HOW
def test_nothing_is_emitted_of_a_task_without_an_id(limiter, client, how):
    lease = admit(limiter, by(how, "held"))
    reject(limiter, by(how, "t1", job=None))
    # Without a copy nobody would know that it was told.
    reject(limiter, by(how, "t2", copy=None))
    limiter.release([lease])
    for request in (by(how, "t1", serial="s2", job=None), by(how, "t2", copy=None)):
        limiter.release([admit(limiter, request)])
    assert emitted(client) == []


@HOW
@pytest.mark.parametrize("enforcement", [Enforcement.OFF, Enforcement.OBSERVE])
def test_where_nothing_is_enforced_nothing_is_rejected_and_who_waited_is_released(
    limiter, client, how, enforcement
):
    admit(limiter, by(how, "held"))
    reject(limiter, by(how, "t1"))
    admit(limiter, by(how, "t1", serial="s2"), enforcement)
    admit(limiter, by(how, "t2"), enforcement)
    assert emitted(client, "job_id") == [("exceeded", "t1"), ("released", "t1")]


@HOW
def test_any_queue_can_be_reported_and_an_odd_id_as_keys_have_it(limiter, client, how):
    odd = 'a"b\\ \n\ud800 é'
    admit(limiter, by(how, "held"))
    reject(limiter, by(how, "t1", job=Job(odd, "shop.pay", odd)))
    whole = 'a"b\\ \n? é'
    assert emitted(client, "job_id", "queue") == [("exceeded", key_part(whole), whole)]


def test_a_superseded_copy_tells_nothing(limiter, client):
    lease = admit(limiter, ask("held", ONE))
    reject(limiter, ask("t1", ONE))
    limiter.release([lease])
    answer = reject(limiter, ask("t1", ONE, serial="another"))
    assert answer.reason is Reason.SUPERSEDED
    assert emitted(client) == [("exceeded",)]


def test_a_task_that_is_dropped_later_was_rejected_before(limiter, client):
    drops = Limit("full", concurrency=1, on_limit="drop")
    leases = [admit(limiter, ask("held", each)) for each in (ONE, drops)]
    reject(limiter, ask("t1", ONE))
    assert reject(limiter, ask("t1", ONE, drops, serial="s2")).action == "drop"
    assert emitted(client, "key") == [("exceeded", "api"), ("dropped", "full")]
    # Its result was not written: it is delivered again, and starts after all.
    limiter.release(leases)
    admit(limiter, ask("t1", ONE, drops, serial="s2"))
    assert emitted(client, "key")[2:] == [("released", "api")]


def test_a_start_is_reported_once_though_its_message_is_delivered_again(limiter, client):
    held = admit(limiter, ask("held", ONE))
    reject(limiter, ask("t1", ONE))
    limiter.release([held])
    # Its worker dies, and the same copy comes twice more.
    for _ in range(2):
        limiter.release([admit(limiter, ask("t1", ONE, serial="s2"))])
    assert emitted(client) == [("exceeded",), ("released",)]


def test_what_is_remembered_lasts_until_a_task_comes_back(limiter, client):
    daily = Limit("api", rate=((1, 86_400_000),), on_limit="reschedule")
    admit(limiter, ask("held", daily))
    assert reject(limiter, ask("t1", daily)).retry_after_seconds == 86_400.001
    assert client.pttl(NAMES.of("copy", "t1")) > 86_400_000 + KEEP_MS - 60_000
    reject(limiter, ask("t2", Limit("db", concurrency=0)))
    assert client.pttl(NAMES.of("copy", "t2")) <= KEEP_MS


def park(limiter: Limiter, request: SlotRequest) -> None:
    reject(limiter, request)
    assert limiter.park(request, "message") is Parking.PARKED


@pytest.mark.parametrize("before", [{}, {"admitted": ""}])
def test_the_memory_of_a_parked_task_is_whole_and_ends_by_itself(limiter, client, before):
    """What its rejection remembered may be lost before it is parked."""
    copy = NAMES.of("copy", "t1")
    if before:
        client.hset(copy, mapping=before)
    assert limiter.park(ask("t1", ONE), "message") is Parking.PARKED
    assert client.hgetall(copy) == {"current": "s2", "next": "s2", "seq": "1", "reported": ""}
    assert 0 < client.pttl(copy) <= KEEP_MS


def test_a_parked_task_that_waits_for_longer_than_copies_are_kept_is_released(
    limiter, client, clock
):
    lease = admit(limiter, ask("held", ONE))
    park(limiter, ask("t1", ONE))
    client.delete(NAMES.of("copy", "t1"))
    limiter.release([lease])
    (task,) = limiter.promote(1).tasks
    limiter.end_promotion(task, "sent")
    # It is rejected once more, and goes back to its place.
    stop_key(limiter, clock, "pause", "api")
    park(limiter, ask("t1", ONE, serial=task.copy.serial))
    client.delete(NAMES.of("copy", "t1"))
    stop_key(limiter, clock, "resume", "api")
    clock.advance(1)
    (task,) = limiter.promote(1).tasks
    admit(limiter, ask("t1", ONE, serial=task.copy.serial))
    assert [what for (what,) in emitted(client) if "." not in what] == ["exceeded", "released"]


@pytest.mark.parametrize(
    ("limit", "strategy", "most", "current"),
    [
        (Limit("api", concurrency=1), "concurrency", "1", "0"),
        (Limit("api", concurrency=2, rate=((2, 1_000),)), "concurrency", "2", "0"),
        (Limit("api", rate=((1, 1_000), (9, 60_000))), "rate", "1", "1"),
        (Limit("api", throttle=((1, 1_000),)), "throttle", "1", "1"),
    ],
)
def test_a_task_behind_others_is_rejected_by_what_they_wait_for(
    limiter, client, clock, limit, strategy, most, current
):
    held = [admit(limiter, ask("held", limit)) for _ in range(limit["concurrency"] or 1)]
    park(limiter, ask("t1", limit))
    limiter.release(held)
    for _ in range(12):
        clock.advance(5)
        limiter.renew([])
    assert reject(limiter, ask("t2", limit)).reason is Reason.BEHIND_OTHERS
    assert emitted(client, "job_id", "strategy", "limit", "current")[1:] == [
        ("exceeded", "t2", strategy, most, current)
    ]


@pytest.mark.parametrize("case", ["cool", "pause", "override", "clear", "whole"])
def test_a_task_behind_others_at_a_key_without_numbers_is_rejected_by_it(
    limiter, client, clock, case
):
    """What they waited for is over, and they were not promoted yet."""
    key, limits = "api", (Limit("api"),)
    if case == "cool":
        stop_key(limiter, clock, "cool", key, 2.0)
        park(limiter, ask("t1", *limits))
        clock.advance(2.05)
    elif case == "pause":
        stop_key(limiter, clock, "pause", key)
        park(limiter, ask("t1", *limits))
        stop_key(limiter, clock, "resume", key)
    elif case == "override":
        limits = (ONE,)
        held = admit(limiter, ask("held", ONE))
        park(limiter, ask("t1", ONE))
        override_key(limiter, clock, key, None, concurrency=None)
        limiter.release([held])
    elif case == "clear":
        key, limits = "queue:emails", (Limit("queue:emails", of=OF_QUEUE),)
        limiter.limit_queue(SET, "emails", Limit("", concurrency=1))
        held = admit(limiter, ask("held", *limits))
        park(limiter, ask("t1", *limits))
        limiter.limit_queue(CLEARED, "emails")
        limiter.release([held])
    else:
        key = "queue:emails"
        limits = (Limit("queue:emails:7", of=OF_QUEUE), Limit("queue:emails"))
        stop_key(limiter, clock, "pause", key)
        park(limiter, ask("t1", *limits))
        stop_key(limiter, clock, "resume", key)
    answer = reject(limiter, ask("t2", *limits))
    assert (answer.reason, answer.key) == (Reason.BEHIND_OTHERS, key)
    assert emitted(client, "job_id", "key", "strategy", "limit", "current")[-1] == (
        ("exceeded", "t2", key, "concurrency", "0", "0")
    )


@pytest.mark.parametrize(
    "limit", [Limit("api", concurrency=1), Limit("api", rate=((9, 1_000), (1, 1_000)))]
)
def test_what_is_promised_to_others_counts_as_held(limiter, client, clock, limit):
    held = admit(limiter, ask("held", limit))
    park(limiter, ask("t1", limit))
    limiter.release([held])
    clock.advance(1.1)
    assert len(limiter.promote(1).tasks) == 1
    reject(limiter, ask("t2", limit))
    strategy = "concurrency" if limit["concurrency"] else "rate"
    assert emitted(client, "job_id", "strategy", "limit", "current")[1:] == [
        ("exceeded", "t2", strategy, "1", "1")
    ]


@pytest.mark.parametrize(("most", "limit"), [(1, "1"), (None, "0")])
def test_a_task_behind_others_of_its_tenant_is_rejected_by_the_tier(
    make_limiter, client, most, limit
):
    limiter = make_limiter(tier_on_limit="wait")
    held = admit(limiter, ask("held", tenant="42"))
    park(limiter, ask("t1", tenant="42"))
    limiter.release([held])
    limiter.publish_tenant("42", "free", {"concurrency": most})
    assert reject(limiter, ask("t2", tenant="42")).reason is Reason.BEHIND_OTHERS
    assert emitted(client, "job_id", "key", "strategy", "limit", "current")[1:] == [
        ("exceeded", "t2", "tenant:42", "concurrency", limit, "0")
    ]


def test_a_shared_limit_under_the_key_of_a_tier_is_reported_by_its_own_numbers(limiter, client):
    own = Limit("tenant:42", concurrency=1)
    limiter.publish_tenant("42", "free", {"concurrency": 3})
    admit(limiter, ask("held", own, tenant="42"))
    reject(limiter, ask("t1", own, tenant="42"))
    assert emitted(client, "key", "limit", "current") == [("exceeded", "tenant:42", "1", "1")]
