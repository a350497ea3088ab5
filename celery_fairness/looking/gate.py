"""Tasks of a gate that wait in Redis: what must agree about them.

A task waits at one place, a limit's key and numbers, or was given to a worker that publishes it
again. A task that waits or expires without its record would stop the scripts that promote; one that
waits where nobody looks would wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from celery_fairness.looking.keys import Keys, key_of_limit, read_parked
from celery_fairness.looking.reading import Command
from celery_fairness.looking.values import Finding


@dataclass(frozen=True, slots=True)
class ParkedAtGate:
    """A parked task is in one place; whoever waits or expires has its record.

    Attributes:
        tag: What all copies of its message have in common.
        places: At which it may wait.
    """

    tag: str
    places: tuple[str, ...] = ()

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("HGET", keys.gate_tasks, self.tag),
            ("ZSCORE", keys.gate_promoted, self.tag),
            ("ZSCORE", keys.gate_expires, self.tag),
            *(("ZSCORE", keys.of("gate_at", place), self.tag) for place in self.places),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        record, promoted, ends, *waits = answers
        places = [
            f"gate_at:{place}"
            for place, since in zip(self.places, waits, strict=True)
            if since is not None
        ]
        if not record:
            places += ["gate_expires"] if ends is not None else []
            if places:
                found = "only in " + ", ".join(places)
                yield Finding("parked is kept", self.tag, "its record in gate_tasks", found)
            return
        task = read_parked(record)
        if task is None:
            yield Finding("a record can be read", self.tag, "a task of a gate", "another text")
            return
        if not set(task.places) <= set(self.places):
            return  # Whoever comes to it by its record looks at all of them.
        places += ["gate_promoted"] if promoted is not None else []
        if len(places) != 1:
            found = ", ".join(places) or "none"
            yield Finding("parked is in one place", self.tag, "a limit, or gate_promoted", found)
        if task.expires and promoted is None and ends is None:
            yield Finding("parked expires", self.tag, "its time in gate_expires", "none")


@dataclass(frozen=True, slots=True)
class GatePlace:
    """Where tasks of a gate wait somebody looks."""

    place: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        key = key_of_limit(self.place)
        return [
            ("EXISTS", keys.of("gate_at", self.place)),
            ("ZSCORE", keys.of("gate_places", key), self.place),
            ("ZSCORE", keys.gate_looks, key),
            ("HEXISTS", keys.clock, "parked"),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        waits, known, looks, said = answers
        if not waits:
            if known is not None:
                yield Finding("a place has tasks", self.place, "a parked task", "none")
            return
        key = key_of_limit(self.place)
        missing = {
            f"its place in gate_places:{key}": known is None,
            "its key in gate_looks": looks is None,
            "parked in clock": not said,
        }
        for expected, is_missing in missing.items():
            if is_missing:
                yield Finding("parked is looked at", self.place, expected, "none")
