"""What one run does: who the tenants are, how many faults of which kind, and when.

Invariant: the seed alone decides which faults come in which order and what the load is; only the
moment at which each happens is the machine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from celery_fairness import RateLimitPolicy

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
    "burst0": 4,
    "paced0": 4,
    "lent0": 4,
    "light0": 4,
    "light1": 4,
    "heavy0": 2,
    "slim0": 4,
    "slim1": 4,
    "wide0": 2,
    "part0": 4,
    "part1": 4,
    "unique0": 4,
    "system": None,
}
#: The tenant of unique tasks, which another broker than ours cannot have.
UNIQUE = "unique0"
#: What its duplicates do, as the ledger calls it: a debounce is a replace of a task that waits.
OnDuplicate = Literal["drop", "existing", "replace", "debounce"]
ON_DUPLICATE: tuple[OnDuplicate, ...] = ("drop", "existing", "replace", "debounce")

#: What an attempt counts at a key: itself, or the units or the slots of its task.
Counted = Literal["one", "units", "slots"]


@dataclass(frozen=True)
class Pace:
    """What a key allows in a window of time.

    Attributes:
        tenants: Whose tasks have the key.
        most: Starts or units in any window.
        seconds: Of which length. Of a throttle of ten in five seconds a tenth of the spacing may be
            made up for: ten in 4.95 s.
        policy: A limit of each call. None: a tier or a queue has the number.
        counts: What a start counts.
        by_part: Each part of the tenants' work is a key.
    """

    tenants: tuple[str, ...]
    most: int
    seconds: float
    policy: RateLimitPolicy | None = None
    counts: Counted = "one"
    by_part: bool = False


@dataclass(frozen=True)
class Cap:
    """What a key allows at once. Attributes as of a `Pace`."""

    tenants: tuple[str, ...]
    most: int
    policy: RateLimitPolicy | None = None
    counts: Counted = "one"
    by_part: bool = False


#: The key whose starts count units, and that a body corrects.
TOKENS = "chaos.tokens"
LIGHT, HEAVY = ("light0", "light1"), "heavy0"
#: The key whose running tasks count slots.
SLOTS = "chaos.slots"
SLIM, WIDE = ("slim0", "slim1"), "wide0"
PARTS = ("part0", "part1")
#: By key.
PACES = {
    "chaos.rate:rate0": Pace(
        ("rate0",), 20, 5.0, RateLimitPolicy("chaos.rate:rate0", rate="20/5s")
    ),
    "chaos.even:even0": Pace(
        ("even0",), 10, 4.95, RateLimitPolicy("chaos.even:even0", throttle="10/5s")
    ),
    "chaos.burst:burst0": Pace(
        ("burst0",), 20, 12.0, RateLimitPolicy("chaos.burst:burst0", rate="20/12s")
    ),
    TOKENS: Pace(
        (*LIGHT, HEAVY),
        60,
        4.0,
        RateLimitPolicy(TOKENS, rate="60/4s", units="args.units"),
        counts="units",
    ),
    "tier paced": Pace(("paced0",), 15, 5.0),
    "queue": Pace(PARTS, 40, 5.0),
    "partition": Pace(PARTS, 12, 5.0, by_part=True),
}
#: By key, beside those of tenants.
CAPS = {
    "queue": Cap(PARTS, 3),
    "partition": Cap(PARTS, 1, by_part=True),
    SLOTS: Cap(
        (*SLIM, WIDE),
        8,
        RateLimitPolicy(SLOTS, concurrency=8, slots="args.slots"),
        counts="slots",
    ),
}


#: Tiers by what they allow, and those that allow more than that.
TIERS = {1: "free", 2: "two", 4: "four"}
TIER_PACES = {"paced": (4, "15/5s")}
#: Tiers with a burst: tasks at once, and while a claim finds nothing else. A gate lends nothing.
TIER_BURSTS = {"lent": (1, 4)}
TIER_OF = {"paced0": "paced", "lent0": "lent"}
#: The queues of tenants whose tasks are not in the default one. Light and slim tasks have one of
#: their own, so that a heavy or a wide one would starve if its key did not save for it.
QUEUE, LIGHT_QUEUE = "celery-parts", "celery-light"
QUEUE_OF = {**dict.fromkeys((*LIGHT, *SLIM), LIGHT_QUEUE), **dict.fromkeys(PARTS, QUEUE)}


#: The settings of the queue with a limit.
QUEUE_SETTINGS: Mapping[str, Any] = {
    "global_limit": CAPS["queue"].most,
    "rate": "40/5s",
    "by_args": ["part"],
    "partition": {"concurrency": 1, "rate": "12/5s"},
}

#: A unique task waits so long for the next call, and at most so long after the first.
DEBOUNCE_SECONDS = 1.0
DEBOUNCE_AT_MOST_SECONDS = 3.0

#: Tenants whose tasks wait for the same thing, and the longest that one may wait for it, in
#: seconds. Each tenant has `backlog` tasks waiting. So a task waits for those and a window, and for
#: bodies that are longer than a lease (`Plan.longest_seconds`).
STARVABLE: dict[str, tuple[tuple[str, ...], float]] = {
    "units, light tasks": (LIGHT, 15.0),
    "units, heavy tasks": ((HEAVY,), 15.0),
    "slots, slim tasks": (SLIM, 15.0),
    "slots, wide tasks": ((WIDE,), 15.0),
    "a burst": (("burst0",), 15.0),
    "a tier's rate": (("paced0",), 7.0),
    "partitions of a queue": (PARTS, 10.0),
    "unique tasks": ((UNIQUE,), 6.0),
}

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
#: Those that give one slot to another server, and no other slot.
MOVES: tuple[Kind, ...] = ("move", "move at once", "node")
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
#: The longest body, in leases.
LONGEST = 1.4


@dataclass(frozen=True)
class Plan:
    """Amounts of one run.

    Attributes:
        seconds: How long faults happen; the start and the drain come on top.
        lease_seconds: The setting of the app.
        long_pause_seconds: How long Redis is paused once, longer than a lease.
        long_share: Share of the tasks that run longer than a lease.
        amounts: How many faults of each kind.
        patience: A wait after a fault of this many times its bound fails the run. The quick form
            runs beside other work, so it judges what stalls, and the other forms judge how long a
            wait takes.
    """

    seconds: float
    lease_seconds: float
    long_pause_seconds: float
    long_share: float
    amounts: Mapping[Kind, int]
    patience: float = 1.0

    @property
    def longest_seconds(self) -> float:
        """The longest that a body takes."""
        return LONGEST * self.lease_seconds


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
    """One task of the load.

    Attributes:
        units: What it takes of a rate that counts units.
        slots: What it takes of a concurrency that counts slots.
        used: What its body reports in place of that. None: it reports nothing.
        part: Which part of a queue it is of. "": of none.
    """

    seconds: float
    late: bool
    countdown: float
    retries: int
    units: int = 1
    slots: int = 1
    used: int | None = None
    part: str = ""


def next_job(plan: Plan, random: Random, tenant: str = "") -> Job:
    """Return what the next task of a tenant is."""
    roll = random.random()
    if roll < plan.long_share:
        seconds = random.uniform(1.05, LONGEST) * plan.lease_seconds
    elif roll < 0.15:
        seconds = random.uniform(0.3, 1.5)
    elif roll < 0.40:
        seconds = random.uniform(0.05, 0.3)
    else:
        seconds = random.uniform(0.005, 0.05)
    job = Job(
        seconds=round(seconds, 4),
        late=random.random() < 0.6,
        countdown=round(random.uniform(0.3, 3.0), 3) if random.random() < 0.08 else 0.0,
        retries=1 if random.random() < 0.06 else 0,
    )
    if tenant in PACES[TOKENS].tenants:
        # What is left of the window beside light tasks is never enough for a heavy one.
        units = random.randint(8, 16) if tenant in LIGHT else random.randint(40, 60)
        # Most estimates are too high, some are too low, and a third is not corrected.
        used = random.randint(0, round(1.2 * units)) if random.random() < 0.67 else None
        return replace(job, units=units, used=used)
    if tenant in CAPS[SLOTS].tenants:
        # Slim tasks leave a wide one never enough slots at once.
        slots = random.randint(1, 2) if tenant in SLIM else random.randint(6, 8)
        return replace(job, slots=slots, seconds=max(job.seconds, random.uniform(0.8, 1.6)))
    if tenant in PARTS:
        return replace(job, part=random.choice("abcd"))
    return job


@dataclass(frozen=True)
class Call:
    """Some calls of a unique task, one right after the other, as a person clicks again."""

    on_duplicate: OnDuplicate
    account: str
    times: int
    seconds: float
    retries: int


def next_call(random: Random) -> Call:
    """Return the next calls of a unique task. Their key is among few, so that keys meet."""
    return Call(
        on_duplicate=random.choice(ON_DUPLICATE),
        account=random.choice("xy"),
        times=random.choice((1, 1, 2, 3)),
        seconds=round(random.uniform(0.005, 1.0), 4),
        retries=1 if random.random() < 0.15 else 0,
    )
