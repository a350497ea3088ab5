"""Sequences in which the reference can be strict.

Scenes with the bounds of production, without tasks that a process skips, have one right order. In
other scenes the reference accepts more than one.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tests.reference.operations import Scene, scene

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
    weights["tiers"] = random.choice([0.5, 2.0])
    return replace(
        made,
        budget=type(made.budget)(),
        passing=random.choice([0.0, 0.0, 0.1]),
        enforcements=random.choice([("on",), ("on",), ("on", "on", "observe")]),
        charging=random.choice([("tasks",), ("cost",), ("runtime",)]),
        scopes=random.choice([("tenant",), ("tenant",), ("queue",)]),
        later=random.choice([0.05, 0.3]),
        limited=random.choice([0.0, 0.3, 0.6]),
        weights=weights,
    )


#: Operations of a focused sequence.
SHORT = 120

#: Limits that meet: shared ones, one with another action, and a private one.
_LIMITS = ("x|1|||w", "x|2|||w", "x|1|||r,z|1|||d", "y|1|||w,x|2|||w", "own:*|1|||wp", "z|1|||w")
_RATES = ("z||2/500||w", "z||3/1000||w", "t|||3/1000|w", "m|2|5/2000|10/1000|w")
#: Limits of tasks that claims and gates start.
GATE_LIMITS = (
    "",
    "x|1|||w",
    "x|2|||w",
    "x|2|||w,y|1|||w",
    "z||3/1000||w",
    "z||4/7000||w,y|2|||r",
    "t|||3/1000|w",
    "m|2|5/2000|10/1000|w",
    "one||1/4000||d,x|2|||w",
)

#: Focused scenes have the bounds of production. Here stands how often each operation comes, and
#: which limits tasks have.
FOCUSES: dict[str, dict[str, Any]] = {
    "order": {
        "weights": {"put": 10, "claim": 6, "settle": 5, "tiers": 0.5, "advance": 1},
        "limited": 0.0,
    },
    "delayed": {
        "weights": {"put": 10, "claim": 6, "settle": 5, "advance": 3},
        "limited": 0.0,
        "later": 0.5,
    },
    "shared": {
        "weights": {"put": 12, "claim": 6, "settle": 7},
        "limited": 1.0,
        "lanes": ("x|1|||w", "x|1|||w", "x|2|||w"),
    },
    "limits": {
        "weights": {
            "put": 10,
            "claim": 7,
            "settle": 5,
            "stop": 2,
            "override": 2,
            "queue": 1,
            "tenant": 0.5,
            "advance": 2,
        },
        "limited": 0.8,
        "lanes": _LIMITS,
    },
    "rates": {
        "weights": {"put": 10, "claim": 8, "settle": 6, "advance": 5},
        "limited": 0.9,
        "lanes": _RATES,
    },
    "leases": {
        "weights": {
            "put": 6,
            "claim": 6,
            "settle": 6,
            "begin": 2,
            "renew": 3,
            "lapse": 2,
            "advance": 1,
            "lose": 0.2,
            "next_outcome": 1,
        },
        "limited": 0.2,
        "lanes": _LIMITS,
        "expiring": 0.2,
    },
    "shares": {"weights": {"put": 12, "claim": 6, "settle": 5}, "limited": 0.0, "passing": 1.0},
}


def focused_scene(subject: str, seed: int) -> Scene:
    """Return a scene of one of `FOCUSES`, in which the rules of a subject matter often."""
    focus = {"passing": 0.0, "lanes": (), "expiring": 0.0, "later": 0.1} | FOCUSES[subject]
    made = scene(seed)
    return replace(
        made,
        rules=replace(made.rules, lease_ms=15_000, default_limit=2, max_deliveries=2),
        budget=type(made.budget)(),
        services=("",),
        tenants=made.tenants[:4],
        queues=made.queues[:2],
        enforcements=("on",),
        of_tiers=0.0,
        bounds=(None,),
        charging=("tasks",),
        scopes=("tenant",),
        **focus,
    )
