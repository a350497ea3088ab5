"""The ledger: what was sent, began, ended and was killed, one JSON line each.

Invariant: it is a file that is only appended to, each line with one write, and never the Redis
under test. Times are those of the host's monotonic clock, so lines of all processes compare.
"""

from __future__ import annotations

import functools
import json
import os
import time
from pathlib import Path
from typing import Any

#: Where it is, in the environment of every process.
VARIABLE = "CHAOS_LEDGER"

Event = dict[str, Any]


def now() -> float:
    """Return seconds of the clock that all processes of the host share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


@functools.cache
def _file(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def write(event: str, at: float | None = None, **facts: Any) -> None:
    """Append one line; any process, thread and greenlet may."""
    line = {"event": event, "at": now() if at is None else at, **facts}
    os.write(_file(os.environ[VARIABLE]), (json.dumps(line) + "\n").encode())


class Tail:
    """Reads a ledger that others write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> list[Event]:
        """Return the lines since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]
