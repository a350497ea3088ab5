"""When a task that a gate has parked is expected to start, against when it does."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.tiers import Tier
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Admitted, Job, Parking
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from celery_fairness.util.durations import Milliseconds
from tests.contract.test_parked import again, ask, park, take
from tests.support.parts import parts_of

STEP_MS = 100


def test_a_task_that_a_gate_parked_starts_when_its_rate_lets_it(client, redis_url, make_fairness):
    client.flushdb()
    fairness = make_fairness(url=redis_url)
    hourly, one = Limit("mail", rate=((1, 3_600_000),)), Limit("api", concurrency=1)
    for limit in (hourly, one):
        take(parts_of(fairness).limiter, limit)
        for number in range(2):
            park(parts_of(fairness).limiter, ask(f"{limit.key}{number}", limit))
    assert 7_000 < fairness.tasks.explain("mail1").starts_in_seconds <= 7_201
    # None of the key has ended: how long they are held nobody knows.
    assert fairness.tasks.explain("api1").starts_in_seconds is None


def test_what_goes_before_a_parked_task_is_counted_by_turns_and_weights(
    client, redis_url, make_fairness
):
    client.flushdb()
    tiers = {"free": {"concurrency": None}, "pro": {"concurrency": None, "weight": 2.0}}
    fairness = make_fairness(url=redis_url, fairness={"tiers": tiers})
    fairness.tenants.publish_tiers([Tier("free", None), Tier("pro", None, weight=2.0)])
    spaced = Limit("mail", throttle=((1, 10_000),))
    take(parts_of(fairness).limiter, spaced)
    for number in range(20):
        park(parts_of(fairness).limiter, ask(f"flood{number}", spaced, tenant="flood"))
    for number in range(5):
        heavy = replace(ask(f"heavy{number}", spaced, tenant="heavy"), tier="pro")
        park(parts_of(fairness).limiter, heavy)
        park(parts_of(fairness).limiter, ask(f"quiet{number}", spaced, tenant="quiet"))
    # flood0 heavy0 quiet0 heavy1 | flood1 heavy2 quiet1 heavy3 | flood2 heavy4 quiet2 ...
    for name, place in {"flood0": 1, "quiet0": 3, "heavy3": 8, "quiet2": 11, "flood9": 20}.items():
        told = fairness.tasks.explain(name)
        assert told.starts_in_seconds == pytest.approx(10 * place, abs=11), name
        assert told.ahead_in_lane == int(name[-1])


class GateLoad:
    """Parked tasks of one limit, promoted and run on a clock that is moved; each takes as long."""

    def __init__(self, client, redis_url, fairness, limit, takes):
        self.client, self.limit, self.takes = client, limit, takes
        address = address_from_url(redis_url)
        self.now = 1_760_000_000_000
        self.limiter = Limiter(
            Connection(address), fairness.settings, frozen_clock=lambda: Milliseconds(self.now)
        )
        self.runs, self.requests, self.started = [], {}, {}

    def send(self, tenant, number):
        request = replace(
            ask(f"{tenant}{number}", self.limit, tenant=tenant),
            job=Job(f"{tenant}{number}", "shop.send", ""),
        )
        self.requests[f"{tenant}{number}"] = request
        if isinstance(self.limiter.acquire(request), Admitted):
            self.runs.append((self.now + self.takes, request.lease))
        else:
            assert self.limiter.park(request, "{}") is Parking.PARKED

    def be_now(self):
        """This moment is that of the server: the logical clock stands where it was."""
        now = int(time.time() * 1000)
        self.runs = [(end + now - self.now, lease) for end, lease in self.runs]
        self.now = now
        self.client.hset("{fairness}:clock", "seen", now)

    def play(self, ms):
        for _ in range(ms // STEP_MS):
            self.now += STEP_MS
            self.limiter.renew([lease for _, lease in self.runs])
            for ends, lease in [each for each in self.runs if each[0] <= self.now]:
                self.limiter.release([lease])
                self.runs.remove((ends, lease))
            for task in self.limiter.promote(16).tasks:
                name = task.copy.message
                self.limiter.end_promotion(task, "sent")
                came = again(self.requests[name], task)
                assert isinstance(self.limiter.acquire(came), Admitted)
                self.runs.append((self.now + self.takes, came.lease))
                self.started[name] = self.now


@pytest.mark.parametrize("slots", [1, 3])
def test_a_parked_task_starts_when_explain_expects_it(client, redis_url, make_fairness, slots):
    client.flushdb()
    free = {"tiers": {"free": {"concurrency": None}}}
    fairness = make_fairness(url=redis_url, fairness=free)
    load = GateLoad(client, redis_url, fairness, Limit("api", concurrency=slots), takes=4_000)
    for number in range(12):
        load.send("flood", number)
        if number % 4 == 0:
            load.send("quiet", number)
    load.play(6_000)
    load.be_now()
    expected = {
        name: fairness.tasks.explain(name).starts_in_seconds
        for name in load.requests
        if client.hexists("{fairness}:tasks", name)
    }
    told = fairness.tasks.explain("flood11")
    assert len(expected) >= 9
    (blocker,) = told.blocked_by
    assert [each.held_seconds is not None for each in blocker.holders] == [True] * slots
    asked, _ = load.now, load.play(90_000)
    for name, seconds in expected.items():
        waited = (load.started[name] - asked) / 1_000
        assert waited / 2 - 0.2 <= seconds <= 2 * waited + 0.2, (name, seconds, waited)
