"""Tasks of a gate that wait in Redis: what must agree about them.

A task waits at one place, a limit's key and numbers, or was given to a worker that publishes it
again. A task that waits or expires without its record would stop promotions; one that
waits where nobody looks would wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from celery_fairness.control.keys import Keys, key_of_limit, read_parked, turn_name
from celery_fairness.control.scan import Command
from celery_fairness.control.views import Finding


@dataclass(frozen=True, slots=True)
class ParkedAtGate:
    """A parked task is in one place; whoever waits or expires has its record.

    Attributes:
        tag: What all copies of its message have in common.
        tenant: Under whom it waits.
        places: At which it may wait.
    """

    tag: str
    tenant: str = ""
    places: tuple[str, ...] = ()

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("HGET", keys.gate_tasks, self.tag),
            ("ZSCORE", keys.gate_promoted, self.tag),
            ("ZSCORE", keys.gate_expires, self.tag),
            *(
                ("ZSCORE", keys.of("gate_at", f"{self.tenant} {place}"), self.tag)
                for place in self.places
            ),
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
class GateTurn:
    """A tenant has its turn at a place where tasks of it wait, by the first of them.

    Attributes:
        tenant: Who.
        place: Where.
        seq: Since when its first task waits, as was read before.
    """

    tenant: str
    place: str
    seq: int

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        lane = keys.of("gate_at", f"{self.tenant} {self.place}")
        turns = keys.of("gate_turns", self.place)
        return [
            ("ZRANGE", lane, 0, 0, "WITHSCORES"),
            ("ZSCORE", turns, turn_name(self.tenant, self.seq)),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        first, start = answers
        is_first = bool(first) and int(float(first[1])) == self.seq
        name = f"{self.tenant} {self.place}"
        if is_first and start is None:
            yield Finding("parked has its turn", name, "its tenant in gate_turns", "none")
        if start is not None and not is_first:
            found = f"one since {int(float(first[1]))}" if first else "none"
            yield Finding("parked has its turn", name, f"a first task since {self.seq}", found)


@dataclass(frozen=True, slots=True)
class GatePlace:
    """A place is known where tasks wait, and nowhere else."""

    place: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        key = key_of_limit(self.place)
        return [
            ("EXISTS", keys.of("gate_turns", self.place)),
            ("ZSCORE", keys.of("gate_places", key), self.place),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        waits, known = answers
        if bool(waits) != (known is not None):
            expected, found = ("known", "unknown") if waits else ("unknown", "known")
            yield Finding("a place has tasks", self.place, expected, found)


@dataclass(frozen=True, slots=True)
class GateKey:
    """Where tasks of a gate wait somebody looks, and the key's time goes on."""

    key: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("EXISTS", keys.of("gate_places", self.key)),
            ("HGET", keys.gate_waiting, self.key),
            ("HEXISTS", keys.gate_virtual, self.key),
            ("EXISTS", keys.of("gate_finish", self.key)),
            ("ZSCORE", keys.gate_looks, self.key),
            ("HEXISTS", keys.clock, "parked"),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        places, waiting, virtual, finish, looks, said = answers
        if not places:
            left = {"gate_waiting": waiting, "gate_virtual": virtual, "gate_finish": finish}
            for table in (name for name, found in left.items() if found):
                yield Finding("a key has parked tasks", self.key, "one", f"only in {table}")
            return
        missing = {
            "its key in gate_looks": looks is None,
            "parked in clock": not said,
            "how many in gate_waiting": not waiting,
            "its time in gate_virtual": not virtual,
        }
        for expected, is_missing in missing.items():
            if is_missing:
                yield Finding("parked is looked at", self.key, expected, "none")
