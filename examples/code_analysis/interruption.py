"""Ctrl-C and other requests to end, noticed between two steps of the demo.

Invariant: a request never interrupts a step, so every started process is recorded and ended. A
second request changes nothing.

Weakness: a request is noticed at the next check, in the demo's loops within a fifth of a second.
"""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SLICE_SECONDS = 0.1


class Interrupted(Exception):
    """A signal requested the end of the demo."""

    def __init__(self, signal_number: int) -> None:
        """Store the signal."""
        self.signal_number = signal_number
        super().__init__(f"ended by {signal.Signals(signal_number).name}")

    @property
    def exit_code(self) -> int:
        """The exit code of a shell for a program that a signal ended."""
        return 128 + self.signal_number


class Interruption:
    """Records signals that request the end of the demo."""

    def __init__(self) -> None:
        """Handle no signal yet."""
        self._asked: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Handle signals from now on; called in the main thread."""
        for number in _SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # Under nohup the demo continues after its terminal is closed.
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the former handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: FrameType | None) -> None:
        self._asked = self._asked or number

    def check(self) -> None:
        """Raise `Interrupted` if a signal has arrived."""
        if self._asked is not None:
            raise Interrupted(self._asked)

    def pause(self, seconds: float) -> None:
        """Wait, and raise `Interrupted` soon after a signal."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, _SLICE_SECONDS))
        self.check()
