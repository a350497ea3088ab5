"""The logical clock that leases live by.

It follows the server's time, but a call moves it on by at most a third of a lease and never back:
neither an outage nor a jump of the server's clock ends a lease that its worker could not renew.
"""

from __future__ import annotations

#: Steps shorter than this are not noted: the next call sees the longer one.
NOTE_AFTER_MS = 50


class LogicalClock:
    """The clock of one installation; made by the first call that reads it.

    Attributes:
        logical: What leases are compared with, in ms; None before the first call.
        seen: Server time of the last call that was noted, in ms.
        epoch: When this memory began, in ms: in another one what is held may be missing.
        server: The process that wrote the memory.
        serves: The process that serves it.
    """

    def __init__(self) -> None:
        self.logical: int | None = None
        self.seen = 0
        self.epoch = 0
        self.server = self.serves = ""

    def read(self, now_ms: int, lease_ms: int) -> int:
        """Return the logical time without moving the clock."""
        if self.logical is None:
            return now_ms
        return self.logical + min(max(now_ms - self.seen, 0), lease_ms // 3)

    def tick(self, now_ms: int, lease_ms: int) -> int:
        """Move the clock on and return the logical time."""
        logical = self.read(now_ms, lease_ms)
        if self.logical is None:
            self.epoch, self.server = now_ms, self.serves
        if self.logical is None or abs(now_ms - self.seen) >= NOTE_AFTER_MS:
            self.logical, self.seen = logical, now_ms
        return logical

    def meet_server(self, now_ms: int) -> None:
        """Begin a new epoch where another server wrote the memory: it may be an older one."""
        if self.server != self.serves:
            self.epoch, self.server = max(now_ms, self.epoch + 1), self.serves
