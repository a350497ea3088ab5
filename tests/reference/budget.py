"""The bounds of one call, which sequences make smaller than those of production."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """The bounds of one call (ADR 7), and of the memory of one key.

    Attributes:
        due: Entries of each kind that are due.
        moves: Steps of a claim that start nothing.
        passed: Tenants and heads that a claim skips for its worker.
        lanes: Lanes of which the claiming process has as many as it may.
        purged: Tasks that a purge forgets.
        tags: Debts of one key.
        looks: Waiting limits, of all keys.
        idle: Keys that nothing has used for long, forgotten.
        unit_bytes: Bytes of a message that count as one step.
        tries: Times that a broker may reject a parked task.
        taken: Weight of the tasks of a claim. A task weighs its limits, its units, and one more.
    """

    due: int = 16
    moves: int = 64
    passed: int = 16
    lanes: int = 128
    purged: int = 100
    tags: int = 1000
    looks: int = 64
    idle: int = 256
    unit_bytes: int = 16_384
    taken: int = 256
    tries: int = 10
