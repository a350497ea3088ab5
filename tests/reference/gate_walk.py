"""Operations of gates, promoters and a broker that delivers again, among those of claims."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random
from typing import Any

from redis import Redis

from celery_fairness.config.settings import Enforcement, build_settings
from celery_fairness.config.tenants import tier_key
from celery_fairness.limiter.redis import RedisLimiter
from celery_fairness.limiter.types import Job, Lease, SlotRequest
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler.types import Settle, Verdict
from celery_fairness.store.library import Library
from celery_fairness.util.durations import Milliseconds
from tests.reference.events import Event
from tests.reference.gate import Gates
from tests.reference.limits import read_limits
from tests.reference.objection import Objection
from tests.reference.operations import Operation, Scene
from tests.reference.scenes import GATE_LIMITS, focused_scene
from tests.reference.walk import Walk

#: Rounds of five seconds in which every parked task must start once nothing holds it back.
ROUNDS = 100

#: A rejection may be superseded while it is among so many last ones.
RECENT = 8
#: How often each operation comes.
WEIGHTS = {
    "arrive": 9,
    "deliver": 3,
    "promote": 6,
    "leave": 4,
    "keep": 4,
    "advance": 5,
    "cancel_parked": 0.6,
    "put_off": 1.5,
    "supersede": 1.5,
    "stop": 1,
    "override": 1,
    "tenant": 0.7,
    "put": 4,
    "claim": 3,
    "settle": 3,
}


class Calls:
    """The part of a connection that a limiter needs. Each call goes through the walk."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk

    def run(self, function: str, _prefix: str, args: Any) -> Any:
        """Call a function of the library."""
        answer = self.walk.call(function, args)
        self.walk.events += self.walk.seen.events
        return answer


class GateWalk(Walk):
    """One sequence in which gates and claims share their limits."""

    def __init__(self, client: Redis, prefix: str, scene: Scene, made: Library | None = None):
        super().__init__(client, prefix, scene, made)
        tier_waits = scene.seed % 3 == 0
        settings = build_settings(
            {
                "namespace": prefix.strip("{}:"),
                "tiers": {"free": {"concurrency": scene.rules.default_limit}},
                "lease_seconds": scene.rules.lease_ms / 1000,
                "max_deliveries": scene.rules.max_deliveries,
                "tier_on_limit": "wait" if tier_waits else "reschedule",
            }
        )
        # A broker may deliver a message again for as long as a sequence lasts.
        self.limiter = RedisLimiter(
            Calls(self), settings, lambda: Milliseconds(self.now), redelivery_seconds=1e6
        )
        self.gates = Gates(self.reference, self.rules(), tier_waits)
        self.count = itertools.count(1)
        #: Every request of a message that a broker may deliver again, the newest last.
        self.requests: dict[str, list[SlotRequest]] = {}
        self.running: list[Lease] = []
        #: Events since the last operation, in their order.
        self.events: list[Event] = []
        #: Requests whose rejection published a copy.
        self.rejected: list[SlotRequest] = []

    def run(self, operation: Operation) -> None:
        super().run(operation)
        try:
            self.gates.check_events(self.events)
        except Objection as error:
            raise Objection(f"{operation!r} answered {self.answer!r}: {error}") from None
        self.events = []
        self.gates.look()

    def do_arrive(self, tenant, limits):
        limits = limits.replace("*", tenant or "_")
        keys = [*([tier_key(tenant)] if tenant else ()), *(x.key for x in read_limits(limits))]
        if keys:
            copy = Copy(f"m{next(self.count)}")
            job = Job(copy.message, "shop.send", "gate")
            request = SlotRequest(
                Lease("", ",".join(keys)), tenant, "free", copy, limits=limits, job=job
            )
            self.requests[copy.message] = [request]
            self.ask(request)

    def ask(self, request: SlotRequest, enforcement: Enforcement = Enforcement.ON) -> None:
        """Ask for slots as a gate does. If a limit demands it, park the task or send it back."""
        number = next(self.count)
        lease = replace(request.lease, id=f"w{number % 2}@{number}")
        request = replace(request, lease=lease, next_serial=f"n{number}")
        answer = self.limiter.acquire(request, enforcement)
        self.answer = answer
        self.gates.acquire(request, self.rules(enforcement.value), answer, self.seen)
        if not hasattr(answer, "reason"):
            self.running.append(lease)
        elif answer.reason.value == "superseded" or answer.action == "drop":
            return
        elif answer.action == "wait" and (answer.key or self.gates.tier_waits):
            self.park(request)
        else:
            copy = Copy(request.copy.message, request.next_serial)
            again = replace(request, copy=copy, is_new=False)
            self.requests[copy.message].append(again)
            self.rejected.append(request)

    def park(self, request: SlotRequest) -> None:
        message = f"{request.copy.message}\n é"
        expires_ms = self.now + 3_000 if int(request.copy.message[1:]) % 7 == 0 else None
        self.answer = self.limiter.park(request, message, expires_ms)
        self.gates.park(request, message, expires_ms, self.answer)

    def do_deliver(self, pick, enforcement):
        """A broker delivers a copy again."""
        if not self.requests:
            return
        message = sorted(self.requests)[pick % len(self.requests)]
        requests = self.requests[message]
        request = requests[pick % len(requests)]
        # The copy that has started may run again: its worker may have died.
        if self.gates.copies[message].started != request.copy.serial:
            self.ask(request, Enforcement(enforcement))

    def do_promote(self, want, is_published):
        serial = f"s{next(self.count)}x"
        answer = self.answer = self.limiter.promote(want, serial)
        self.gates.promote(want, serial, self.rules(), answer)
        for task in answer.tasks:
            message = task.copy.message
            request = replace(self.requests[message][0], copy=task.copy, is_new=False)
            self.requests[message].append(request)
            if is_published:
                self.answer = self.limiter.unpark([message])
                self.gates.published(message, self.answer)
                if not task.ended:
                    self.ask(request)

    def do_put_off(self, pick):
        """A promoter could not publish a task, or reports this too late."""
        known = [tag for tag, x in self.gates.parked.items() if x.place == "promoted"]
        known = known or sorted(self.requests)
        if known:
            tag = known[pick % len(known)]
            self.answer = self.limiter.put_off(tag)
            self.gates.put_off(tag, self.answer)

    def do_supersede(self, pick):
        """A gate publishes a copy once more, because the first publication may be lost."""
        if self.rejected:
            request = self.rejected[-1 - pick % min(len(self.rejected), RECENT)]
            message, serial = request.copy.message, f"n{next(self.count)}"
            self.answer = self.limiter.supersede(request.copy, serial)
            self.gates.supersede(request.copy, serial, self.answer)
            if self.answer:
                again = replace(request, copy=Copy(message, serial), is_new=False)
                self.requests[message].append(again)

    def do_cancel_parked(self, pick):
        waiting = [tag for tag, x in self.gates.parked.items() if x.place == "parked"]
        if waiting:
            tag = waiting[pick % len(waiting)]
            self.answer = self.limiter.unpark([tag], "cancelled")
            self.gates.cancelled(tag, self.answer)

    def do_leave(self, picks):
        """Bodies end."""
        chosen = dict.fromkeys(
            self.running[pick % len(self.running)] for pick in picks if self.running
        )
        if chosen:
            self.running = [lease for lease in self.running if lease not in chosen]
            self.answer = self.limiter.release(list(chosen))
            self.gates.free(list(chosen), self.answer)

    def do_keep(self, dead):
        """Workers renew; one of two may be dead, and its leases end by themselves."""
        leases = [lease for lease in self.running if lease.worker != dead]
        answer = self.answer = self.limiter.renew(leases, self.epoch)
        missing = {*answer.gone, *answer.entered}
        places = [place for place, lease in enumerate(leases, 1) if lease in missing]
        held = [(lease.id, lease.key) for lease in leases]
        known, self.epoch = self.epoch, answer.epoch
        self.events = []
        self.reference.renew(held, self.rules(), known, (answer.epoch, places), self.seen)

    def drain(self) -> None:
        """Let every parked task start.

        Raises:
            Objection: A task stays parked.
        """
        self.lift()
        for _ in range(ROUNDS):
            if not self.gates.parked:
                return
            self.run(("leave", tuple(range(len(self.running)))))
            self.run(("advance", 5_000))
            self.run(("keep", ""))
            self.claim_all()
            ends = [Settle(x.name, Verdict.DONE) for x in self.reference.leases.values()]
            self.settle(ends, self.rules())
            self.run(("promote", 16, True))
        raise Objection(f"everything that is parked starts at last: {self.gates.parked}")


def gate_scene(seed: int) -> Scene:
    """Return a scene in which claims and gates share limits."""
    made = focused_scene("limits", seed)
    made = replace(made, weights=WEIGHTS, lanes=GATE_LIMITS, limited=0.8, later=0.0)
    return replace(made, tenants=made.tenants[:4])


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


_MAKERS = {
    "arrive": lambda scene, random: (random.choice(scene.tenants), random.choice(GATE_LIMITS)),
    "deliver": lambda _, random: (random.randrange(1000), random.choice(["on"] * 4 + ["off"])),
    "promote": lambda _, random: (random.randint(1, 4), random.random() < 0.7),
    "leave": lambda _, random: (
        tuple(random.randrange(1000) for _ in range(random.randint(1, 3))),
    ),
    "keep": lambda _, random: (random.choice(["", "", "w0", "w1"]),),
    "cancel_parked": _pick,
    "put_off": _pick,
    "supersede": _pick,
    "advance": lambda _, random: (random.choice([1, 50, 300, 1_000, 1_001, 5_000, 5_000, -300]),),
}
