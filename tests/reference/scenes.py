"""Sequences in which the reference can be strict.

Scenes with the bounds of production, without tasks that a process skips, have one right order. In
other scenes the reference accepts more than one.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.reference.operations import AGING, QUEUES, TENANTS, Scene, scene

#: Operations of one sequence.
LENGTH = 300
#: Gates have scenes of their own. `tests/scheduler/test_older_memory.py` restores older memories.
ELSEWHERE = ("gate", "ungate", "save", "restore")


def strict_scene(seed: int) -> Scene:
    """Return a scene of a seed: two of three are strict."""
    made, random = scene(seed), Random(seed)
    weights = made.weights | dict.fromkeys(ELSEWHERE, 0.0)
    if seed % 3 == 0:
        return replace(made, weights=weights)
    if not made.rules.default_numbers:
        weights["tiers"] = random.choice([0.5, 2.0])
    return replace(
        made,
        budget=type(made.budget)(),
        passing=random.choice([0.0, 0.0, 0.1]),
        enforcements=random.choice([("on",), ("on",), ("on", "on", "observe")]),
        charging=random.choice([("tasks",), ("cost",), ("runtime",)]),
        scopes=random.choice([("tenant",), ("tenant",), ("queue",), *AGING]),
        later=random.choice([0.05, 0.3]),
        limited=random.choice([0.0, 0.3, 0.6]),
        weights=weights,
    )


#: Limits of tasks that claims and gates start.
GATE_LIMITS = (
    "",
    "x|C1|w",
    "x|C2|w",
    "x|C2|w,y|C1|w",
    "z|R3/1000|w",
    "z|R4/7000|w,y|C2|r",
    "t|T3/1000|w",
    "m|C2;R5/2000;T10/1000|w",
    "one|R1/4000|d,x|C2|w",
    "queue:q_default:1|q|w,queue:q_default|q|w",
    "u|R5/2000|w",
    "u|R5/2000;U3|w",
    "u|R5/2000;U4|w,x|C2|w",
    "u|R5/2000;U9|w",
    "g|C4|w",
    "g|C4;S3|w",
    "g|C4;S2|w,x|C2|w",
    "g|C4;S9|w,h|C3;S2|w",
    "h|C3;S3|r",
)


def small_scene(seed: int) -> Scene:
    """Return a scene with the bounds of production, few tenants and few queues."""
    made = scene(seed)
    return replace(
        made,
        rules=replace(made.rules, lease_ms=15_000, default_limit=2, max_deliveries=2),
        budget=type(made.budget)(),
        services=("",),
        tenants=TENANTS[:4],
        queues=QUEUES[:2],
        enforcements=("on",),
        of_tiers=0.0,
        bounds=(None,),
        charging=("tasks",),
        scopes=("tenant",),
        passing=0.0,
        lanes=(),
        expiring=0.0,
        later=0.1,
    )


def lending_scene(seed: int) -> Scene:
    """Return a scene in which tenants are often between their concurrency and their burst."""
    made, random = strict_scene(seed), Random(seed)
    own = {name: made.weights[name] / 4 for name in ("stop", "queue", "purge", "move")}
    often = {"put": 14.0, "claim": 10.0, "settle": 8.0, "hear": 2.0, "tenant": 1.0, "tiers": 0.4}
    burst = random.choice([2, 3, 5])
    rules = replace(made.rules, default_limit=1, default_numbers={"burst": burst})
    return replace(
        made,
        rules=rules,
        tenants=TENANTS[:4],
        queues=QUEUES[: random.randint(1, 3)],
        services=("",),
        of_tiers=0.0,
        limited=random.choice([0.0, 0.0, 0.3]),
        later=0.05,
        weights=made.weights | own | often,
    )
