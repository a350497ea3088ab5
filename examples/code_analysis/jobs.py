"""The story of each job, put together from the ledger's entries.

Invariant: entries may come in any order and in any portions, with the same result.

Weakness: a job of beat has no plan, so it begins with its first entry. If it is lost before its
first publish, it is not counted as lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from examples.code_analysis.ledger import Entry


@dataclass
class Job:
    """One job: when it was sent, received by a worker, started and ended."""

    id: str
    user: str | None = None
    kind: str = ""
    planned: bool = False
    sends: list[float] = field(default_factory=list)
    receipts: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    failed: bool = False
    lines: int = 0

    @property
    def refusals(self) -> int:
        """The number of times that the gate sent it back: every delivery after the first."""
        return max(0, len(self.receipts) - 1)

    @property
    def done(self) -> bool:
        """Whether its body ended."""
        return bool(self.ends)

    @property
    def wait_seconds(self) -> float | None:
        """From its submission to the start of its body; None while one of them is missing."""
        if not self.sends or not self.starts:
            return None
        return max(0.0, min(self.starts) - min(self.sends))

    def runs(self, until_seconds: float) -> list[tuple[float, float]]:
        """Start and end of each run; one without an end counts as running until then."""
        ends = [*sorted(self.ends), *[until_seconds] * len(self.starts)]
        return list(zip(sorted(self.starts), ends, strict=False))


class JobBook:
    """All jobs of one run."""

    def __init__(self) -> None:
        """Begin without jobs."""
        self.jobs: dict[str, Job] = {}
        self.ready_workers = 0

    def add(self, entries: Iterable[Entry]) -> None:
        """Add further entries of the ledger."""
        for entry in entries:
            if entry["event"] == "ready":
                self.ready_workers += 1
                continue
            job = self.jobs.setdefault(entry["job"], Job(entry["job"]))
            job.user = entry.get("user") or job.user
            job.kind = entry.get("kind") or job.kind
            match entry["event"]:
                case "planned":
                    job.planned = True
                case "sent":
                    job.sends.append(entry["at_seconds"])
                case "received":
                    job.receipts.append(entry["at_seconds"])
                case "start":
                    job.starts.append(entry["at_seconds"])
                case "end":
                    job.ends.append(entry["at_seconds"])
                    job.failed |= not entry.get("ok", False)
                    job.lines += entry.get("lines", 0)

    @property
    def open_jobs(self) -> list[Job]:
        """Jobs that were planned or sent and have not ended."""
        return [job for job in self.jobs.values() if not job.done]
