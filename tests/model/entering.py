"""Leases that end by themselves: those of a gate, and those that were entered again.

Where the memory was lost a worker enters again what it holds. Such leases count, and nobody but
their worker knows of their tasks: where that dies too, who looks after their end takes them away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from celery_fairness.scheduler.types import Rules
from tests.model.steering import Steering
from tests.model.window import NEVER

#: What stands before a key in ``ends`` where leases of it were entered again.
ENTERED = "  "


class Entering(Steering):
    """An installation whose leases are renewed."""

    def renew(
        self, held: Sequence[tuple[str, str]], lease_ms: int, epoch: int | None = None
    ) -> tuple[int, list[int]]:
        """Keep leases, given with their keys.

        Where the memory was lost since ``epoch`` they are entered again: they count, and end by
        themselves, because their tasks are known to their workers alone. It may have been lost in
        part: a server that takes over the memory of another may have an older one.

        Returns:
            The epoch, and the positions (from 1) of leases that are gone, or were.
        """
        ends = self.clock.tick(self.now_ms(), lease_ms) + lease_ms
        self.clock.meet_server(self.now_ms())
        lost = epoch is not None and epoch != self.clock.epoch
        missing = []
        for position, (lease, words) in enumerate(held, 1):
            keys = words.split(",")
            if lease in self.ends:
                self.ends[lease] = ends
                continue
            counts = any(lease in self.leases.get(key, {}) for key in keys)
            if not counts:
                missing.append(position)
            if counts or lost:
                for key in keys:
                    self.leases[key][lease] = self.ends[ENTERED + key] = ends
        return self.clock.epoch, missing

    def forget_entered(self, keys: Iterable[str]) -> None:
        """A lease of these keys that was entered again has ended: it may have been the last one."""
        for key in keys:
            if not any(end < NEVER for end in self.leases.get(key, {}).values()):
                self.ends.pop(ENTERED + key, None)

    def end_wait(self, name: str, logical: int, rules: Rules) -> None:
        """What is in ``ends`` without a task is over."""
        del self.ends[name]
        if not name.startswith(ENTERED):
            self.reopen(name[1:], logical, rules)
            return
        key = name.removeprefix(ENTERED)
        for lease, end in list(self.leases.get(key, {}).items()):
            if end <= logical:
                self.drop_lease(key, lease)

    def enter_gate_lease(self, key: str, lease: str, lease_ms: int) -> None:
        """The gate admitted an attempt: its lease ends by itself."""
        self.leases[key][lease] = self.clock.tick(self.now_ms(), lease_ms) + lease_ms

    def release_gate_lease(self, key: str, lease: str) -> None:
        """The gate's attempt is over: the rings are not told."""
        self.drop_lease(key, lease)
