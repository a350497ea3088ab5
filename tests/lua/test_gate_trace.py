"""What becomes of each task behind a gate, emitted while a trace is on."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from celery_fairness.config.settings import Enforcement
from celery_fairness.limiter.types import Admitted, Job, Lease, Parking, Rejected, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler import calls
from celery_fairness.store.keys import Names

NAMES = Names("fairness")
STREAM = NAMES.prefix + "trace"
API = "api|C1|w"
TASK = {"job_id": "t1", "job_type": "shop.pay", "queue": "q"}
ATTEMPT = {**TASK, "key": "tenant:42", "attempt": "", "owner": "w1"}
STARTED = {"type": "task.started", **ATTEMPT, "waited_seconds": ""}
ENDED = {"type": "task.ended", **ATTEMPT, "outcome": "done", "ran_seconds": "0.000"}

_numbers = itertools.count(1)


def ask(words="", tenant="42", job=True, worker="w1"):
    names = [f"tenant:{tenant}"] * bool(tenant)
    names += [each.partition("|")[0] for each in words.split(",") if each]
    lease = Lease(f"{worker}@{next(_numbers)}", ",".join(dict.fromkeys(names)))
    copy = Copy(f"m{next(_numbers)}")
    return SlotRequest(
        lease, tenant, "pro", copy, "s2", words, Job("t1", "shop.pay", "q") if job else None
    )


@pytest.fixture(params=["", API, "tenant:42|C9|w"], ids=["tier", "other", "one key"])
def words(request):
    """Beside its tier's limit a task has none, another, or one of the same key."""
    return request.param


@pytest.fixture
def limiter(make_limiter):
    return make_limiter(frozen=True)


@pytest.fixture
def watch(limiter, clock):
    def begin(wait_ms=60_000):
        args = calls.trace_args(wait_ms, str(clock.now_ms))
        return limiter.connection.run(calls.TRACE, NAMES.prefix, args)

    return begin


@pytest.fixture
def emitted(client):
    def read():
        return [each for _, each in client.xrange(STREAM) if each["type"] != "trace.started"]

    return read


@pytest.mark.parametrize(("key", "named"), [("tenant:42", "tenant:42"), ("", "_system")])
@pytest.mark.parametrize("ahead_ms", [-1, 0, 5_000], ids=["past", "now", "later"])
def test_a_put_is_reported_while_somebody_watches(
    limiter, watch, emitted, clock, key, named, ahead_ms
):
    def put():
        job, at = "t1 shop.pay q", str(clock.now_ms + ahead_ms)
        args = (job, key, "pro", "0.5", at, str(clock.now_ms))
        return limiter.connection.run(calls.TRACE_PUT, NAMES.prefix, args)

    assert put() == 0
    watch(1_000)
    assert put() == 1
    eta = str(clock.now_ms + max(0, ahead_ms))
    number = {"tier": "pro", "cost": "0.5", "rank": "", "eta": eta}
    assert emitted() == [{"type": "task.put", **TASK, "key": named, **number}]
    clock.advance(1)
    assert put() == 0
    assert len(emitted()) == 1


def test_nothing_is_emitted_while_no_trace_is_on(limiter, words, client):
    assert limiter.release([limiter.acquire(ask(words)).lease]) == 1
    assert not client.exists(STREAM)


def test_a_task_is_reported_from_its_start_to_its_end(limiter, watch, emitted, words, clock):
    watch()
    answer = limiter.acquire(ask(words))
    assert isinstance(answer, Admitted)
    assert emitted() == [STARTED]
    clock.advance(1.25)
    limiter.release_soon(answer.lease)
    limiter.release([answer.lease])
    assert emitted() == [STARTED, {**ENDED, "ran_seconds": "1.250"}]
    assert limiter.acquire(ask(words)).held == 1


def test_a_task_without_a_tenant_is_reported_too(limiter, watch, emitted):
    watch()
    lease = limiter.acquire(ask(API, tenant="")).lease
    limiter.release([lease])
    of_system = {"key": "_system"}
    assert emitted() == [STARTED | of_system, ENDED | of_system]


def test_a_parked_task_has_waited_since_it_was_parked(limiter, watch, emitted, clock):
    holder, asked = limiter.acquire(ask(API)), ask(API)
    assert isinstance(limiter.acquire(asked), Rejected)
    assert limiter.park(asked, "message") is Parking.PARKED
    clock.advance(1.5)
    limiter.release([holder.lease])
    watch()
    (task,) = limiter.promote(1).tasks
    limiter.acquire(replace(ask(API), copy=task.copy))
    assert emitted() == [STARTED | {"waited_seconds": "1.500"}]


def test_asked_twice_it_has_started_once(limiter, watch, emitted, words):
    watch()
    request = ask(words)
    assert limiter.acquire(request) == limiter.acquire(request)
    assert emitted() == [STARTED]


def test_one_that_is_rejected_has_not_started(limiter, watch, emitted):
    limiter.acquire(ask(API))
    watch()
    assert isinstance(limiter.acquire(ask(API)), Rejected)
    assert emitted() == []


@pytest.mark.parametrize("enforcement", [Enforcement.OBSERVE, Enforcement.OFF])
def test_where_nothing_is_rejected_it_is_reported_as_well(limiter, watch, emitted, enforcement):
    limiter.acquire(ask(API), enforcement)
    watch()
    answer = limiter.acquire(ask(API), enforcement)
    assert (answer.over_limit, answer.held) == (enforcement is Enforcement.OBSERVE, 2)
    limiter.release([answer.lease])
    assert emitted() == [STARTED, ENDED]


def test_a_task_that_nobody_names_is_not_reported(limiter, watch, emitted):
    watch()
    limiter.release([limiter.acquire(ask(API, job=False)).lease])
    assert emitted() == []


def test_the_death_of_its_process_is_reported(limiter, watch, emitted, words):
    watch()
    lease = limiter.acquire(ask(words)).lease
    assert limiter.release([lease], died=True) == 1
    assert limiter.release([lease]) == 0
    assert emitted() == [STARTED, {**ENDED, "outcome": "died"}]


def test_a_lease_that_nobody_renews_is_reported_by_the_call_that_finds_it(
    limiter, watch, emitted, words, clock
):
    watch(600_000)
    limiter.acquire(ask(words))
    for _ in range(4):
        clock.advance(5)
        limiter.renew([])
    another = limiter.acquire(ask(words, worker="w2"))
    assert isinstance(another, Admitted)
    # It ended a lease after it began, whoever found it when.
    ended = {**ENDED, "outcome": "expired", "ran_seconds": "15.000"}
    assert emitted() == [STARTED, ended, STARTED | {"owner": "w2"}]


def test_the_end_of_one_that_began_before_the_watch_is_reported(limiter, watch, emitted, words):
    lease = limiter.acquire(ask(words)).lease
    watch()
    limiter.release([lease])
    assert emitted() == [ENDED]


def test_nothing_is_emitted_when_the_trace_is_over(limiter, watch, emitted, clock):
    watch(1_000)
    lease = limiter.acquire(ask(API)).lease
    clock.advance(1)
    limiter.release([lease])
    assert emitted() == [STARTED]
