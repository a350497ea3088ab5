"""What workers that only observe would have rejected: counts by hour, tier and tenant."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import Limit, write_limits
from celery_fairness.config.settings import Enforcement
from celery_fairness.control.health.observed import HOUR_MS, MINUTE_MS
from celery_fairness.limiter.types import Admitted, Job, Lease, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Rules
from celery_fairness.store.keys import Names
from tests.lua.dispatching import NOW, PREFIX, Dispatch

NAMES = Names("fairness")
#: Fields of an hour. Claims and gates count more tenants of a tier as one.
FIELDS_AT_MOST = 500
#: An hour of these counts is read for a day, and until its own hour has passed.
KEPT_MS = 25 * HOUR_MS
HOUR = f"stats:{NOW // HOUR_MS * 60}"

_ids = itertools.count(1)


def observed(client):
    """Return the fields of all hours together, without the word before them."""
    fields = {}
    for key in client.scan_iter("*stats:*"):
        fields |= client.hgetall(key)
    word = "observed "
    return {name[len(word) :]: each for name, each in fields.items() if name.startswith(word)}


def claims(client, enforcement="observe"):
    return Dispatch(client, Rules(enforcement=enforcement, default_limit=1))


def admit(limiter, tenant, enforcement=Enforcement.OBSERVE, *limits):
    keys = [f"tenant:{tenant}"] + [limit.key for limit in limits]
    name = f"l{next(_ids)}"
    job = Job(name, "shop.pay", "q")
    lease = Lease(name, ",".join(keys))
    request = SlotRequest(lease, tenant, "free", None, "s2", write_limits(limits), job)
    answer = limiter.acquire(request, enforcement)
    assert isinstance(answer, Admitted), answer
    return answer


@pytest.fixture
def limiter(make_limiter):
    return make_limiter(frozen=True)


@pytest.mark.parametrize("want", [1, 10])
def test_a_claim_counts_each_task_above_the_limit_and_the_most_at_once(client, redis_url, want):
    dispatch = claims(client)
    for tenant, tasks in (("a", 3), ("b", 1), ("c", 2)):
        for _ in range(tasks):
            dispatch.put(tenant, tier="free")
    tasks = dispatch.claim_all(want)
    assert len(tasks) == 6
    assert observed(client) == {"free tenant:a": "2 3", "free tenant:c": "1 2"}
    dispatch.settle(tasks)
    for _ in range(2):
        dispatch.put("a", tier="free")
    dispatch.claim_all(want)
    assert observed(client)["free tenant:a"] == "3 3"


def test_a_gate_counts_each_task_above_the_limit_and_the_most_at_once(limiter, client, clock):
    for tenant in ("a", "b", "a", "a"):
        admit(limiter, tenant)
    key = NAMES.of("stats", str(clock.now_ms // HOUR_MS * 60))
    assert observed(client) == {"free tenant:a": "2 3"}
    assert KEPT_MS - 60_000 < client.pttl(key) <= KEPT_MS


def test_another_limit_is_not_counted(limiter, client):
    for _ in range(2):
        admit(limiter, "a", Enforcement.OBSERVE, Limit("api", concurrency=0))
        limiter.publish_tenant("a", "free", {"concurrency": 9})
    assert observed(client) == {}


@pytest.mark.parametrize("enforcement", ["on", "off"])
def test_a_worker_that_does_not_observe_counts_nothing(limiter, client, enforcement):
    dispatch = claims(client, enforcement)
    for _ in range(3):
        dispatch.put("a", tier="free")
    dispatch.claim_all()
    admit(limiter, "b", Enforcement(enforcement))
    limiter.acquire(SlotRequest(Lease("again", "tenant:b"), "b", "free"), Enforcement(enforcement))
    assert observed(client) == {}


def test_a_tenant_that_may_run_nothing_waits_and_is_not_counted(client, redis_url):
    dispatch = Dispatch(client, Rules(enforcement="observe", default_limit=0))
    dispatch.put("a", tier="free")
    assert dispatch.claim_all() == []
    assert observed(client) == {}


def test_a_promotion_counts_nothing_because_its_gate_does(make_limiter, client):
    limiter = make_limiter(frozen=True, tier_on_limit="wait")
    admit(limiter, "a", Enforcement.ON)
    job = Job("id", "shop.pay", "q")
    parked = SlotRequest(Lease("p", "tenant:a"), "a", "free", Copy("m1"), "s2", "", job)
    limiter.acquire(parked)
    limiter.park(parked, "message")
    observing = make_limiter(frozen=True, tier_on_limit="wait", enabled="observe")
    (task,) = observing.promote(1, Enforcement.OBSERVE).tasks
    assert observed(client) == {}
    observing.acquire(replace(parked, copy=task.copy), Enforcement.OBSERVE)
    assert observed(client) == {"free tenant:a": "1 2"}


@pytest.mark.parametrize("path", ["claim", "gate"])
def test_of_too_many_tenants_the_others_of_a_tier_are_one(limiter, client, clock, path):
    clock.now_ms = NOW
    key = PREFIX + HOUR
    many = {f"observed free tenant:{n}": "1 2" for n in range(FIELDS_AT_MOST - 1)}
    client.hset(key, mapping=many)
    dispatch = claims(client)
    for tenant in ("x", "y", "x", "z"):
        for _ in range(3):
            if path == "gate":
                admit(limiter, tenant)
            else:
                dispatch.put(tenant, tier="free")
        dispatch.claim_all()
    # Nothing has ended, so a tenant that comes again has more tasks at once.
    assert client.hmget(key, "observed free tenant:x", "observed free tenant:y") == ["5 6", None]
    assert client.hget(key, "observed free _other") == "4 3"
    assert client.hlen(key) == FIELDS_AT_MOST + 1


def test_each_hour_has_counts_of_its_own(client, redis_url):
    dispatch = claims(client)
    for now in (NOW, NOW + HOUR_MS):
        dispatch.now = now
        for _ in range(2):
            dispatch.put("a", tier="free")
        dispatch.settle(dispatch.claim_all())
    keys = [f"{PREFIX}stats:{(NOW // HOUR_MS + number) * 60}" for number in (0, 1)]
    assert [client.hgetall(key) for key in keys] == [{"observed free tenant:a": "1 2"}] * 2


def test_it_is_neither_in_the_sums_of_minutes_nor_lost_in_the_first_of_them(client, redis_url):
    dispatch = claims(client)
    dispatch.now = first = NOW // HOUR_MS * HOUR_MS
    for now in (first, first + MINUTE_MS):
        dispatch.now = now
        for _ in range(2):
            dispatch.put("a", tier="free")
        dispatch.settle(dispatch.claim_all())
    key = f"{PREFIX}stats:{first // MINUTE_MS}"
    assert client.hget(key, "observed free tenant:a") == "2 2"
    assert KEPT_MS - 60_000 < client.pttl(key) <= KEPT_MS
    client.hset(f"{PREFIX}clock", "last_total", str(first // MINUTE_MS - 1))
    for _ in range(2):
        args = calls.announce_args(Rules(), "{}", 15_000, None, str(first + 2 * MINUTE_MS))
        dispatch.run(calls.ANNOUNCE, args)
    totals = client.hgetall(f"{PREFIX}totals")
    assert totals["rejected free q"] == "2"
    assert not [field for field in totals if "observed" in field]
