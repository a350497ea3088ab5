"""The demo site's ledger, read as a file: when each task ran, and on which worker.

Invariant: it is written by the tasks' bodies and knows nothing of Redis.

Weakness: SQLite only.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Run:
    """One task that has started; ``ended`` is the moment of reading while it runs."""

    worker: str
    started: datetime
    ended: datetime
    finished: bool


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was read.

    Attributes:
        waiting: Tasks that have not started.
        runs: Tasks that have.
    """

    waiting: int
    runs: list[Run]

    @classmethod
    def of(cls, database: Path, tenant: str) -> Ledger:
        """Read what ``tenant`` has."""
        query = "SELECT worker, started_at, ended_at FROM demo_site_demotask WHERE tenant = ?"
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            rows = connection.execute(query, [tenant]).fetchall()
        now = datetime.now(UTC)
        runs = [
            Run(worker, _moment(started), _moment(ended) if ended else now, bool(ended))
            for worker, started, ended in rows
            if started
        ]
        return cls(len(rows) - len(runs), runs)

    @property
    def finished(self) -> int:
        """Tasks that have ended."""
        return sum(run.finished for run in self.runs)

    def running_at(self, moment: datetime) -> int:
        """Return how many ran at a moment before the reading."""
        return sum(
            run.started <= moment and not (run.finished and run.ended <= moment)
            for run in self.runs
        )

    def most_at_once(self, since: datetime | None = None, until: datetime | None = None) -> int:
        """Return how many ran at the same time, at most, of those that started in this span."""
        chosen = [
            run
            for run in self.runs
            if (since is None or run.started >= since) and (until is None or run.started < until)
        ]
        changes = [(run.started, 1) for run in chosen] + [(run.ended, -1) for run in chosen]
        most = running = 0
        # An end and a start at the same instant are not at once: the end sorts first.
        for _, change in sorted(changes):
            running += change
            most = max(most, running)
        return most


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
