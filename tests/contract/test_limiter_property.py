"""Random operations of gates, operators and a broker, on one frozen clock.

Three things hold after every operation:

- A start takes no tenant above its limit.
- One copy of a message starts, and no other copy of it.
- Once operators and workers hold nothing back, every parked task comes to a gate and starts.

Weakness: rates, throttles and the order are not judged here. `test_open_job_spec_gate.py` and
`test_parked_turns.py` judge them, with sequences of their own.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import replace

import pytest
from redis import Redis

from celery_fairness.config.limit_spec import OF_QUEUE, Limit, write_limits
from celery_fairness.config.queue_limits import CLEARED, DECLARED, SET
from celery_fairness.config.settings import Enforcement, build_settings
from celery_fairness.config.tenants import tier_key
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Admitted, Lease, Parking, Reason, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler.types import Rules
from celery_fairness.store.address import address_from_url
from celery_fairness.store.connection import Connection
from tests.contract.conftest import FrozenClock, override_key, stop_key
from tests.support.tables import assert_sums_agree, findings
from tests.support.waiting import at_most

#: PROPERTY_SEQUENCES=400 looks longer than the suite does, PROPERTY_SEED=1000 elsewhere.
SEQUENCES = int(os.environ.get("PROPERTY_SEQUENCES", "24"))
SEED = int(os.environ.get("PROPERTY_SEED", "0"))
#: Long sequences on few keys find what short ones miss.
STEPS = 300
#: Rounds of five seconds in which all that is parked must start once nothing holds it back.
ROUNDS = 100

TENANTS = ("a", "b", "{c}")
#: The limits beside the tier's that a task of each number has.
LIMITS = (
    (),
    (Limit("api", concurrency=2),),
    (
        Limit("db", concurrency=3, rate=((4, 7_000),)),
        Limit("api", concurrency=1, on_limit="reschedule"),
    ),
    (Limit("mail", throttle=((3, 10_000),)), Limit("db", rate=((2, 3_000), (5, 20_000)))),
    (Limit("once", rate=((1, 4_000),), on_limit="drop"), Limit("api", concurrency=2)),
    # These have no number until an operator sets one.
    (Limit("key"),),
    (Limit("queue:q", of=OF_QUEUE), Limit("key", on_limit="reschedule")),
    (Limit("queue:q:7", of=OF_QUEUE), Limit("queue:q", of=OF_QUEUE)),
    (Limit("api.x-1", concurrency=2), Limit("api.y")),
)
KEYS = ("api", "db", "mail", "once", "key", "queue:q", "queue:q:7")
STOPPED = (*KEYS, *map(tier_key, TENANTS))
PATTERNS = ("*", "api.*", "api.x-*", "queue:q:*")
NUMBERS = {
    "concurrency": (None, 0, 1, 3),
    "rate": (None, ((2, 3_000),)),
    "throttle": (None, ((1, 1_000),)),
}


class Gates:
    """Gates of two workers, their promoters, a broker that delivers again, and operators."""

    def __init__(self, url, seed):
        self.url, self.random = url, random.Random(seed)
        self.tier_waits = self.random.choice([False, True])
        values = build_settings(
            {
                "tiers": {"free": {"concurrency": 2}},
                "namespace": f"property{seed}",
            }
        )
        self.clock = FrozenClock()
        # The broker delivers old copies again during the whole sequence.
        connection = Connection(address_from_url(url))
        self.limiter = Limiter(connection, values, self.clock, redelivery_seconds=1e6)
        self.limiter.limit_queue(DECLARED, "q", None, Limit(""))
        self.numbers = itertools.count(1)
        #: Every request of a message that a broker may deliver again, the newest last.
        self.copies: dict[str, list[SlotRequest]] = {}
        self.parked: set[str] = set()
        #: The serial of each message's copy that has started, or that a limit dropped.
        self.started: dict[str, str] = {}
        self.running: list[Lease] = []

    def walk(self):
        """Do random operations, and see that everything starts after them."""
        for _ in range(STEPS):
            operations, weights = zip(*OPERATIONS, strict=True)
            (operation,) = self.random.choices(operations, weights)
            operation(self)
        self.the_tables_agree()
        self.everything_starts_once_nothing_holds_it()

    def the_tables_agree(self):
        with Redis.from_url(self.url, protocol=2, decode_responses=True) as client:
            rules = Rules(default_limit=2)
            assert findings(client, self.limiter.prefix, rules, self.clock.now_ms) == []
            assert_sums_agree(client, self.limiter.prefix)

    def ask(self, request, enforcement=Enforcement.ON):
        """Ask for a slot as a gate does, and park the task if its limits say so."""
        number = next(self.numbers)
        lease = replace(request.lease, id=f"w{number % 2}@{number}")
        request = replace(request, lease=lease, next_serial=f"n{number}")
        message, tenant = request.copy.message, request.tenant
        answer = self.limiter.acquire(request, enforcement)
        if isinstance(answer, Admitted):
            if enforcement is Enforcement.ON and tenant and answer.limit is not None:
                assert self.limiter.leases_of(tier_key(tenant)).held <= answer.limit
            first = self.started.setdefault(message, request.copy.serial)
            assert first == request.copy.serial, "two copies of one message have started"
            self.running.append(lease)
            self.parked.discard(message)
            return
        if answer.reason is Reason.SUPERSEDED:
            return
        assert message not in self.started, "a message whose copy has started is kept"
        if answer.action == "drop":
            self.started[message] = request.copy.serial
            self.parked.discard(message)
        elif answer.action == "wait" and (answer.key or self.tier_waits):
            text = f"{message}\n é"
            if self.limiter.park(request, text) is Parking.PARKED:
                self.parked.add(message)
        else:
            # It goes back to the broker, as the copy that the rejection has named.
            again = replace(request, copy=Copy(message, request.next_serial), is_new=False)
            self.copies[message].append(again)
            self.parked.discard(message)

    def give(self, want, enforcement=Enforcement.ON):
        """Promote parked tasks; returns them with the requests that come to a gate."""
        given = self.limiter.promote(want, enforcement)
        assert len(given.tasks) <= want
        found = []
        for task in given.tasks:
            message = task.copy.message
            assert message in self.parked
            assert task.message == f"{message}\n é"
            request = replace(self.copies[message][0], copy=task.copy, is_new=False)
            self.copies[message].append(request)
            found.append((task, request))
        return found

    def a_task_arrives(self):
        tenant, limits = self.random.choice(["", *TENANTS]), self.random.choice(LIMITS)
        keys = [*([tier_key(tenant)] if tenant else ()), *(limit.key for limit in limits)]
        if keys:
            copy = Copy(f"m{next(self.numbers)}")
            lease = Lease("", ",".join(keys))
            request = SlotRequest(lease, tenant, "free", copy, limits=write_limits(limits))
            self.copies[copy.message] = [request]
            self.ask(request)

    def a_copy_is_delivered_again(self):
        if self.copies:
            message = self.random.choice(sorted(self.copies))
            request = self.random.choice(self.copies[message])
            # The copy that has started may run again: its worker may have died.
            if self.started.get(message) != request.copy.serial:
                self.ask(request, self.random.choice([*[Enforcement.ON] * 4, Enforcement.OFF]))

    def a_promoter_promotes(self):
        how = self.random.choice(["sent", "sent", "sent", "unsent", "rejected", ""])
        for task, request in self.give(self.random.randint(1, 4)):
            if how:
                self.limiter.end_promotion(task, how)
            if how == "sent":
                self.ask(request)

    def bodies_end(self):
        ends = self.random.randint(0, len(self.running))
        ended, self.running = self.running[:ends], self.running[ends:]
        self.limiter.release(ended)

    def time_passes(self):
        """Workers renew; one of two may be dead, and its leases end by themselves."""
        self.clock.advance(self.random.choice([0.001, 1.0, 5.0, 5.001, -3.0]))
        dead = self.random.choice(["", "w0", "w1"])
        self.limiter.renew([lease for lease in self.running if lease.worker != dead])

    def an_operator_stops(self):
        how = self.random.choice(["pause", "resume", "resume", "cool", "clear"])
        seconds = 0.0 if how == "pause" else self.random.choice([1.0, 9.0])
        stop_key(self.limiter, self.clock, how, self.random.choice(STOPPED), seconds)

    def an_operator_overrides(self):
        numbers = {
            name: self.random.choice(choices)
            for name, choices in NUMBERS.items()
            if self.random.random() < 0.4
        }
        lasts_ms = self.random.choice([None, 1_000, 8_000])
        key = self.random.choice((*STOPPED, *PATTERNS))
        override_key(self.limiter, self.clock, key, lasts_ms, **numbers)

    def an_operator_limits_a_queue(self):
        whole, part = self.numbers_of_a_queue(), self.numbers_of_a_queue()
        said = [(SET, "q", whole), (SET, "q", None, part), (SET, "q", whole, part), (CLEARED, "q")]
        self.limiter.limit_queue(*self.random.choice(said))

    def numbers_of_a_queue(self):
        return Limit(
            "",
            concurrency=self.random.choice([None, 0, 1, 2]),
            rate=self.random.choice(NUMBERS["rate"]),
            throttle=self.random.choice(NUMBERS["throttle"]),
            on_limit=self.random.choice(["wait", "reschedule", "drop"]),
            local_limit=self.random.choice([None, 1, 2]),
        )

    def a_tenant_gets_a_number(self):
        numbers = self.random.choice([{}, {}, *({"concurrency": most} for most in (0, 1, 3, None))])
        self.limiter.publish_tenant(self.random.choice(TENANTS), "free", numbers)

    def everything_starts_once_nothing_holds_it(self):
        for key in STOPPED:
            stop_key(self.limiter, self.clock, "resume", key)
            stop_key(self.limiter, self.clock, "clear", key)
            override_key(self.limiter, self.clock, key, None)
        for pattern in PATTERNS:
            override_key(self.limiter, self.clock, pattern, None)
        self.limiter.limit_queue(CLEARED, "q")
        for tenant in TENANTS:
            self.limiter.publish_tenant(tenant, None)
        for _ in range(ROUNDS):
            if not self.parked:
                return
            self.bodies_all_end()
            self.clock.advance(5)
            self.limiter.renew([])
            for task, request in self.give(16):
                self.limiter.end_promotion(task, "sent")
                self.ask(request)
            self.results_are_written()
        raise AssertionError(f"still parked after {ROUNDS} rounds: {sorted(self.parked)}")

    def results_are_written(self):
        """A claim drops a parked task whose limit says so, and a broker may reject it too often."""
        outcome = self.limiter.next_outcome("")
        while outcome:
            assert outcome.state in ("dropped", "unpublished")
            assert outcome.tag in self.parked
            self.parked.discard(outcome.tag)
            outcome = self.limiter.next_outcome(outcome.name)

    def bodies_all_end(self):
        self.limiter.release(self.running)
        self.running.clear()


#: The operations and their weights.
OPERATIONS = (
    (Gates.a_task_arrives, 8),
    (Gates.a_copy_is_delivered_again, 4),
    (Gates.a_promoter_promotes, 6),
    (Gates.bodies_end, 3),
    (Gates.time_passes, 6),
    (Gates.an_operator_stops, 1),
    (Gates.an_operator_overrides, 1),
    (Gates.an_operator_limits_a_queue, 1),
    (Gates.a_tenant_gets_a_number, 1),
)


@pytest.mark.redis
@pytest.mark.timeout(at_most(60 + SEQUENCES * 10))
def test_whatever_gates_and_operators_do_limits_hold_and_no_task_is_lost(redis_url):
    for seed in range(SEED, SEED + SEQUENCES):
        gates = Gates(redis_url, seed)
        try:
            gates.walk()
        except AssertionError as error:
            raise AssertionError(f"PROPERTY_SEED={seed}: {error}") from error
        finally:
            gates.limiter.close()
