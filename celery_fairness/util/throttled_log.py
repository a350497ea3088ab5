"""Log lines that may come with every task: each kind at most once a minute.

What was held back is said with the next line of its kind, so nothing is hidden.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

#: How often one kind of line is logged, in seconds.
EVERY_SECONDS = 60.0
#: TaskFilter that are remembered; more than this and the oldest is logged anew.
KINDS = 1_000


def log_misspelling(notices: Notices, task: Any, name: str) -> None:
    """Log that a name in a message's headers is ignored."""
    notices.warning(
        f"misspelled:{task}", "task %s: its headers have a name that is ignored: %s", task, name
    )


class Notices:
    """Logs to one logger, at most once a minute for each kind.

    Args:
        logger: Where the lines go.
        clock: Seconds, monotonic.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._said: dict[str, tuple[float, int]] = {}

    def warning(self, kind: str, text: str, *args: object) -> None:
        """Log a warning of ``kind``."""
        self._say(logging.WARNING, kind, text, args)

    def error(self, kind: str, text: str, *args: object) -> None:
        """Log an error of ``kind``."""
        self._say(logging.ERROR, kind, text, args)

    def _say(self, level: int, kind: str, text: str, args: tuple[object, ...]) -> None:
        now = self._clock()
        said_at, held_back = self._said.get(kind, (float("-inf"), 0))
        if now - said_at < EVERY_SECONDS:
            self._said[kind] = (said_at, held_back + 1)
            return
        while len(self._said) >= KINDS and kind not in self._said:
            self._said.pop(next(iter(self._said)))
        self._said[kind] = (now, 0)
        if held_back:
            text, args = text + " (and %d more like it)", (*args, held_back)
        self._logger.log(level, text, *args)
