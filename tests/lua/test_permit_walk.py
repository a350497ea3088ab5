"""A random walk over the permits of several keys, on the functions (ADR 30).

Tasks with one to three slots of a key, or of two keys, wait in several partitions. Claims, ends,
messages and time come in any order, and messages are late, lost or come twice. Two things always
hold: no key is above its limit, and each task runs before the walk ends.
"""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from redis import Redis

from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Claimed, Rules, Settle, Verdict, Waiting
from tests.support.library import call as called

pytestmark = pytest.mark.redis

PARTITIONS = 4
RULES = Rules(default_limit=None)
LIFE = RULES.lease_ms
STEPS = 400
TASKS = 40
#: After the last step, rounds in which workers do all that they can.
ROUNDS = 300
#: Tasks with two of three keys of one permit have all started after this time, in ms.
SOON_MS = 10_000
#: Partitions that a worker visits for one request.
VISITS_AT_MOST = 64


class Walk:
    """Partitions and homes on one server, and the messages between them.

    Attributes:
        now: The time of the server, in ms.
        slots: By task, how many slots of each key it takes.
        running: By lease, the partition and the task.
        named: The requests that claims have named.
        reports: Reports on their way to a home, each with its key.
        answers: Answers on their way to a partition: key, report, grant, index.
    """

    def __init__(self, client: Redis, seed: int) -> None:
        self.client, self.chance = client, random.Random(seed)
        self.now = 1_760_000_000_000
        self.limits = {f"api:{name}": self.chance.randint(1, 4) for name in "abc"}
        self.slots: dict[str, dict[str, int]] = {}
        self.running: dict[str, tuple[int, Claimed]] = {}
        self.ran: set[str] = set()
        self.numbers: Counter[int] = Counter()
        self.named: list[tuple[int, str]] = []
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.answers: list[tuple[str, dict[str, Any], dict[str, Any], int]] = []
        #: By partition and key, when the partition was last connected with the home.
        self.renewed: dict[tuple[int, str], int] = {}

    def run(self, verb: str, args: list[Any], partition: int) -> Any:
        return called(self.client, verb, f"{{fairness#{partition}}}:", args)

    # -- tasks

    def put(self, count: int = 1) -> None:
        """Put a task of some keys, in any order."""
        partition, tenant = self.chance.randrange(PARTITIONS), self.chance.choice("xyz")
        keys = self.chance.sample(sorted(self.limits), count)
        most = 3 if count == 1 else 1
        its = {key: self.chance.randint(1, min(most, self.limits[key])) for key in keys}
        self.put_task(partition, tenant, its)

    def put_task(self, partition: int, tenant: str, its: dict[str, int]) -> None:
        """Put a task that takes these slots of its keys."""
        tag = f"{partition}-{tenant}.{len(self.slots) + 1}"
        self.slots[tag] = its
        limits = ",".join(self.spec(key, slots) for key, slots in its.items())
        waiting = Waiting("q", tag, tenant, message="{}", limits=limits, is_new=True)
        self.run(calls.PUT, calls.put_args(waiting, str(self.now)), partition)

    def spec(self, key: str, slots: int) -> str:
        return f"{key}|C{self.limits[key]}" + (f";S{slots}" if slots > 1 else "") + "|w"

    def claim(self, partition: int, want: int, ended: list[str]) -> None:
        self.numbers[partition] += 1
        for lease in ended:
            del self.running[lease]
        args = calls.claim_args(
            *("owner", self.numbers[partition], want, ["q"], RULES, str(self.now)),
            ends=[Settle(lease, Verdict.DONE) for lease in ended],
            is_first=True,
            ring={"floors": {}, "tills": {}, "is_woken": False},
        )
        claim = calls.read_claim(self.run(calls.CLAIM, args, partition), in_partition=True)
        for task in claim.tasks:
            self.running[task.lease] = partition, task
            self.ran.add(tag_of(task.lease))
        self.name(partition, claim.ring.get("requests", ()))
        self.check()

    def claim_any(self) -> None:
        partition = self.chance.randrange(PARTITIONS)
        there = [lease for lease, (at, _) in self.running.items() if at == partition]
        ended = self.chance.sample(there, self.chance.randint(0, len(there)))
        self.claim(partition, self.chance.randint(0, 4), ended)

    def check(self) -> None:
        """Compare what runs with the limits."""
        used: Counter[str] = Counter()
        for lease in self.running:
            used.update(self.slots[tag_of(lease)])
        above = {key: used[key] for key, limit in self.limits.items() if used[key] > limit}
        assert not above, (above, self.limits)

    # -- messages

    def name(self, partition: int, keys: Iterable[str]) -> None:
        """Note the requests that a worker is to make."""
        self.name_all((partition, key) for key in keys)

    def name_all(self, places: Iterable[tuple[int, str]]) -> None:
        self.named += [each for each in places if each not in self.named]

    def request(self, partition: int, key: str, home: int | None = None) -> dict[str, Any]:
        args = calls.request_permits_args(key, RULES, home, now_text=str(self.now))
        report = json.loads(self.run(calls.REQUEST_PERMITS, args, partition))
        return {"partition": partition, "asked_at": self.now, **report}

    def grant(
        self, key: str, *reports: dict[str, Any], counts: int | None = None
    ) -> dict[str, Any]:
        args = calls.grant_permits_args(key, PARTITIONS, reports, RULES, counts, str(self.now))
        home = zlib.crc32(key.encode()) % PARTITIONS
        return dict(json.loads(self.run(calls.GRANT_PERMITS, args, home)))

    def accept(self, key: str, report: dict[str, Any], grant: dict[str, Any], index: int) -> None:
        answer = grant["answers"][index]
        if answer["added"] < 0 or answer["n"] == 0:
            return
        args = calls.accept_permits_args(
            *(key, report["run"], grant["home"], answer, RULES, str(self.now))
        )
        self.run(calls.ACCEPT_PERMITS, args, report["partition"])
        self.renewed[report["partition"], key] = report["asked_at"]

    def carry(self, partition: int, key: str) -> None:
        """Carry the messages of a request, and of those to which the home sends the worker."""
        todo = [partition]
        for _ in range(VISITS_AT_MOST):
            if not todo:
                return
            self.now += 1
            report = self.request(todo.pop(0), key)
            grant = self.grant(key, report)
            self.accept(key, report, grant, 0)
            todo += [each for each in grant.get("visits", ()) if each not in todo]
            self.count(key, grant)

    def count(self, key: str, grant: dict[str, Any]) -> None:
        """Count the permits of all partitions if a home requests it."""
        if counts := grant.get("counts"):
            reports = [self.request(each, key, grant["home"]) for each in range(PARTITIONS)]
            counted = self.grant(key, *reports, counts=counts)
            for index, report in enumerate(reports):
                self.accept(key, report, counted, index)

    def request_any(self) -> None:
        if self.named:
            partition, key = self.named.pop(self.chance.randrange(len(self.named)))
            self.reports.append((key, self.request(partition, key)))

    def grant_any(self) -> None:
        if self.reports:
            at = self.chance.randrange(len(self.reports))
            # A message may be lost, and it may come twice.
            key, report = self.reports[at]
            if self.chance.random() < 0.8:
                del self.reports[at]
            if self.chance.random() < 0.8:
                grant = self.grant(key, report)
                self.answers.append((key, report, grant, 0))
                self.name_all((each, key) for each in grant.get("visits", ()))
                self.count(key, grant)

    def accept_any(self) -> None:
        if self.answers:
            at = self.chance.randrange(len(self.answers))
            if self.chance.random() < 0.8:
                self.accept(*self.answers[at])
            if self.chance.random() < 0.8:
                del self.answers[at]

    def advance(self, ms: int) -> None:
        """Let time pass. Workers renew leases, and permits before they end."""
        self.now += ms
        for partition in range(PARTITIONS):
            there = [task for at, task in self.running.values() if at == partition]
            held = [(task.lease, task.key) for task in there]
            keys = {key for task in there for key in self.slots[tag_of(task.lease)]}
            self.run(calls.RENEW, calls.renew_args(held, RULES, None, str(self.now)), partition)
            args = calls.due_permits_args(RULES, keys, str(self.now))
            due = json.loads(self.run(calls.DUE_PERMITS, args, partition))
            self.name(partition, due.get("requests", ()))
        for place, at in list(self.renewed.items()):
            if self.now - at >= LIFE // 2:
                self.renewed[place] = self.now
                self.carry(*place)

    def wait_any(self) -> None:
        self.advance(self.chance.choice([1, 50, 150, 1000, LIFE // 8]))

    # -- the walk

    def step(self) -> None:
        acts = {
            self.claim_any: 4,
            self.request_any: 3,
            self.grant_any: 3,
            self.accept_any: 3,
            self.wait_any: 1,
        }
        if len(self.slots) < TASKS:
            acts[self.put] = 3
        (act,) = self.chance.choices(list(acts), list(acts.values()))
        act()

    def drain(self) -> None:
        """Let workers do all that they can, until each task has run."""
        for _ in range(ROUNDS):
            for partition in range(PARTITIONS):
                ended = [lease for lease, (at, _) in self.running.items() if at == partition]
                self.claim(partition, 4, ended)
            named, self.named = self.named, []
            for place in named:
                self.carry(*place)
            if self.ran == self.slots.keys():
                return
            self.advance(50)
        waiting = {tag: slots for tag, slots in self.slots.items() if tag not in self.ran}
        raise AssertionError(f"never run, with the limits {self.limits}: {waiting}")


def tag_of(lease: str) -> str:
    """Return the tag of the task of a lease."""
    return lease.rsplit(".", 2)[0]


@pytest.mark.parametrize("seed", range(5))
def test_each_task_runs_and_no_key_is_above_its_limit(client: Redis, seed: int) -> None:
    walk = Walk(client, seed)
    for _ in range(STEPS):
        walk.step()
    walk.drain()
    assert len(walk.slots) == TASKS


@pytest.mark.parametrize(
    ("slots", "order"),
    [
        ({"api:b": 1, "api:a": 1}, ["api:a", "api:b"]),
        # Several slots come last, because other tasks would wait for this one.
        ({"api:a": 2, "api:b": 1}, ["api:b", "api:a"]),
    ],
)
def test_a_task_requests_permits_of_one_key_at_a_time(
    client: Redis, slots: dict[str, int], order: list[str]
) -> None:
    walk = Walk(client, 0)
    walk.limits = dict.fromkeys(slots, 2)
    walk.put_task(1, "x", slots)
    requested = []
    while not walk.ran:
        walk.claim(1, 1, [])
        for place in walk.named:
            walk.carry(*place)
            requested.append(place)
        walk.named = []
    assert requested == [(1, key) for key in order]


@pytest.mark.parametrize("seed", range(5))
def test_tasks_of_two_keys_start_soon(client: Redis, seed: int) -> None:
    walk = Walk(client, seed)
    walk.limits = dict.fromkeys(walk.limits, 1)
    for _ in range(TASKS):
        walk.put(2)
    began = walk.now
    walk.drain()
    assert walk.now - began <= SOON_MS
