"""What one run does: who the tenants are, how many faults of which kind, and when.

Invariant: the seed alone decides which faults come in which order and what the load is; only the
moment at which each happens is the machine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

#: The broker of a run: ours on one Redis, ours on a cluster, RabbitMQ with the gate, and that of
#: plain Celery on ``redis://``.
On = Literal["fairredis", "faircluster", "gate", "stock"]
#: Those with our broker.
OUR_BROKERS: tuple[On, ...] = ("fairredis", "faircluster")

#: What each tenant may run at once; None is a task without a tenant.
LIMITS: dict[str, int | None] = {
    **{f"one{number}": 1 for number in range(8)},
    **{f"two{number}": 2 for number in range(2)},
    "four0": 4,
    "rate0": 4,
    "even0": 4,
    "system": None,
}


@dataclass(frozen=True)
class Pace:
    """A limit that each task of a tenant has beside its tier's, and what it allows.

    Attributes:
        policy: As the Open Job Spec writes it.
        most: Starts in any window.
        seconds: Of which length. Of a throttle of ten in five seconds a tenth of the spacing may be
            made up for: ten in 4.95 s.
    """

    policy: Mapping[str, Any]
    most: int
    seconds: float


#: By tenant.
PACES = {
    "rate0": Pace({"key": "chaos.rate", "rate": {"limit": 20, "period": "PT5S"}}, 20, 5.0),
    "even0": Pace({"key": "chaos.even", "throttle": {"limit": 10, "period": "PT5S"}}, 10, 4.95),
}
#: Tiers by what they allow.
TIERS = {1: "free", 2: "two", 4: "four"}

Kind = Literal[
    "kill worker",
    "kill child",
    "stop",
    "freeze",
    "poison",
    "unreadable",
    "shrink",
    "cut",
    "pause",
    "restart",
    "clock",
    "failover",
    "move",
    "move at once",
    "node",
    "kill primary",
    "partition",
]
#: Faults of Redis come one after the other: those of one server, and those of a cluster.
OF_REDIS: tuple[Kind, ...] = ("cut", "pause", "restart", "clock")
#: Changes that an operator of a cluster makes. No ``delay()`` may fail by it.
PLANNED: tuple[Kind, ...] = ("failover", "move", "move at once", "node")
#: Faults that may lose the last writes of a cluster, because no replica has them yet.
LOSING: tuple[Kind, ...] = ("kill primary", "partition")
OF_CLUSTER = (*PLANNED, *LOSING)

#: The part of a run in which Redis has no fault yet. So some workers die without an outage.
QUIET_PART = 0.2
#: The app's ``max_deliveries`` on fairredis: deaths that make a late-acked task a dead letter.
MAX_DELIVERIES = 5
#: The tenants of poisons. A slot that is back in time is measured where a tenant may run one task.
POISONED = ("two0", "two1", "four0")
#: How long a pool has no process, in seconds.
SHRUNK_SECONDS = 3.0
PAUSE_SECONDS = 3.0
#: The longest that a restarted Redis stays away, in seconds.
AWAY_SECONDS = 2.0
#: The longest that a slot is between two nodes, in seconds: shorter than a producer waits.
MOVING_SECONDS = 1.5
#: How long a node stays apart when a replica has taken its place: longer than work may rest.
APART_SECONDS = 12.0


@dataclass(frozen=True)
class Plan:
    """Amounts of one run.

    Attributes:
        seconds: How long faults happen; the start and the drain come on top.
        lease_seconds: The setting of the app.
        long_pause_seconds: How long Redis is paused once, longer than a lease.
        long_share: Share of the tasks that run longer than a lease.
        amounts: How many faults of each kind.
        patience: A wait of this many times its bound fails the run. The quick form runs beside
            other work, so it judges what stalls, and the other forms judge how long a wait takes.
    """

    seconds: float
    lease_seconds: float
    long_pause_seconds: float
    long_share: float
    amounts: Mapping[Kind, int]
    patience: float = 1.0


FULL = Plan(
    seconds=1500.0,
    lease_seconds=15.0,
    long_pause_seconds=20.0,
    long_share=0.02,
    amounts={
        "kill worker": 305,
        "kill child": 305,
        "stop": 21,
        "freeze": 21,
        "poison": 24,
        "unreadable": 24,
        "shrink": 20,
        "cut": 60,
        "pause": 21,
        "restart": 21,
        "clock": 20,
    },
)
QUICK = Plan(
    seconds=80.0,
    lease_seconds=3.0,
    long_pause_seconds=4.5,
    long_share=0.05,
    amounts={
        "kill worker": 16,
        "kill child": 16,
        "stop": 3,
        "freeze": 4,
        "poison": 4,
        "unreadable": 8,
        "shrink": 3,
        "cut": 8,
        "pause": 3,
        "restart": 3,
        "clock": 3,
    },
    patience=2.0,
)
#: Nothing but deaths, a thousand of them: what begins twice?
DEATHS = Plan(
    seconds=700.0,
    lease_seconds=3.0,
    long_pause_seconds=4.5,
    long_share=0.02,
    amounts={"kill worker": 700, "kill child": 300},
)
PLANS = {"full": FULL, "quick": QUICK, "deaths": DEATHS}


def on_cluster(plan: Plan) -> Plan:
    """Return the plan with faults of a cluster in place of those of one Redis."""
    amounts = {kind: amount for kind, amount in plan.amounts.items() if kind not in OF_REDIS}
    if len(amounts) < len(plan.amounts):
        # A replica follows its primary again before the next, so there is time for these.
        most = max(2, round(plan.seconds / 100))
        planned: dict[Kind, int] = dict.fromkeys(PLANNED, most)
        amounts |= planned | {"node": most // 2, "kill primary": most, "partition": most // 2}
    return replace(plan, amounts=amounts)


def scaled(plan: Plan, share: float) -> Plan:
    """Return the plan with another length and amounts to match, at least one of its kinds each."""

    def part(amount: int) -> int:
        return max(min(1, amount), round(amount * share))

    return replace(
        plan,
        seconds=plan.seconds * share,
        amounts={kind: part(amount) for kind, amount in plan.amounts.items()},
    )


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        at: Seconds after the start of the faults.
        kind: What happens.
        seconds: How long it lasts, where it does.
        target: Chooses among those that can be hit, 0 to 1.
        variant: Chooses the form of the fault, 0 to 1.
    """

    at: float
    kind: Kind
    seconds: float
    target: float
    variant: float


def faults(plan: Plan, seed: int) -> list[Fault]:
    """Return every fault of a run in the order of their times."""
    random = Random(f"faults {seed}")
    everything = [kind for kind, amount in plan.amounts.items() for _ in range(amount)]
    found = []
    for is_redis in (False, True):
        kinds = [kind for kind in everything if (kind in (*OF_REDIS, *OF_CLUSTER)) == is_redis]
        random.shuffle(kinds)
        begin = QUIET_PART * plan.seconds if is_redis else 0.0
        each = (plan.seconds - begin) / max(1, len(kinds))
        paused = frozen = poisoned = 0
        for number, kind in enumerate(kinds):
            seconds = 0.0
            if kind == "pause":
                seconds = plan.long_pause_seconds if paused == 0 else PAUSE_SECONDS
                paused += 1
            elif kind == "restart":
                seconds = random.choice((0.0, random.uniform(0.2, AWAY_SECONDS)))
            elif kind == "move":
                seconds = random.uniform(0.2, MOVING_SECONDS)
            elif kind == "partition":
                seconds = APART_SECONDS
            elif kind == "freeze":
                # Every second one is longer than a lease.
                longest = plan.lease_seconds
                seconds = (
                    random.uniform(1.1, 1.4) * longest
                    if frozen % 2 == 0
                    else random.uniform(0.1, 0.6) * longest
                )
                frozen += 1
            variant = random.random()
            if kind == "poison":
                # A short run has each form too.
                variant = poisoned % 4 / 4
                poisoned += 1
            at = begin + (number + random.uniform(0.0, 0.6)) * each
            found.append(Fault(at, kind, seconds, random.random(), variant))
    return sorted(found, key=lambda fault: fault.at)


@dataclass(frozen=True)
class Job:
    """One task of the load."""

    seconds: float
    late: bool
    countdown: float
    retries: int


def next_job(plan: Plan, random: Random) -> Job:
    """Return what the next task is."""
    roll = random.random()
    if roll < plan.long_share:
        seconds = random.uniform(1.05, 1.4) * plan.lease_seconds
    elif roll < 0.15:
        seconds = random.uniform(0.3, 1.5)
    elif roll < 0.40:
        seconds = random.uniform(0.05, 0.3)
    else:
        seconds = random.uniform(0.005, 0.05)
    return Job(
        seconds=round(seconds, 4),
        late=random.random() < 0.6,
        countdown=round(random.uniform(0.3, 3.0), 3) if random.random() < 0.08 else 0.0,
        retries=1 if random.random() < 0.06 else 0,
    )
