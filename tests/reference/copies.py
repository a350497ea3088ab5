"""The memory of the copies of one message, by which at most one of them may run."""

from __future__ import annotations

from dataclasses import dataclass

#: The serial of no copy.
NOBODY = "-"


@dataclass
class Copies:
    """Which copy of a message may run: one that has started, or the last ones that were named."""

    current: str | None = None
    following: str | None = None
    started: str | None = None
    #: Place among the parked tasks, if the message was parked. It keeps it for good.
    seq: int | None = None
    #: How often it was promoted.
    attempts: int = 0
    #: Key and strategy of the rejection that an event reported, and whether one reported the start.
    rejected_by: tuple[str, str] | None = None
    is_released: bool = False

    def is_superseded(self, serial: str) -> bool:
        """Whether another copy has started, or has replaced this one."""
        if self.started is not None:
            return self.started != serial
        return self.current is not None and serial not in (self.current, self.following)

    def name(self, current: str, following: str) -> None:
        """Only these copies may run."""
        self.current, self.following, self.started = current, following, None
