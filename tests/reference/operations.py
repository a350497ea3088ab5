"""Random operations on a scheduler, as plain values: a seed gives a sequence, and a part of a
sequence is a sequence again, so one that fails can be made shorter.

What an operation refers to (a lease, a tag) is a number that is looked up when it runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from celery_fairness.config.limit_spec import OF_QUEUE, Limit, write_limits
from celery_fairness.scheduler.types import Bounds, Rules, SkippedTasks, Verdict
from tests.reference.budget import Budget
from tests.support.limits import changed

TENANTS = ("", "a", "b", "c", "d", "h_0", "_invalid")
QUEUES = ("q_default", "q_priority", "löng p|1\nname")
OWNERS = ("w1", "host:2:w2", "host:3:0f3")
#: What stands in the keys of their limits.
KEYS = dict(zip(QUEUES, ("queue:q_default", "queue:q_priority", "queue:h_1"), strict=True))
#: Operations of a long run are cut into pieces of so many.
LENGTH = 400
#: What a task is; "" where its message does not say it.
KINDS = ("x", "x", "y", "y", "z", "")

#: Limits that tasks have; ``*`` is the tenant.
LIMITS = (
    Limit("x", concurrency=1),
    Limit("x", concurrency=1),
    Limit("x", concurrency=2),
    Limit("y", concurrency=1),
    Limit("y", concurrency=0),
    Limit("z", rate=((3, 1_000),)),
    Limit("z", rate=((2, 500), (4, 5_000))),
    Limit("z", rate=((3, 1_000),), units=2),
    Limit("u", rate=((5, 2_000),)),
    *(Limit("u", rate=((5, 2_000),), units=units) for units in (2, 3, 5, 9)),
    Limit("v", rate=((4, 1_000),), units=3),
    Limit("g", concurrency=4),
    *(Limit("g", concurrency=4, slots=slots) for slots in (2, 3, 4, 9)),
    *(Limit("h", concurrency=3, slots=slots) for slots in (None, 2, 3)),
    Limit("m", concurrency=2, rate=((5, 2_000),), slots=2, units=3),
    Limit("t", throttle=((3, 1_000),)),
    Limit("m", concurrency=2, rate=((5, 2_000),), throttle=((10, 1_000),)),
    Limit("none"),
    Limit("api.x-1", concurrency=1),
    Limit("api.x-2", concurrency=2, rate=((4, 2_000),)),
    Limit("api.y"),
    Limit("a.b.c.d.e.f.g.h.i"),
    Limit("own:*", concurrency=1, private=True),
    Limit("own:*", concurrency=1, private=True),
    *(Limit(f"{key}:{part}", of=OF_QUEUE) for key in KEYS.values() for part in (1, 2)),
    # A gate names both its partition and the whole queue.
    *(Limit(key, of=OF_QUEUE) for key in KEYS.values()),
    Limit("queue:q_default", concurrency=2),
    Limit("queue:h_1", rate=((3, 1_000),), throttle=((9, 1_000),)),
)

#: The keys of overrides that hold for many keys.
PATTERNS = (
    *("*", "*", "api.*", "api.*", "api.x-*", "own:*", "a.b.c.d.e.f.g.*"),
    *("queue:q_default:*", "queue:h_1:*"),
)

#: Numbers of limits whose key is that of a tenant's tier.
OF_TIERS = (
    Limit(""),
    Limit("", concurrency=1),
    Limit("", concurrency=2),
    Limit("", concurrency=0),
    Limit("", concurrency=1, rate=((3, 1_000),)),
    Limit("", throttle=((3, 1_000),)),
)

#: Claims that let waiting time count, alone and beside others.
AGING = (("aging",), ("aging", "aging", "queue", "tenant"))

_BOUNDS = (None, Bounds(), Bounds("gold", 3), Bounds("free", 8, 12), Bounds("pro", None, 4))

Operation = tuple[object, ...]


@dataclass(frozen=True)
class Scene:
    """What does not change in one sequence, and how often each operation comes."""

    seed: int
    rules: Rules
    budget: Budget
    services: tuple[str, ...]
    tenants: tuple[str, ...]
    queues: tuple[str, ...]
    enforcements: tuple[str, ...]
    weights: dict[str, float]
    later: float
    passing: float
    limited: float
    #: How often a lane has a limit whose key is that of a tenant's tier, its own or another's.
    of_tiers: float
    actions: tuple[str, ...]
    lanes: tuple[str, ...]
    #: Bounds of how many wait that a put may name; None: it was accepted before.
    bounds: tuple[Bounds | None, ...]
    #: How often a put has an expiry.
    expiring: float
    #: How often a put has a unique key.
    unique: float
    #: What claims charge: processes with other settings may meet.
    charging: tuple[str, ...]
    #: What a rank orders, as claims say it: it is changed with tasks waiting.
    scopes: tuple[str, ...]

    def operations(self, length: int = LENGTH) -> list[Operation]:
        random = Random(self.seed)
        names, weights = list(self.weights), list(self.weights.values())
        return [
            (name, *_MAKERS[name](self, random))
            for name in random.choices(names, weights, k=length)
        ]


def scene(seed: int) -> Scene:
    """Return a scene with some operations often and others rarely or never."""
    random = Random(-seed - 1)
    usual = {
        "put": 10.0,
        "claim": 8.0,
        "settle": 8.0,
        "begin": 2.0,
        "used": 1.0,
        "next_outcome": 1.0,
        "advance": 3.0,
        "lapse": 1.0,
        "renew": 2.0,
        "tiers": 1.0,
        "tenant": 1.0,
        "gate": 1.0,
        "ungate": 1.0,
        "stop": 1.0,
        "watch": 0.2,
        "override": 1.0,
        "report": 1.0,
        "queue": 1.0,
        "cancel": 1.0,
        "requeue": 1.0,
        "move": 1.0,
        "hear": 0.7,
        "size": 0.5,
        "purge": 0.3,
        "lose": 0.05,
        "save": 0.2,
        "restore": 0.2,
    }
    often = ("put", "claim", "settle")
    weights = {
        name: weight * random.choice([0.5, 1, 2] if name in often else [0, 0.3, 1, 3])
        for name, weight in usual.items()
    }
    actions = random.choice(
        [("wait",), ("wait", "reschedule", "drop"), ("wait", "reschedule"), ("wait", "drop")]
    )
    burst = random.choice([None, 2, 3, 5])
    if burst:
        # Other numbers of tenants would seldom let one be between its concurrency and its burst.
        weights |= {name: weights[name] / 5 for name in ("tiers", "tenant", "stop", "override")}
    made = Scene(
        seed,
        Rules(
            lease_ms=random.choice([1_000, 15_000]),
            default_limit=random.choice([1, 1, 2] if burst else [0, 1, 2, None]),
            max_deliveries=random.choice([0, 1, 2, 5]),
            fairness_by="cost",
            default_numbers={"burst": burst} if burst else {},
        ),
        random.choice(
            [
                Budget(),
                Budget(2, 1, 3, 1, 1, 1, unit_bytes=100, taken=5),
                Budget(3, 2, passed=3, lanes=2, tags=2, looks=2),
                Budget(moves=6, looks=2, unit_bytes=50, taken=8),
            ]
        ),
        random.choice([("",), ("",), ("s", "t")]),
        TENANTS[: random.randint(2, len(TENANTS))],
        QUEUES[: random.randint(1, len(QUEUES))],
        random.choice([("on",)] * 3 + [("on", "on", "on", "off"), ("on", "observe", "off")]),
        weights,
        random.choice([0.05, 0.3, 0.8]),
        random.choice([0.0, 0.2, 0.8]),
        random.choice([0.0, 0.3, 0.9]),
        random.choice([0.0, 0.2, 0.7]),
        actions,
        (),
        random.choice([(None,), (None,), _BOUNDS]),
        random.choice([0.0, 0.1, 0.6]),
        random.choice([0.0, 0.0, 0.3, 0.8]),
        random.choice([("cost",), ("tasks",), ("runtime",), ("runtime", "cost", "tasks")]),
        random.choice([("tenant",), ("tenant",), ("queue",), ("queue", "queue", "tenant"), *AGING]),
    )
    return replace(made, lanes=_lanes(made, random))


def _put(scene: Scene, random: Random) -> Operation:
    return (
        random.choice(scene.queues),
        random.randrange(40) if random.random() < 0.1 else None,
        random.choice(scene.tenants),
        random.choice(scene.services),
        random.choice(["free", "free", "free", "pro", "pro", "gold", ""]),
        random.choice([0, 0, 0, 0, 4, 5, 9]),
        random.choice([1.0, 1.0, 1.0, 0.1, 3.0, 1 / 3, 1e-9, 1e9]),
        random.choice([-5, 0, 1, 700, 700, scene.rules.lease_ms, 3_600_000])
        if random.random() < scene.later
        else None,
        random.choice(KINDS),
        _limits(scene, random),
        random.choice(scene.bounds),
        random.choice([-5, 0, 1, 300, 700, 701, 3_600_000])
        if random.random() < scene.expiring
        else None,
        f"{random.choice('dder')}|{random.choice([0, 0, 500])}|{random.choice('uvw')}"
        if random.random() < scene.unique
        else "",
    )


def _limits(scene: Scene, random: Random) -> str:
    if random.random() >= scene.limited:
        return ""
    return random.choice(scene.lanes) if scene.lanes else _lane(scene, random)


def _lanes(scene: Scene, random: Random) -> tuple[str, ...]:
    """Few lanes are long ones and meet; one waits at a limit that opens, and then at another."""
    others = tuple(_lane(scene, random) for _ in range(random.choice([0, 1, 3])))
    at = Limit("x", concurrency=1)
    then = Limit("z", rate=((2, 5_000),), on_limit=random.choice(scene.actions))
    return (write_limits((at, then)), *others) if others else ()


def _lane(scene: Scene, random: Random) -> str:
    limits = random.choices(LIMITS, k=random.randint(1, 3))
    if random.random() < scene.of_tiers:
        limits[-1] = _of_tier(scene, random)
    chosen = {each.key: changed(each, on_limit=random.choice(scene.actions)) for each in limits}
    return write_limits(tuple(sorted(chosen.values(), key=lambda x: (not x.private, x.text))))


def _of_tier(scene: Scene, random: Random) -> Limit:
    """Return a limit that shares the counts of a tenant's tier, its own or another's."""
    tenant = random.choice(("*", *scene.tenants[1:]))
    service = random.choice(scene.services)
    return changed(
        random.choice(OF_TIERS),
        key=f"tenant:{tenant}:{service}" if service else f"tenant:{tenant}",
        private=tenant == "*" and random.random() < 0.5,
    )


def _claim(scene: Scene, random: Random) -> Operation:
    return (
        random.choice(OWNERS),
        random.random() < 0.1,
        random.randint(1, 6),
        tuple(random.sample(scene.queues, random.randint(1, len(scene.queues)))),
        random.choice(scene.enforcements),
        random.random() < 0.5,
        _passing(random)
        if random.random() < scene.passing
        else SkippedTasks(spare=random.choice([0, 0, 0, 1, 2])),
        random.random() < 0.7,
        random.choice(["", "now", "now", "now", "before"]),
        _ends(random) if random.random() < 0.3 else (),
        random.choice(scene.charging),
        random.choice(scene.scopes),
    )


def _passing(random: Random) -> SkippedTasks:
    kinds = sorted(set(KINDS))
    return SkippedTasks(
        tuple(random.sample(kinds, random.randint(0, 3))),
        tuple(random.sample(kinds, random.randint(0, 2))),
        {queue: random.randint(1, 3) for queue in QUEUES if random.random() < 0.1},
        {
            key: random.randint(1, 2)
            for queue in KEYS.values()
            for key in (queue, f"{queue}:1", f"{queue}:2")
            if random.random() < 0.2
        },
        {queue: random.randint(0, 3) for queue in QUEUES if random.random() < 0.3},
        random.random() < 0.5,
        random.random() < 0.3,
        random.choice([0, 0, 1]),
    )


def _settle(scene: Scene, random: Random) -> Operation:
    return _ends(random), random.choice(scene.enforcements)


def _begin(scene: Scene, random: Random) -> Operation:
    verdict = random.choice([Verdict.BEGUN, Verdict.ACKED, Verdict.TAKEN])
    return random.randrange(1000), verdict, random.choice(["now", "now", "before"])


def _used(scene: Scene, random: Random) -> Operation:
    return (
        random.randrange(1000),
        random.choice(["u", "u", "z", "x"]),
        random.choice([0, 1, 2, 4, 7]),
    )


def _ends(random: Random) -> tuple[tuple[int, Verdict], ...]:
    ran = [Verdict.DONE, Verdict.FAILED, Verdict.RETRIED]
    verdicts = ran + [Verdict.BEGUN] * 2 + [each for each in Verdict if each not in ran[1:]]
    return tuple(
        (random.randrange(1000), random.choice(verdicts)) for _ in range(random.randint(1, 5))
    )


def _next_outcome(scene: Scene, random: Random) -> Operation:
    return random.choice(scene.enforcements), random.random() < 0.7


def _renew(scene: Scene, random: Random) -> Operation:
    picks = tuple(random.randrange(1000) for _ in range(random.randint(0, 8)))
    return picks, random.choice(["", "now", "now", "before"])


def _advance(scene: Scene, random: Random) -> Operation:
    lease_ms = scene.rules.lease_ms
    steps = [1, 49, 50, 51, 300, lease_ms // 3, lease_ms // 3 + 1, lease_ms, 2 * lease_ms]
    return (random.choice(steps * 4 + [-3, -60, -3_600_000, 3_600_000]),)


#: Rates of tiers with other periods than those of limits that share their keys. A start by such a
#: limit forgets what is older than its own period, so it may open a tenant whose period is new.
LONGER = ("2/5s", "4/20s")


def _window(scene: Scene, starts: int, period_ms: int) -> tuple[tuple[int, int], ...]:
    """Return a rate that a tenant's key may have."""
    return ((starts, 1_000 if scene.of_tiers else period_ms),)


def _tiers(scene: Scene, random: Random) -> Operation:
    def numbers() -> tuple[int | None, float, int | None, str | None, str | None, int | None]:
        waiting = random.choice([1, 5, None]) if len(scene.bounds) > 1 else None
        return (
            random.choice([0, 1, 1, 1, 2, 3, None]),
            random.choice([1.0, 1.0, 2.0, 0.3]),
            waiting,
            random.choice([None, None, None, "3/1s", *(["2/1s"] if scene.of_tiers else LONGER)]),
            random.choice([None, None, None, None, "3/1s"]),
            random.choice([None, None, 1, 2, 3, 5]),
        )

    return numbers(), numbers() if random.random() < 0.7 else None


def _tenant(scene: Scene, random: Random) -> Operation:
    tenant = random.choice(scene.tenants[1:])
    numbers = (
        ("concurrency", random.choice([0, 2, 2, None])),
        ("rates", random.choice([(), _window(scene, 1, 700), _window(scene, 4, 5_000)])),
        ("throttle", random.choice([None, (2, 1_000)])),
        ("burst", random.choice([None, 3, 4])),
    )
    own = tuple(each for each in numbers if random.random() < 0.25)
    return tenant, random.choice(["free", "pro", "gold", ""]), own


def _gate(scene: Scene, random: Random) -> Operation:
    return (
        random.choice(scene.tenants[1:]),
        random.choice(scene.services),
        f"g{random.randrange(3)}",
    )


def _stop(scene: Scene, random: Random) -> Operation:
    how = random.choice(["pause", "pause", "resume", "resume", "resume", "cool", "cool", "clear"])
    key = _steered(scene, random)
    wait_ms = random.choice([1, 700, 5_000] + [0] * 3 * (how == "pause"))
    return how, key, wait_ms, random.choice(scene.enforcements)


def _report(scene: Scene, random: Random) -> Operation:
    tenant = random.choice(scene.tenants) or "_"
    left = random.choice([None, 0, 1, 1, 2, 5])
    cool_ms = random.choice([700, 3_000]) if left is None else random.choice([None, None, 1_000])
    key = random.choice(LIMITS).key.replace("*", tenant)
    return key, left, random.choice([1, 700, 3_000, 5_000, 9_000]), cool_ms


def _watch(scene: Scene, random: Random) -> Operation:
    return (random.choice([1, 700, 20_000]),)


def _steered(scene: Scene, random: Random) -> str:
    """Return a key that people pause or change: of limits, or of a tenant."""
    tenant = random.choice(scene.tenants) or "_"
    if random.random() < 0.2:
        return random.choice([*KEYS.values(), *(f"{key}:1" for key in KEYS.values())])
    if random.random() < 0.6:
        return random.choice(LIMITS).key.replace("*", tenant)
    service = random.choice(("", *scene.services))
    return f"tenant:{tenant}:{service}" if service else f"tenant:{tenant}"


def _override(scene: Scene, random: Random) -> Operation:
    numbers = (
        ("concurrency", random.choice([0, 0, 1, 2, 5, None])),
        ("rates", random.choice([(), ((1, 1_000),), _window(scene, 9, 3_000)])),
        ("throttle", random.choice([None, (2, 1_000)])),
    )
    said = tuple(each for each in numbers if random.random() < 0.5) or numbers[:1]
    lasts_ms = random.choice([None, None, 1, 700, 2_000, 5_000, -5])
    cleared = random.random() < 0.3
    return (
        random.choice(PATTERNS) if random.random() < 0.3 else _steered(scene, random),
        None if cleared else said,
        None if cleared else lasts_ms,
        random.choice(scene.enforcements),
    )


def _queue_limit(scene: Scene, random: Random) -> Operation:
    how = random.choice(["declare", "declare", "set", "set", "clear", "know"])
    if how in ("clear", "know"):
        return how, random.choice(scene.queues), None, None
    of = random.choice(["both", "both", "whole", "whole", "part", "none"])
    whole = _of_queue(scene, random) if of in ("both", "whole") else None
    part = _of_queue(scene, random) if of in ("both", "part") else None
    return how, random.choice(scene.queues), whole, part


def _of_queue(scene: Scene, random: Random) -> Limit:
    return Limit(
        "",
        concurrency=random.choice([0, 1, 1, 2, 3, None]),
        rate=random.choice([(), (), ((2, 700),), ((3, 1_000), (5, 5_000))]),
        throttle=random.choice([None, None, None, ((5, 1_000),)]),
        on_limit=random.choice(scene.actions),
        local_limit=random.choice([None, 1, 2]),
    )


def _cancel(scene: Scene, random: Random) -> Operation:
    picks = tuple(random.randrange(1000) for _ in range(random.choice([1, 1, 3, 8])))
    return random.choice(scene.queues), picks


def _move(scene: Scene, random: Random) -> Operation:
    queue, *others = random.sample(scene.queues, len(scene.queues))
    picks = tuple(random.randrange(1000) for _ in range(random.choice([1, 1, 3, 8])))
    parts = [f"queue:{others[0]}:1", f"queue:{queue}:1", ""] if others else [""]
    return queue, tuple(others), picks, tuple(random.choices(parts, k=2))


def _requeue(scene: Scene, random: Random) -> Operation:
    return random.choice(scene.queues), random.randrange(1000), random.random() < 0.7


def _queue(scene: Scene, random: Random) -> Operation:
    return (random.choice(scene.queues),)


def _restore(scene: Scene, random: Random) -> Operation:
    """The server may be the same process: its memory went on, or people have restored it."""
    return (random.random() < 0.8,)


def _nothing(scene: Scene, random: Random) -> Operation:
    return ()


_MAKERS = {
    "put": _put,
    "claim": _claim,
    "settle": _settle,
    "begin": _begin,
    "used": _used,
    "next_outcome": _next_outcome,
    "lapse": _renew,
    "renew": _renew,
    "advance": _advance,
    "tiers": _tiers,
    "tenant": _tenant,
    "gate": _gate,
    "ungate": _gate,
    "stop": _stop,
    "watch": _watch,
    "override": _override,
    "report": _report,
    "queue": _queue_limit,
    "cancel": _cancel,
    "requeue": _requeue,
    "move": _move,
    "hear": _queue,
    "size": _queue,
    "purge": _queue,
    "lose": _nothing,
    "save": _nothing,
    "restore": _restore,
}
