"""The history of every job, written by each process, without the Redis under test.

Each process appends JSON lines to a file of its own; the demo reads all of them. Entries:

| event | written by | when |
|---|---|---|
| `planned` | the sender | before anything is sent: this job must run once |
| `sent` | the publisher | when the job was submitted |
| `received` | a worker | at every delivery: a job that a gate sends back is delivered again |
| `start`, `end` | the task's body | as its first and its last act |
| `ready` | a worker | it takes jobs from now on |

Invariant: a line is written as a whole or not at all (one `write` to a file opened with O_APPEND),
and a reader never sees half a line. `start` is written after the limiter admitted the job, and
`end` before its slot is free. So jobs that overlap in the ledger held slots at the same time.

Weakness: times are from the monotonic clock of this machine, so ledgers of several hosts cannot be
compared.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

Event = Literal["planned", "sent", "received", "start", "end", "ready"]

_SUFFIX = ".jsonl"


class Entry(TypedDict):
    """One line of the ledger."""

    event: Event
    at_seconds: float
    job: NotRequired[str]
    user: NotRequired[str | None]
    kind: NotRequired[str]
    ok: NotRequired[bool]
    lines: NotRequired[int]


def now_seconds() -> float:
    """The clock of all entries."""
    return time.monotonic()


@dataclass(frozen=True)
class Ledger:
    """A folder that processes of one run write to."""

    folder: Path

    def write(self, event: Event, **facts: Any) -> None:
        """Append one entry; safe after a fork, since the file belongs to the process id."""
        line = json.dumps({"event": event, "at_seconds": now_seconds(), **facts}) + "\n"
        path = self.folder / f"{os.getpid()}{_SUFFIX}"
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    @contextmanager
    def running(self, job: str, user: str | None) -> Iterator[dict[str, Any]]:
        """Enclose a task's body; the mapping that the body fills is written with its end."""
        self.write("start", job=job, user=user)
        facts: dict[str, Any] = {}
        ok = False
        try:
            yield facts
            ok = True
        finally:
            self.write("end", job=job, user=user, ok=ok, **facts)


class LedgerReader:
    """Reads new entries."""

    def __init__(self, ledger: Ledger) -> None:
        """Start at the beginning."""
        self._folder = ledger.folder
        self._offsets: dict[Path, int] = {}

    def read_new(self) -> list[Entry]:
        """Entries written since the last call, in the order of their times."""
        entries: list[Entry] = []
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            entries += [cast(Entry, json.loads(line)) for line in whole.splitlines()]
        return sorted(entries, key=lambda entry: entry["at_seconds"])
