"""Checks whether the demo keeps its promises; a broken promise is a finding.

Invariant: findings come from the ledger alone. The exit code is 1 with any finding, and 0 without.

Weakness: if beat fails, the jobs that it did not send are not counted as lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from examples.code_analysis.figures import UserFigures
from examples.code_analysis.jobs import Job
from examples.code_analysis.users import BACKGROUND

#: Longest allowed wait of a quiet user at p95 in the run with the package, in seconds. On a slow
#: machine it is this part of the quiet users' wait in the run without the package.
LONGEST_QUIET_P95_SECONDS = 6.0
LONGEST_QUIET_P95_PART = 0.5


def longest_quiet_p95_seconds(plain_p95_seconds: float) -> float:
    """Return the longest allowed wait of a quiet user at p95, given the run without the package."""
    return max(LONGEST_QUIET_P95_SECONDS, LONGEST_QUIET_P95_PART * plain_p95_seconds)


def find_faults(label: str, jobs: Iterable[Job]) -> list[str]:
    """Jobs that were lost, ran twice or failed, one finding for each fault; for both runs."""
    faulty: dict[str, list[Job]] = {}
    for job in jobs:
        for fault in _faults(job):
            faulty.setdefault(fault, []).append(job)
    return [
        f"{label}: {len(found)} {'job' if len(found) == 1 else 'jobs'} {fault}, "
        f"the first: {found[0].kind} of {found[0].user or BACKGROUND}, id {found[0].id}"
        for fault, found in faulty.items()
    ]


def _faults(job: Job) -> Iterable[str]:
    if not job.starts:
        yield "lost (never started)"
    elif not job.done:
        yield "lost (started and never ended)"
    elif job.failed:
        yield "failed"
    if len(job.starts) > 1:
        yield "run more than once"


def find_unfairness(
    label: str,
    figures: Sequence[UserFigures],
    longest_seconds: float = LONGEST_QUIET_P95_SECONDS,
) -> list[str]:
    """Users above their limit, and quiet users with too long a wait; for the package's run."""
    findings = []
    for line in figures:
        if line.limit is not None and line.most_at_once > line.limit:
            findings.append(
                f"{label}: {line.user} ({line.tier}) had {line.most_at_once} jobs at once, "
                f"the limit is {line.limit}"
            )
        p95_seconds = line.wait_p95_seconds
        if line.quiet and p95_seconds is not None and p95_seconds > longest_seconds:
            findings.append(
                f"{label}: {line.user} ({line.tier}) waited {p95_seconds:.1f} s at p95, "
                f"expected at most {longest_seconds:g} s"
            )
    return findings
