"""Logs lines that every task could cause, each kind at most once a minute.

The next line of a kind has the number of lines that were held back, so nothing is hidden.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

#: How often one kind of line is logged, in seconds.
EVERY_SECONDS = 60.0
#: Kinds that are remembered. If there are more, the oldest kind is forgotten and logged anew.
KINDS = 1_000


class Notices:
    """Logs to one logger, at most once a minute for each kind.

    Args:
        logger: Where the lines go.
        clock: Seconds, monotonic.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}

    def info(
        self, kind: str, text: str, *args: object, extra: Mapping[str, str] | None = None
    ) -> None:
        """Log a line of ``kind`` that asks for nothing."""
        self._log(logging.INFO, kind, text, args, extra)

    def warning(
        self, kind: str, text: str, *args: object, extra: Mapping[str, str] | None = None
    ) -> None:
        """Log a warning of ``kind``."""
        self._log(logging.WARNING, kind, text, args, extra)

    def error(
        self, kind: str, text: str, *args: object, extra: Mapping[str, str] | None = None
    ) -> None:
        """Log an error of ``kind``."""
        self._log(logging.ERROR, kind, text, args, extra)

    def _log(
        self,
        level: int,
        kind: str,
        text: str,
        args: tuple[object, ...],
        extra: Mapping[str, str] | None,
    ) -> None:
        now = self._clock()
        logged_at, held_back = self._logged.get(kind, (float("-inf"), 0))
        if now - logged_at < EVERY_SECONDS:
            self._logged[kind] = (logged_at, held_back + 1)
            return
        while len(self._logged) >= KINDS and kind not in self._logged:
            self._logged.pop(next(iter(self._logged)))
        self._logged[kind] = (now, 0)
        if held_back:
            text, args = text + " (and %d more like it)", (*args, held_back)
        self._logger.log(level, text, *args, extra=extra)
