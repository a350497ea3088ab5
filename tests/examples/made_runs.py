"""Runs of the demo that never happened: jobs with times of our choice."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from examples.code_analysis.comparison import Comparison
from examples.code_analysis.jobs import Job
from examples.code_analysis.run import Mode, Run

_numbers = count(1)

LIMITS: dict[str, int | None] = {"free": 1, "pro": 3, "pro_plus": 3, "enterprise": 5}


def made_job(
    user: str | None,
    sent_seconds: float,
    start_seconds: float | None = None,
    end_seconds: float | None = None,
    refusals: int = 0,
) -> Job:
    """A job that was planned; without a start it never ran, without an end it never ended."""
    job = Job(f"job-{next(_numbers)}", user, "analyze", planned=True)
    job.sends, job.receipts = [sent_seconds], [sent_seconds] * (1 + refusals)
    job.starts = [] if start_seconds is None else [start_seconds]
    job.ends = [] if end_seconds is None else [end_seconds]
    job.lines = 100
    return job


def made_run(mode: Mode, jobs: Iterable[Job], ended_seconds: float = 100.0) -> Run:
    """A run from second 0 to `ended_seconds`."""
    run = Run(mode, began_seconds=0.0, ended_seconds=ended_seconds)
    run.book.jobs = {job.id: job for job in jobs}
    if mode == "turns":
        run.limits = dict.fromkeys(LIMITS)
    if mode == "fair":
        run.limits = dict(LIMITS)
        run.snooze_seconds = run.snooze_jitter_seconds = 1.0
    return run


def a_good_comparison() -> Comparison:
    """On plain Celery the others wait for the flood. With the package they do not."""
    plain = [made_job("fred", 0.0, n, n + 4.0) for n in range(10)]
    plain += [made_job("paul", 1.0, 11.0, 11.5), made_job("emma", 2.0, 12.0, 12.5)]
    fair = [made_job("fred", 0.0, 2.0 * n, 2.0 * n + 1.0, refusals=n) for n in range(10)]
    fair += [made_job("paul", 1.0, 1.5, 2.0), made_job("emma", 2.0, 2.25, 3.0)]
    fair += [made_job(None, 3.0, 3.5, 4.0)]
    turns = [made_job("fred", 0.0, n + 1.0, n + 4.0) for n in range(10)]
    turns += [made_job("paul", 1.0, 3.0, 3.5), made_job("emma", 2.0, 3.5, 4.0)]
    return Comparison(
        made_run("plain", plain, 20.0),
        made_run("fair", fair, 20.0),
        seed=7,
        turns=made_run("turns", turns, 20.0),
    )
