"""Limits beside the tiers', on the model alone: random operations, and a rule after each.

What may start is asked of the limits themselves, lane by lane, and never of the parking: so a lane
that is parked and forgotten is found.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import replace
from random import Random

import pytest

from celery_fairness.config.limit_spec import Limit, read_limits, write_limits
from celery_fairness.config.tiers import Tier
from celery_fairness.scheduler.types import Passing, Rules, Settle, Verdict, Waiting
from tests.model.budget import Budget
from tests.model.model import NOTHING, Scheduler
from tests.model.rows import Account

START_MS = 1_760_000_000_000
OPERATIONS = int(os.environ.get("LIMITS_OPERATIONS", "20000"))
LENGTH = 400
TENANTS = ("", "a", "b", "c", "d")
QUEUES = ("q", "p q|1")
SHARED = (
    Limit("x", 1),
    Limit("x", 2),
    Limit("y", 1),
    Limit("z", rates=((3, 1_000),)),
    Limit("z", rates=((2, 500), (4, 5_000))),
    Limit("t", throttle=(2, 1_000)),
    Limit("m", 2, ((5, 2_000),), (10, 1_000)),
    Limit("none"),
)
VERDICTS = [Verdict.DONE] * 6 + [Verdict.BEGUN, Verdict.ACKED, Verdict.HEAD, Verdict.TAIL]


class Watched(Scheduler):
    """A scheduler that keeps its own book of starts."""

    def __init__(self, *args):
        super().__init__(*args)
        self.started = defaultdict(list)
        self.passing = Passing()

    def claim(self, owner, number, want, queues, rules, passing=NOTHING, epoch=None, ends=()):
        self.passing = passing
        return super().claim(owner, number, want, queues, rules, passing, epoch, ends)

    def _serve(self, queue, key, part, owner, logical, rules):
        tier = self.entitlement(key, rules).limit
        assert tier is None or self.held(key, logical) < tier
        before = [
            task
            for other, tasks in self.lanes[queue, key].lists.items()
            for task in tasks
            if other.lane == part.lane and task.kind not in self.passing.never
        ]
        lease = super()._serve(queue, key, part, owner, logical, rules)
        task = self.running[lease].task
        assert task.seq == min(each.seq for each in before), "not the first of its lane"
        assert not self.accounts.get(key, NOBODY).closed
        return lease

    def take(self, task, lease, logical, amount):
        for limit in map(self.judged, read_limits(task.limits)):
            held = sum(limit.key in row.task.keys for row in self.running.values())
            assert limit.concurrency is None or held < limit.concurrency, limit
            starts = self.started[limit.key]
            for most, period_ms in limit.rates:
                within = [at for at in starts if at > logical - period_ms]
                assert len(within) < most, (limit, within, logical)
            if limit.throttle and starts:
                gap = logical - starts[-1]
                interval = limit.throttle[1] / limit.throttle[0]
                assert gap >= 0.9 * interval - 1, (limit, gap)
            starts.append(logical)
        super().take(task, lease, logical, amount)

    def give_starts_back(self, limits, at):
        super().give_starts_back(limits, at)
        for limit in limits:
            self.started[limit.key].remove(at)


class Walk:
    """One random sequence of operations."""

    def __init__(self, seed):
        self.random = random = Random(seed)
        self.now = START_MS
        budget = random.choice(
            [Budget(), Budget(2, 1, 3, 1, looks=1), Budget(3, 2, passed=3, looks=2)]
        )
        self.model = Watched(lambda: self.now, budget)
        self.rules = Rules(
            lease_ms=random.choice([1_000, 15_000]), default_limit=random.choice([1, 2, None])
        )
        actions = random.choice([("wait",), ("wait", "reschedule"), ("wait", "drop", "reschedule")])
        self.limits = [
            limit._replace(on_limit=random.choice(actions))
            for limit in random.sample(SHARED, random.randint(1, 4))
        ]
        self.tenants = TENANTS[: random.randint(2, len(TENANTS))]
        self.queues = QUEUES[: random.randint(1, len(QUEUES))]
        self.passes = random.choice([0.0, 0.0, 0.3])
        self.heard = set()
        self.tags = self.number = 0
        self.granted = []

    def put(self):
        random = self.random
        self.tags += 1
        tenant = random.choice(self.tenants)
        chosen = {each.key: each for each in random.choices(self.limits, k=random.randint(0, 2))}
        limits = sorted(chosen.values())
        if random.random() < 0.3 and tenant:
            limits.insert(0, Limit(f"own:{tenant}", random.choice([1, 2]), private=True))
        if random.random() < 0.05 and tenant:
            limits.append(Limit(f"tenant:{tenant}", 1))
        waiting = Waiting(
            random.choice(self.queues),
            f"t{self.tags}",
            tenant,
            rank=random.choice([0, 0, 0, 9]),
            cost=random.choice([1.0, 1.0, 3.0]),
            eta_ms=self.now + random.choice([-1, 700]) if random.random() < 0.1 else 0,
            message=f"m{self.tags}",
            kind=random.choice("xxy"),
            limits=write_limits(tuple(limits)),
        )
        self.model.put(waiting)

    def claim(self, passing=None):
        random, model = self.random, self.model
        queues = random.sample(self.queues, random.randint(1, len(self.queues)))
        if passing is None:
            passing = Passing(("y",)) if random.random() < self.passes else Passing()
        want = random.randint(1, 5)
        self.number += 1
        ends = self.ends() if random.random() < 0.3 else ()
        claim = model.claim("w", self.number, want, queues, self.rules, passing, ends=ends)
        self.granted += claim.tasks
        self.heard -= set(queues)
        if claim.sleep_ms and not passing:
            logical = model.clock.read(self.now, self.rules.lease_ms)
            just_before = logical + min(claim.sleep_ms, self.rules.lease_ms // 3) - 1
            for queue in queues:
                assert not self.startable(queue, logical), "it sleeps beside what may start"
                assert not self.startable(queue, just_before), "it sleeps too long"
                assert not self.to_be_ended(queue, logical), "it left what it was to drop"
                soonest = min((eta for eta, _, _ in model.later[queue]), default=float("inf"))
                assert soonest >= self.now + claim.sleep_ms, "it sleeps beside what is due"
        return claim

    def ends(self):
        known = [each for each in self.granted if each.lease in self.model.running]
        picked = self.random.sample(known, min(len(known), self.random.randint(1, 3)))
        return [self.end(each) for each in picked]

    def end(self, task):
        verdict = self.random.choice(VERDICTS)
        goes_on = verdict in (Verdict.BEGUN, Verdict.ACKED)
        return Settle(task.lease, verdict, task.lane, goes_on or self.random.random() < 0.7)

    def settle(self):
        self.model.settle(self.ends(), self.rules)

    def late(self):
        if self.granted:
            task = self.random.choice(self.granted[-30:])
            self.model.settle([Settle(task.lease, Verdict.DONE, task.lane)], self.rules)

    def renew(self):
        held = [(t.lease, t.key) for t in self.granted if t.lease in self.model.running]
        self.model.renew(held, self.rules.lease_ms)

    def advance(self):
        self.now += self.random.choice([1, 49, 51, 100, 300, 501, 1_000, 5_000, -60])

    def lapse(self):
        for _ in range(4):
            self.now += self.rules.lease_ms // 3
            self.model.renew([], self.rules.lease_ms)

    def tiers(self):
        self.model.publish_tiers([Tier("free", self.random.choice([0, 1, 2, None]))])

    def hear(self):
        queue = self.random.choice(self.queues)
        ring = self.model.rings.get(queue)
        if ring and (ring.bell or ring.left):
            ring.bell, ring.left = False, ring.left and ring.bell
            self.heard.add(queue)
            if self.random.random() < 0.7:
                self.claim(Passing())

    def purge(self):
        self.model.purge(self.random.choice(self.queues))

    # -- rules ------------------------------------------------------------------------------------

    def startable(self, queue, logical):
        """Whatever heads a lane and is refused by nothing."""
        model = self.model
        return [
            (key, part)
            for (other, key), lanes in model.lanes.items()
            if other == queue and model.is_open(key, logical, self.rules)
            for part in lanes.lists
            if model.refusal(part.lane.limits, logical, self.rules) is None
        ]

    def to_be_ended(self, queue, logical):
        """Whatever would be taken next of a ready lane, and shall not wait."""
        model = self.model
        heads = [
            (key, lanes.in_order()[0])
            for (other, key), lanes in model.lanes.items()
            if other == queue and lanes.in_order() and model.is_open(key, logical, self.rules)
        ]
        refused = [model.refusal(part.lane.limits, logical, self.rules) for _, part in heads]
        return [each for each in refused if each and each.action != "wait"]

    def check(self):
        model = self.model
        logical = model.clock.read(self.now, self.rules.lease_ms)
        self.check_places()
        self.check_parking()
        for queue, ring in model.rings.items():
            for key, part in self.startable(queue, logical):
                lanes = model.lanes[queue, key]
                group = lanes.parked.get(part.lane)
                if group is None:
                    # A tenant that opened is told by what opened it (test_against_lua.py).
                    is_out = key in ring.full and model.accounts[key].closed
                    assert is_out or key in ring.members
                    told = is_out
                else:
                    at = model.parking.groups[queue, group].at
                    due = model.parking.due
                    told = any(due.get(k, logical + 1) <= logical for k in (at.key, f" {at.key}"))
                    told |= model.parking.candidates[queue][at.name] < 0 and self.judged_again(at)
                assert told or ring.bell or ring.left or queue in self.heard, (queue, key, part)

    def judged_again(self, at):
        return False

    def check_places(self):
        model = self.model
        places = [
            *(
                t.tag
                for each in model.lanes.values()
                for tasks in each.lists.values()
                for t in tasks
            ),
            *(task.tag for each in model.later.values() for _, _, task in each),
            *(row.task.tag for row in model.running.values()),
            *(task.tag for each in model.dead.values() for task in each),
        ]
        assert len(places) == len(set(places)), "a task in two places"
        assert set(places) == model.known
        held = {(key, lease) for key, each in model.leases.items() for lease in each}
        assert held == {(k, lease) for lease, row in model.running.items() for k in row.task.keys}

    def check_parking(self):
        model, parking = self.model, self.model.parking
        shelved = defaultdict(set)
        for (queue, key), lanes in model.lanes.items():
            assert set(lanes.parked) <= {part.lane for part in lanes.lists}
            for group in lanes.parked.values():
                shelved[queue, group].add(key)
            ring, ready = model.rings[queue], lanes.in_order()
            assert (key in ring.members) != (key in ring.full)
            assert ready or key in ring.full
            assert key in ring.members or not ready or model.accounts[key].closed
        assert {name: set(group.tags) for name, group in parking.groups.items()} == shelved
        waited = defaultdict(set)
        for (queue, _), group in parking.groups.items():
            waited[group.at.key].add((group.at.name, queue))
        assert {key: set(each) for key, each in parking.waited.items()} == waited
        assert set(parking.times) == set(waited)
        assert {key.strip() for key in parking.due} <= set(waited)
        assert {key for key in parking.due if key[0] == " "} == {f" {key}" for key in parking.left}
        assert set(parking.left) <= set(waited)
        assert {q: set(each) for q, each in parking.candidates.items()} == {
            queue: {name for each in waited.values() for name, other in each if other == queue}
            for queue in {other for each in waited.values() for _, other in each}
        }
        assert set(model.windows) == {key for key in model.idle if key[0] != " "}

    def drain(self):
        model = self.model
        model.publish_tiers([Tier("free", None)])
        for _ in range(3_000):
            self.now += self.rules.lease_ms // 3
            self.number += 1
            claim = model.claim("w", self.number, 5, self.queues, self.rules)
            ends = [Settle(lease, Verdict.DONE, "x 0 q") for lease in model.running]
            model.settle(ends, self.rules)
            if not (claim.tasks or ends or model.lanes or any(model.later.values())):
                break
        else:
            raise AssertionError("it does not end")
        for _ in range(60):
            self.now += 60_000
            model.claim("w", 0, 1, self.queues, replace(self.rules, lease_ms=180_000))
        left = model.parking
        tables = [left.groups, left.waited, left.candidates, left.due, left.times, left.left]
        tables += [model.windows, model.idle, model.leases, model.rings]
        assert not any(tables)


#: Of a tenant with nothing left.
NOBODY = Account("", "")

STEPS = {
    "put": 10,
    "claim": 8,
    "settle": 8,
    "late": 0.5,
    "renew": 2,
    "advance": 4,
    "lapse": 0.5,
    "tiers": 0.5,
    "hear": 2,
    "purge": 0.1,
}


@pytest.mark.parametrize("first", range(0, OPERATIONS // LENGTH, 10))
def test_no_limit_is_broken_and_nothing_is_forgotten(first):
    for seed in range(first, first + 10):
        walk = Walk(seed)
        names = walk.random.choices(list(STEPS), list(STEPS.values()), k=LENGTH)
        for number, name in enumerate(names):
            try:
                getattr(walk, name)()
                walk.check()
            except Exception as error:
                raise AssertionError(f"seed {seed}, operation {number}: {name}") from error
        walk.drain()
