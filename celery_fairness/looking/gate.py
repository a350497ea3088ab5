"""Tasks of a gate that wait in Redis: what must agree about them.

A task waits at one of its limits, or was given to a worker that publishes it again. A task that
waits or expires without its record would stop the scripts that promote; one that waits where
nobody looks would wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from celery_fairness.looking.keys import Keys, read_parked
from celery_fairness.looking.reading import Command
from celery_fairness.looking.values import Finding


@dataclass(frozen=True, slots=True)
class ParkedAtGate:
    """A parked task is in one place; whoever waits or expires has its record.

    Attributes:
        tag: What all copies of its message have in common.
        keys: Of limits at which it may wait.
    """

    tag: str
    keys: tuple[str, ...] = ()

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("HGET", keys.gate_tasks, self.tag),
            ("ZSCORE", keys.gate_promoted, self.tag),
            ("ZSCORE", keys.gate_expires, self.tag),
            *(("ZSCORE", keys.of("gate_wait", key), self.tag) for key in self.keys),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        record, promoted, ends, *waits = answers
        places = [
            f"gate_wait:{key}"
            for key, since in zip(self.keys, waits, strict=True)
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
        if not set(task.keys) <= set(self.keys):
            return  # Whoever comes to it by its record looks at all of them.
        places += ["gate_promoted"] if promoted is not None else []
        if len(places) != 1:
            found = ", ".join(places) or "none"
            yield Finding("parked is in one place", self.tag, "a limit, or gate_promoted", found)
        if task.expires and promoted is None and ends is None:
            yield Finding("parked expires", self.tag, "its time in gate_expires", "none")


@dataclass(frozen=True, slots=True)
class GateKey:
    """Where tasks of a gate wait somebody looks."""

    key: str

    def commands(self, keys: Keys) -> list[Command]:
        """Return what reads all that is compared."""
        return [
            ("EXISTS", keys.of("gate_wait", self.key)),
            ("ZSCORE", keys.gate_opens, self.key),
            ("HEXISTS", keys.clock, "parked"),
        ]

    def findings(self, answers: list[Any]) -> Iterator[Finding]:
        """Yield what does not agree."""
        waits, opens, said = answers
        if waits and opens is None:
            yield Finding("parked is looked at", self.key, "its key in gate_opens", "none")
        if waits and not said:
            yield Finding("parked is looked at", self.key, "parked in clock", "none")
