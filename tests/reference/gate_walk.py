"""Operations of gates, promoters and a broker that delivers again, among those of claims."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from random import Random
from typing import Any

from redis import Redis

from celery_fairness.config import limit_spec
from celery_fairness.config.limit_spec import key_with_amounts
from celery_fairness.config.queue_limits import PARKED_QUEUES
from celery_fairness.config.settings import Enforcement, build_settings
from celery_fairness.config.tenants import tier_key
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Job, Lease, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler.types import Claimed, Settle, SkippedTasks, Verdict
from celery_fairness.util.durations import Milliseconds
from tests.reference.gate import Gates
from tests.reference.objection import Objection
from tests.reference.operations import Operation, Scene, scene
from tests.reference.scenes import GATE_LIMITS, small_scene
from tests.reference.tasks import Task
from tests.reference.walk import Walk

#: Rounds of five seconds in which every parked task must start once nothing holds it back.
ROUNDS = 100
#: A rejection may be superseded while it is among so many last ones.
RECENT = 8
#: One message of four is on the second broker.
BROKERS = ("amqp", "redis")
#: A sequence never outlives the memory of copies, in ms.
REMEMBERED_MS = 10**9
#: The reports of a promoter about a task. "" is its death.
ENDS = ("sent", "sent", "sent", "unsent", "rejected", "done", "")
#: How often each operation comes.
WEIGHTS = {
    "arrive": 9,
    "deliver": 3,
    "promote": 6,
    "end_promotion": 2,
    "leave": 4,
    "keep": 4,
    "advance": 5,
    "cancel_parked": 0.6,
    "supersede": 1.5,
    "next_outcome": 0.5,
    "stop": 1,
    "override": 1,
    "report": 1,
    "tenant": 0.7,
    "tiers": 0.4,
    "put": 4,
    "claim": 3,
    "settle": 3,
    "lose": 0.03,
}


class Calls:
    """The part of a connection that a limiter needs. Each call goes through the walk."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk

    def run(self, function: str, _prefix: str, args: Any) -> Any:
        """Call a function of the library."""
        return self.walk.call(function, args)


class GateWalk(Walk):
    """One sequence in which gates and claims share their limits."""

    def __init__(self, client: Redis, prefix: str, scene: Scene):
        super().__init__(client, prefix, scene)
        self.tier_waits = scene.seed % 3 == 0
        settings = build_settings(
            {
                "namespace": prefix.strip("{}:"),
                "tiers": {
                    "free": {
                        "concurrency": scene.rules.default_limit,
                        **scene.rules.default_numbers,
                    }
                },
                "lease_seconds": scene.rules.lease_ms / 1000,
                "max_deliveries": scene.rules.max_deliveries,
                "tier_on_limit": "wait" if self.tier_waits else "reschedule",
            }
        )
        # A broker may deliver a message again for as long as a sequence lasts.
        self.limiters = {
            broker: Limiter(
                Calls(self), settings, self.clock, redelivery_seconds=1e6, broker=broker
            )
            for broker in BROKERS
        }
        self.gates = Gates(self.reference, self.rules())
        self.count = itertools.count(1)
        #: Every request of a message that a broker may deliver again, the newest last.
        self.requests: dict[str, list[SlotRequest]] = {}
        self.running: list[Lease] = []
        #: The tasks that promoters were given, the newest last.
        self.promoted: list[Claimed] = []
        #: Requests whose rejection published a copy.
        self.rejected: list[SlotRequest] = []

    def clock(self) -> Milliseconds:
        return Milliseconds(self.now)

    def queues_of(self, scene: Scene) -> tuple[str, ...]:
        return (*scene.queues, *map(_queue_of, BROKERS))

    # -- gates ------------------------------------------------------------------------------------

    def do_arrive(self, tenant, limits):
        limits = limits.replace("*", tenant or "_")
        own = map(key_with_amounts, limit_spec.read_limits(limits))
        keys = [*([tier_key(tenant)] if tenant else ()), *own]
        if keys:
            number = next(self.count)
            copy = Copy(f"tag.m{number}")
            job = Job(f"id-m{number}", "shop.send" if number % 3 else "shop.mail", "gate")
            request = SlotRequest(
                Lease("", ",".join(keys)), tenant, "free", copy, limits=limits, job=job
            )
            self.requests[copy.message] = [request]
            self.ask(request)

    def ask(self, request: SlotRequest, enforcement: Enforcement = Enforcement.ON) -> None:
        """Ask for slots as a gate does. If a limit demands it, park the task or send it back."""
        number, broker = next(self.count), _broker_of(request)
        lease = replace(request.lease, id=f"w{number % 2}@{number}")
        request = replace(request, lease=lease, next_serial=f"n{number}")
        # An answer may be lost, and then the gate calls again.
        for _ in range(1 + (number % 8 == 0)):
            answer = self.answer = self.limiters[broker].acquire(request, enforcement)
            rules = self.rules(enforcement.value)
            self.gates.acquire(request, _queue_of(broker), rules, answer, self.seen)
        if not hasattr(answer, "reason"):
            self.running.append(lease)
        elif answer.reason.value == "superseded" or answer.action == "drop":
            return
        elif answer.action == "wait" and (answer.key or self.tier_waits):
            self.park(request)
        else:
            copy = Copy(request.copy.message, request.next_serial)
            again = replace(request, copy=copy, is_new=False)
            self.requests[copy.message].append(again)
            self.rejected.append(request)

    def park(self, request: SlotRequest) -> None:
        number, broker = _number_of(request), _broker_of(request)
        task = Task(
            tag=request.copy.message,
            queue=_queue_of(broker),
            tenant=request.tenant,
            service="",
            tier=request.tier,
            rank=(0, 0, 0, 4, 9)[number % 5],
            cost=1.0,
            kind=request.job.type,
            limits=request.limits,
            message=json.dumps({"routing_key": request.job.queue, "body": f"{number}\n é"}),
            expires_ms=self.now + 3_000 if number % 7 == 0 else 0,
            seq=0,
        )
        limiter = self.limiters[broker]
        expires_ms = task.expires_ms or None
        self.answer = limiter.park(request, task.message, expires_ms, task.rank)
        self.gates.park(request, task, self.answer, self.seen)

    def do_deliver(self, pick, enforcement):
        """A broker delivers a copy again."""
        if not self.requests:
            return
        message = sorted(self.requests)[pick % len(self.requests)]
        requests = self.requests[message]
        request = requests[pick % len(requests)]
        # The copy that has started may run again: its worker may have died.
        if self.reference.copies[message].started != request.copy.serial:
            self.ask(request, Enforcement(enforcement))

    def do_supersede(self, pick):
        """A gate publishes a copy once more, because the first publication may be lost."""
        if self.rejected:
            request = self.rejected[-1 - pick % min(len(self.rejected), RECENT)]
            message, serial = request.copy.message, f"n{next(self.count)}"
            self.answer = self.limiters[_broker_of(request)].supersede(request.copy, serial)
            self.gates.supersede(request.copy, serial, self.answer, self.seen)
            if self.answer:
                again = replace(request, copy=Copy(message, serial), is_new=False)
                self.requests[message].append(again)

    def do_leave(self, picks):
        """Bodies end."""
        chosen = dict.fromkeys(
            self.running[pick % len(self.running)] for pick in picks if self.running
        )
        if chosen:
            self.running = [lease for lease in self.running if lease not in chosen]
            self.answer = self.limiters[BROKERS[0]].release(list(chosen))
            self.gates.free(list(chosen), self.answer, self.seen)

    def do_keep(self, dead):
        """Workers renew; one of two may be dead, and its leases end by themselves."""
        leases = [lease for lease in self.running if lease.worker != dead]
        answer = self.answer = self.limiters[BROKERS[0]].renew(leases, self.epoch)
        missing = {*answer.gone, *answer.entered}
        places = [place for place, lease in enumerate(leases, 1) if lease in missing]
        held = [(lease.id, lease.key) for lease in leases]
        known, self.epoch = self.epoch, answer.epoch
        self.reference.renew(held, self.rules(), known, (answer.epoch, places), self.seen)

    # -- promoters --------------------------------------------------------------------------------

    def do_promote(self, broker, owner, again, want, enforcement, how, arrives):
        """A promoter publishes what it is given, reports that, and the copies come to a gate."""
        queue = _queue_of(broker)
        if not (again and self.numbers[owner]):
            self.numbers[owner] += 1
        number, before = self.numbers[owner], len(self.granted)
        rules = replace(self.rules(enforcement), copies_ms=REMEMBERED_MS)
        answer = self.claim(owner, number, want, (queue,), rules, SkippedTasks(), None, ())
        self.gates.claimed(queue)
        # A promotion is not settled as a task that runs.
        del self.granted[before:]
        for task in answer.tasks:
            self.promoted.append(task)
            copy = Copy(task.tag, task.lease)
            request = replace(self.requests[task.tag][0], copy=copy, is_new=False)
            self.requests[task.tag].append(request)
            if how:
                self.settle([Settle(task.lease, Verdict(how))], self.rules())
            if arrives and how in ("sent", ""):
                self.ask(request)

    def do_end_promotion(self, pick, how):
        """A promoter reports late, or once more."""
        if self.promoted and how:
            task = self.promoted[-1 - pick % min(len(self.promoted), RECENT)]
            self.settle([Settle(task.lease, Verdict(how))], self.rules())

    def do_lose(self):
        super().do_lose()
        self.gates = Gates(self.reference, self.rules())

    def do_cancel_parked(self, broker, picks):
        self.do_cancel(_queue_of(broker), picks)

    def drain(self) -> None:
        """Let every parked task start.

        Raises:
            Objection: A task stays parked, or a key is left behind.
        """
        self.lift()
        for _ in range(ROUNDS):
            if not any(task.is_parked for task in self.reference.tasks.values()):
                break
            self.run(("leave", tuple(range(len(self.running)))))
            self.run(("advance", 5_000))
            self.run(("keep", ""))
            self.claim_all()
            ends = [
                Settle(x.name, Verdict.DONE)
                for x in self.reference.leases.values()
                if not x.is_promotion
            ]
            self.settle(ends, self.rules())
            for broker in BROKERS:
                self.run(("promote", broker, f"promoter:{broker}", False, 16, "on", "sent", True))
        else:
            left = [task for task in self.reference.tasks.values() if task.is_parked]
            raise Objection(f"everything that is parked starts at last: {left}")
        self.run(("leave", tuple(range(len(self.running)))))
        super().drain()


def _number_of(request: SlotRequest) -> int:
    assert request.copy
    return int(request.copy.message.removeprefix("tag.m"))


def _broker_of(request: SlotRequest) -> str:
    return BROKERS[_number_of(request) % 4 == 0]


def _queue_of(broker: str) -> str:
    return f"{PARKED_QUEUES}{broker}"


def gate_scene(seed: int) -> Scene:
    """Return a scene in which claims and gates share limits."""
    made = small_scene(seed)
    budget = scene(seed).budget if seed % 3 == 2 else made.budget
    made = replace(made, weights=WEIGHTS, lanes=GATE_LIMITS, limited=0.8, later=0.0)
    # Eight keys are seldom due at once. What is due and left has no wake-up but the sleepers' own.
    budget = replace(budget, tries=3, looks=max(16, budget.looks), due=max(8, budget.due))
    return replace(made, tenants=made.tenants[:4], budget=budget)


def gate_operations(scene: Scene, length: int) -> list[Operation]:
    """Return the operations of a scene: those of gates, and those of claims that it has."""
    random = Random(scene.seed)
    usual = replace(
        scene, weights={name: x for name, x in WEIGHTS.items() if name not in _MAKERS}
    ).operations(length)
    rest = iter(usual)
    names = random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=length)
    return [
        (name, *_MAKERS[name](scene, random)) if name in _MAKERS else next(rest) for name in names
    ]


def _pick(_scene: Scene, random: Random) -> Operation:
    return (random.randrange(1000),)


def _broker(random: Random) -> str:
    return random.choice((*BROKERS, BROKERS[0]))


def _promote(_scene: Scene, random: Random) -> Operation:
    broker = _broker(random)
    owner = f"promoter:{broker}{random.randrange(2)}"
    again, want = random.random() < 0.1, random.randint(1, 4)
    enforcement = random.choice(["on"] * 8 + ["observe", "off"])
    return broker, owner, again, want, enforcement, random.choice(ENDS), random.random() < 0.8


_MAKERS = {
    "arrive": lambda scene, random: (random.choice(scene.tenants), random.choice(GATE_LIMITS)),
    "deliver": lambda _, random: (random.randrange(1000), random.choice(["on"] * 4 + ["off"])),
    "promote": _promote,
    "end_promotion": lambda _, random: (random.randrange(1000), random.choice(ENDS)),
    "leave": lambda _, random: (
        tuple(random.randrange(1000) for _ in range(random.randint(1, 3))),
    ),
    "keep": lambda _, random: (random.choice(["", "", "w0", "w1"]),),
    "cancel_parked": lambda _, random: (_broker(random), (random.randrange(1000),)),
    "supersede": _pick,
    "advance": lambda _, random: (random.choice([1, 50, 300, 1_000, 1_001, 5_000, 5_000, -300]),),
}
