"""Ctrl-C and other requests to end, noticed between two steps of the demo.

Invariant: a request never breaks into the middle of a step, so a process that was just started is
always one that we know of and end. A second request changes nothing.

Weakness: it is noticed at the next look, a fifth of a second later at most in the demo's loops.
"""

from __future__ import annotations

import signal
import time
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SLICE_SECONDS = 0.1


class Interrupted(Exception):
    """The demo was asked to end."""

    def __init__(self, signal_number: int) -> None:
        """Remember by which signal."""
        self.signal_number = signal_number
        super().__init__(f"ended by {signal.Signals(signal_number).name}")

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program that a signal ended."""
        return 128 + self.signal_number


class Interruption:
    """Remembers that the demo was asked to end."""

    def __init__(self) -> None:
        """Listen to nothing yet."""
        self._asked: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Listen from now on, in the main thread."""
        for number in _SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # Under nohup it shall go on when the terminal is closed.
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: FrameType | None) -> None:
        self._asked = self._asked or number

    def check(self) -> None:
        """Raise `Interrupted` if we were asked to end."""
        if self._asked is not None:
            raise Interrupted(self._asked)

    def pause(self, seconds: float) -> None:
        """Let time pass, and raise `Interrupted` soon after we are asked to end."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, _SLICE_SECONDS))
        self.check()
