"""Random operations on both limiters and one frozen clock: every answer is the same.

Invariant: live leases of a key never grow while they are at or above its limit.

Weakness: few keys, so that operations meet; what only many leases of one key show, `tests/lua`
looks at.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from celery_fairness.config.limit_spec import OF_QUEUE, WHOLE, Limit, write_limits
from celery_fairness.config.queue_limits import CLEARED, SET, QueueNumbers
from celery_fairness.config.settings import Enforcement, build_settings
from celery_fairness.config.tenants import tier_key
from celery_fairness.config.tiers import Tier
from celery_fairness.limiter.memory import InMemoryLimiter
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.limiter.types import Admitted, Job, Lease, Parking, Rejected, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from tests.contract.conftest import FrozenClock, override_key, stop_key

#: PROPERTY_EXAMPLES=400 looks longer than the suite does: at some 100,000 operations.
EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "25"))
#: Long sequences on few keys find what short ones miss, as of the scripts that claim
#: (``tests/model/test_against_lua.py``).
STEPS = 300

TENANTS = ("a", "b", "{c}")
TIERS = {"free": {"concurrency": 2}, "pro": {"concurrency": 3}}

tenants = st.sampled_from(TENANTS)
tiers = st.sampled_from(["free", "pro", "gold"])
limits = st.sampled_from([0, 1, 2, 3, None])
#: The limits beside the tier's that an attempt of each number has, by key.
LIMITED = [
    {limit.key: limit for limit in limits}
    for limits in (
        (),
        (),
        (Limit("api", 2),),
        (Limit("db", 3, rates=((4, 7_000),)), Limit("api", 1, on_limit="reschedule")),
        (Limit("mail", throttle=(3, 10_000)), Limit("db", rates=((2, 3_000), (5, 20_000)))),
        (Limit("once", rates=((1, 4_000),), on_limit="drop"), Limit("api", 2)),
        (Limit("off", 0), Limit("mail", 2, on_limit="reschedule")),
        # Of these no number is known, until people say one.
        (Limit("key"),),
        (Limit("queue:q", of=OF_QUEUE), Limit("key", on_limit="reschedule")),
        (Limit("queue:q:7", of=OF_QUEUE), Limit("queue:q", of=WHOLE)),
    )
]
KEYS = ("api", "db", "mail", "once", "key", "queue:q", "queue:q:7")
STOPPED = (*KEYS, *map(tier_key, TENANTS))
ANY_NUMBERS = st.fixed_dictionaries(
    {},
    optional={
        "concurrency": st.sampled_from([None, 0, 1, 3]),
        "rates": st.sampled_from([(), ((2, 3_000),)]),
        "throttle": st.sampled_from([None, (1, 1_000)]),
    },
)
QUEUE_NUMBERS = st.builds(
    QueueNumbers,
    st.sampled_from([None, 0, 1, 2]),
    st.sampled_from([(), ((2, 3_000),)]),
    st.sampled_from([None, (1, 1_000)]),
    st.sampled_from(["wait", "reschedule", "drop"]),
    st.sampled_from([None, None, 0, 1, 2]),
)


def lease_of(tenant, number):
    # Of two workers, and some of none.
    worker = {"a": "", "b": "w1@"}.get(tenant, "w2@")
    return Lease(f"{worker}{tenant}{number}", ",".join((tier_key(tenant), *LIMITED[number])))


numbers = st.integers(0, len(LIMITED) - 1)
leases = st.builds(lease_of, tenants, numbers)
serials = st.sampled_from(["", "s1", "s2", "s3"])
copies = st.builds(Copy, st.sampled_from(["m1", "m2"]), serials)

_namespaces = itertools.count(1)


class BothLimiters(RuleBasedStateMachine):
    """The same operations on the limiter in memory and the one in Redis."""

    url = ""

    def __init__(self):
        super().__init__()
        self.clock = FrozenClock()
        self.memory, self.redis = self.made("reschedule")
        self.epoch, self.serial = 0, 0
        #: Parked tasks that were promoted, by message: the copy and the request, as it comes again.
        self.promoted = {}
        self.asked = {}

    def made(self, tier_on_limit):
        namespace = f"property{next(_namespaces)}"
        values = build_settings(
            {"tiers": TIERS, "namespace": namespace, "tier_on_limit": tier_on_limit}
        )
        redis = RedisLimiter(Connection(address_from_url(self.url)), values, self.clock)
        return InMemoryLimiter(values, self.clock), redis

    def teardown(self):
        self.redis.close()

    def both(self, call):
        ours, theirs = call(self.memory), call(self.redis)
        if isinstance(ours, (Admitted, Rejected)):
            # What people say of a tenant is news in Redis alone, where directories hear it.
            assert ours.news <= theirs.news
            theirs = replace(theirs, news=ours.news)
        assert ours == theirs
        return ours

    @initialize(tier_on_limit=st.sampled_from(["reschedule", "wait"]))
    def begin(self, tier_on_limit):
        self.redis.close()
        self.memory, self.redis = self.made(tier_on_limit)
        self.epoch = self.both(lambda limiter: limiter.renew([])).epoch

    @rule(
        tenant=tenants,
        number=numbers,
        tier=tiers,
        charged=st.sampled_from([True, True, True, False]),
        copy=st.none() | copies,
        next_serial=serials,
        enforcement=st.sampled_from([Enforcement.ON] * 6 + [Enforcement.OBSERVE, Enforcement.OFF]),
    )
    def acquire(self, tenant, number, tier, charged, copy, next_serial, enforcement):
        named = lease_of(tenant, number)
        keys = [key for key in (tier_key(tenant) if charged else "", *LIMITED[number]) if key]
        if not keys:
            return
        lease = Lease(named.id, ",".join(dict.fromkeys(keys)))
        word = write_limits(tuple(LIMITED[number].values()))
        job = Job(lease.id, "shop.pay", "q")
        request = SlotRequest(lease, tenant if charged else "", tier, copy, next_serial, word, job)
        held = self.held(tenant)
        answer = self.both(lambda limiter: limiter.acquire(request, enforcement))
        if isinstance(answer, Admitted) and enforcement is Enforcement.ON and charged:
            # Either it held its slot before, or there was one free.
            assert answer.held == held or answer.limit is None or held < answer.limit

    @rule(
        tenant=tenants,
        number=numbers,
        tier=tiers,
        charged=st.booleans(),
        message=st.sampled_from(["m1", "m2", "p1", "p2", "p3", "p4", "p5"]),
        lives_ms=st.none() | st.sampled_from([1_000, 8_000]),
    )
    def come_to_a_gate(self, tenant, number, tier, charged, message, lives_ms):
        """A task comes for the first time, or as the copy that was promoted last."""
        copy, request = self.promoted.pop(message, (Copy(message), None))
        self.serial += 1
        if request is None:
            keys = [tier_key(tenant) if charged else "", *LIMITED[number]]
            lease = Lease(f"of {message}", ",".join(dict.fromkeys(key for key in keys if key)))
            word = write_limits(tuple(LIMITED[number].values()))
            if not lease.key:
                return
            tenant = tenant if charged else ""
            job = Job(message, "shop.pay", "q")
            request = SlotRequest(lease, tenant, tier, copy, f"n{self.serial}", word, job)
        request = replace(
            request,
            lease=replace(request.lease, id=f"w{1 + self.serial % 2}@{message}.{self.serial}"),
            copy=copy,
            next_serial=f"n{self.serial}",
        )
        answer = self.both(lambda limiter: limiter.acquire(request))
        if isinstance(answer, Admitted) or answer.action != "wait":
            return
        expires_ms = None if lives_ms is None else self.clock.now_ms + lives_ms
        parked = self.both(lambda limiter: limiter.park(request, f"{message}\n é", expires_ms))
        if parked is Parking.PARKED:
            self.asked[message] = request

    @rule(
        want=st.integers(1, 4),
        enforcement=st.sampled_from([Enforcement.ON] * 8 + [Enforcement.OFF]),
        comes=st.booleans(),
        published=st.booleans(),
    )
    def promote(self, want, enforcement, comes, published):
        self.serial += 1
        serial = f"s{self.serial}x"
        given = self.both(lambda limiter: limiter.promote(want, serial, enforcement))
        assert len(given.tasks) <= want
        for task in given.tasks:
            message = task.copy.message
            assert task.message == f"{message}\n é"
            if comes:
                self.promoted[message] = task.copy, self.asked[message]
        if published and given.tasks:
            messages = [task.copy.message for task in given.tasks]
            assert self.both(lambda limiter: limiter.unpark(messages)) == len(messages)

    @rule(message=st.sampled_from(["m1", "p1", "p2", "p3", "p9"]))
    def end_before_a_gate(self, message):
        request = self.asked.get(message)
        keys = request.lease.keys if request else ["api"]
        self.both(lambda limiter: limiter.forgo(message, keys))

    @rule(message=st.sampled_from(["p1", "p2", "p9"]))
    def cancel(self, message):
        self.both(lambda limiter: limiter.unpark([message], "cancelled"))

    @rule(wanted=st.lists(leases, max_size=4), known=st.sampled_from(["", "now", "before"]))
    def renew(self, wanted, known):
        epoch = {"": None, "now": self.epoch, "before": self.epoch - 1}[known]
        self.both(lambda limiter: limiter.renew(wanted, epoch))

    @rule(wanted=st.lists(leases, max_size=4))
    def release(self, wanted):
        self.both(lambda limiter: limiter.release(wanted))

    @rule(refused=copies, next_serial=serials)
    def supersede(self, refused, next_serial):
        self.both(lambda limiter: limiter.supersede(refused, next_serial))

    @rule(
        free=limits,
        pro=limits,
        with_free=st.booleans(),
        source=st.sampled_from(["database", "settings"]),
        force=st.booleans(),
    )
    def publish_tiers(self, free, pro, with_free, source, force):
        table = [Tier("pro", pro)] + ([Tier("free", free)] if with_free else [])
        self.both(lambda limiter: limiter.publish_tiers(table, source, force=force))

    @rule(tenant=tenants, tier=st.none() | tiers, number=st.just("") | limits)
    def publish_tenant(self, tenant, tier, number):
        number = number if tier else ""
        self.both(lambda limiter: limiter.publish_tenant(tenant, tier, number))

    @rule(seconds=st.sampled_from([0.001, 1.0, 4.999, 5.0, 5.001, 20.0, -3.0]))
    def advance(self, seconds):
        self.clock.advance(seconds)

    @rule(kept=st.lists(leases, max_size=4))
    def a_lease_time_passes(self, kept):
        """A worker keeps some leases, and the others of it are of the dead."""
        for _ in range(3):
            self.clock.advance(5)
            self.both(lambda limiter: limiter.renew(kept))

    @rule(
        how=st.sampled_from(["pause", "resume", "cool", "clear"]),
        key=st.sampled_from(STOPPED),
        seconds=st.sampled_from([1.0, 9.0]),
        has_end=st.booleans(),
    )
    def stop(self, how, key, seconds, has_end):
        seconds = seconds if has_end or how != "pause" else 0.0
        self.both(lambda limiter: stop_key(limiter, self.clock, how, key, seconds))

    @rule(
        key=st.sampled_from(STOPPED),
        lasts_ms=st.none() | st.sampled_from([1_000, 8_000]),
        numbers=ANY_NUMBERS,
    )
    def override(self, key, lasts_ms, numbers):
        self.both(lambda limiter: override_key(limiter, self.clock, key, lasts_ms, **numbers))

    @rule(numbers=st.none() | QUEUE_NUMBERS)
    def limit_queue(self, numbers):
        said = (SET, "q", numbers) if numbers else (CLEARED, "q")
        for limiter in (self.memory, self.redis):
            limiter.limit_queue(*said)

    @rule(counter=st.sampled_from(["opened", "invalid"]), amount=st.integers(1, 3))
    def count(self, counter, amount):
        self.both(lambda limiter: limiter.count(counter, amount))

    def held(self, tenant):
        return self.memory.inspect(tier_key(tenant), tenant, "free").held

    @invariant()
    def they_look_the_same(self):
        for tenant in TENANTS:
            key = tier_key(tenant)
            for tier in ("free", "gold"):
                self.both(lambda limiter, k=key, t=tenant, r=tier: limiter.inspect(k, t, r))
            self.both(lambda limiter, t=tenant: limiter.published_tenant(t))
        for key in KEYS:
            self.both(lambda limiter, k=key: limiter.inspect(k, "", "free").leases)
        for key in STOPPED:
            self.both(lambda limiter, k=key: limiter.parked(k))
        self.both(lambda limiter: limiter.counts())
        assert self.memory.news() <= self.redis.news()
        self.both(lambda limiter: limiter.published_tiers())


# A sequence that fails is made shorter, which takes longer than all of them.
@pytest.mark.timeout(400)
@pytest.mark.redis
def test_the_limiter_in_memory_is_the_one_in_redis(redis_url):
    BothLimiters.url = redis_url
    run_state_machine_as_test(
        BothLimiters,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
