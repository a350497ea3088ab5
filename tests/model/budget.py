"""How much one call does."""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.parking import PUMPED_AT_MOST, TAGS_AT_MOST


@dataclass(frozen=True, slots=True)
class Budget:
    """The bounds of one call (ADR 7), and of what is kept of one key.

    Attributes:
        due: Entries of each kind that are due.
        moves: What a claim meets on the way and sets aside.
        passed: Tenants that a claim passes over, and heads that it sets aside, for its worker.
        lanes: Lanes that its process is full of.
        purged: Tasks that a purge forgets.
        tags: Of one key, kept.
        looks: Waiting limits, of all keys.
        idle: Keys that nothing has used for long, forgotten.
        unit_bytes: Of a message that is read, as much as one move.
        taken: What a claim takes: each task is as much as its limits and its units, and one more.
    """

    due: int = 16
    moves: int = 64
    passed: int = 16
    lanes: int = 128
    purged: int = 100
    tags: int = TAGS_AT_MOST
    looks: int = PUMPED_AT_MOST
    idle: int = 256
    unit_bytes: int = 16_384
    taken: int = 256
