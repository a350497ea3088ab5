"""Sequences in which the reference can be strict.

Scenes with the bounds of production, without tasks that a process skips, have one right order. In
other scenes the reference accepts more than one.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.model.operations import Scene, scene

#: Operations of one sequence.
LENGTH = 300


def strict_scene(seed: int) -> Scene:
    """Return a scene of a seed: two of three are strict."""
    made = scene(seed)
    if seed % 3 == 0:
        return made
    random = Random(seed)
    weights = made.weights | {"save": 0, "restore": 0, "tiers": random.choice([0.5, 2.0])}
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
