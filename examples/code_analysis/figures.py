"""The figures of one run, from its ledger.

Invariant: every number is computed from the jobs' own times, without the Redis under test.

Weakness: percentiles are nearest-rank, so with a handful of jobs p95 is the longest wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from examples.code_analysis.jobs import Job
from examples.code_analysis.users import BACKGROUND, USERS


@dataclass(frozen=True)
class UserFigures:
    """One line of the table."""

    user: str
    tier: str
    floods: bool
    jobs: int
    done: int
    refusals: int
    waits_seconds: tuple[float, ...]
    most_at_once: int
    #: None: no limit.
    limit: int | None

    @property
    def wait_p50_seconds(self) -> float | None:
        """The median wait; None before the first start."""
        return percentile(self.waits_seconds, 50)

    @property
    def wait_p95_seconds(self) -> float | None:
        """The wait at p95; None before the first start."""
        return percentile(self.waits_seconds, 95)

    @property
    def quiet(self) -> bool:
        """Whether it is a user, and not the flooding one."""
        return not self.floods and self.user != BACKGROUND


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The nearest-rank percentile, 0 < percent <= 100; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def format_wait(seconds: float) -> str:
    """A wait as text, in milliseconds if it is short."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def running_over_time(runs: Iterable[tuple[float, float]]) -> list[tuple[float, int]]:
    """The number of runs from each moment on, as (moment, number) in order.

    If one run ends at the moment when another starts, they did not overlap.
    """
    changes: dict[float, list[int]] = {}
    for start, end in runs:
        changes.setdefault(start, []).append(1)
        changes.setdefault(end, []).append(-1)
    number = 0
    steps = []
    for moment in sorted(changes):
        number += sum(changes[moment])
        steps.append((moment, number))
    return steps


def most_at_once(runs: Iterable[tuple[float, float]]) -> int:
    """The largest number of runs at one moment."""
    return max((number for _, number in running_over_time(runs)), default=0)


def by_user(
    jobs: Iterable[Job], limits: Mapping[str, int | None], until_seconds: float
) -> list[UserFigures]:
    """The figures of every user, in the order of `USERS`, and of the jobs that belong to nobody."""
    belonging: dict[str, list[Job]] = {user.name: [] for user in USERS}
    for job in jobs:
        belonging.setdefault(job.user or BACKGROUND, []).append(job)
    known = {user.name: user for user in USERS}
    figures = []
    for name, mine in belonging.items():
        user = known.get(name)
        figures.append(
            UserFigures(
                user=name,
                tier=user.tier if user else "",
                floods=bool(user and user.floods),
                jobs=len(mine),
                done=sum(job.done for job in mine),
                refusals=sum(job.refusals for job in mine),
                waits_seconds=waits_seconds(mine),
                most_at_once=most_at_once(run for job in mine for run in job.runs(until_seconds)),
                limit=limits.get(user.tier) if user else None,
            )
        )
    return figures


def waits_seconds(jobs: Iterable[Job]) -> tuple[float, ...]:
    """The waits of the jobs that started."""
    return tuple(job.wait_seconds for job in jobs if job.wait_seconds is not None)


def quiet_waits_seconds(figures: Sequence[UserFigures]) -> list[float]:
    """The waits of all quiet users' jobs together."""
    return [wait for line in figures if line.quiet for wait in line.waits_seconds]
