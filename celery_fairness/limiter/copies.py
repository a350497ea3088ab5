"""Which copy of a message may run: the rules of ``lua/includes/copies.lua``."""

from __future__ import annotations

from dataclasses import dataclass

from celery_fairness.message.headers import Copy


@dataclass(slots=True)
class Copies:
    """What is known of the copies of one message.

    Attributes:
        current: The serial that was refused last.
        next: The serial that its refusal publishes.
        admitted: The serial of the copy that started.
        seq: Since when the message waits, where it was parked.
    """

    current: str = ""
    next: str = ""
    admitted: str | None = None
    seq: int | None = None


class CopyMemory(dict[str, Copies]):
    """The copies of every message that was refused, by message."""

    def superseded(self, copy: Copy) -> bool:
        """Say whether another copy runs, or is to run."""
        known = self.get(copy.message)
        if known is None:
            return False
        if known.admitted is not None:
            return known.admitted != copy.serial
        return copy.serial not in (known.current, known.next)

    def seq(self, copy: Copy | None) -> int | None:
        """Return since when a message waits, None where it was never parked."""
        known = self.get(copy.message) if copy is not None else None
        return known.seq if known else None

    def refused(self, copy: Copy | None, next_serial: str) -> None:
        """Note a refusal and what it publishes."""
        if copy is not None:
            self[copy.message] = Copies(copy.serial, next_serial, None, self.seq(copy))

    def admitted(self, copy: Copy | None) -> None:
        """Note which copy started."""
        if copy is not None and (copy.serial or copy.message in self):
            self.setdefault(copy.message, Copies()).admitted = copy.serial

    def again(self, refused: Copy, next_serial: str) -> bool:
        """Note that a refusal publishes another copy; False where none need be published."""
        known = self.get(refused.message)
        if known is None:
            return True
        if known.admitted is not None or known.current != refused.serial:
            return False
        known.next = next_serial
        return True
