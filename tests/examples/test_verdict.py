"""The demo's exit code: each violation is planted and must be found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from examples.code_analysis.comparison import Comparison
from examples.code_analysis.jobs import Job
from tests.examples.made_runs import a_good_comparison, made_job


def test_a_good_pair_of_runs_has_no_finding() -> None:
    assert a_good_comparison().findings == []


def _above_the_limit(comparison: Comparison) -> None:
    _add(comparison, made_job("fay", 0.0, 1.0, 3.0), made_job("fay", 0.0, 2.0, 4.0))


def _above_a_higher_limit(comparison: Comparison) -> None:
    _add(comparison, *(made_job("petra", 0.0, 1.0, 2.0) for _ in range(4)))


def _flood_above_its_limit(comparison: Comparison) -> None:
    _add(comparison, made_job("fred", 0.0, 0.5, 1.5))


def _never_started(comparison: Comparison) -> None:
    _add(comparison, made_job("paul", 0.0))


def _never_ended(comparison: Comparison) -> None:
    _add(comparison, made_job("paul", 0.0, 1.0))


def _never_even_sent(comparison: Comparison) -> None:
    job = made_job("paul", 0.0)
    job.sends.clear()
    _add(comparison, job)


def _of_beat_lost(comparison: Comparison) -> None:
    _add(comparison, made_job(None, 0.0))


def _ran_twice(comparison: Comparison) -> None:
    job = made_job("paul", 0.0, 1.0, 2.0)
    job.starts.append(3.0)
    job.ends.append(4.0)
    _add(comparison, job)


def _failed(comparison: Comparison) -> None:
    job = made_job("paul", 0.0, 1.0, 2.0)
    job.failed = True
    _add(comparison, job)


def _waited_too_long(comparison: Comparison) -> None:
    _add(comparison, made_job("fay", 0.0, 6.1, 6.2))


def _add(comparison: Comparison, *jobs: Job) -> None:
    comparison.fair.book.jobs.update({job.id: job for job in jobs})


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (_above_the_limit, "fay (free) had 2 jobs at once, the limit is 1"),
        (_above_a_higher_limit, "petra (pro) had 4 jobs at once, the limit is 3"),
        (_flood_above_its_limit, "fred (free) had 2 jobs at once, the limit is 1"),
        (_never_started, "1 job lost (never started), the first: analyze of paul, id job-"),
        (_never_ended, "1 job lost (started and never ended)"),
        (_never_even_sent, "1 job lost (never started), the first: analyze of paul, id job-"),
        (_of_beat_lost, "1 job lost (never started), the first: analyze of (beat)"),
        (_ran_twice, "1 job run more than once"),
        (_failed, "1 job failed"),
        (_waited_too_long, "fay (free) waited 6.1 s at p95, expected at most 6 s"),
    ],
)
def test_a_planted_violation_is_the_one_finding(
    plant: Callable[[Comparison], None], words: str
) -> None:
    comparison = a_good_comparison()
    plant(comparison)

    (finding,) = comparison.findings

    assert words in finding
    assert finding.startswith("limits and turns: ")


def test_the_flood_and_plain_celery_may_wait_and_exceed() -> None:
    comparison = a_good_comparison()
    _add(comparison, made_job("fred", 0.0, 80.0, 81.0))
    plain = comparison.plain.book.jobs
    for job in [made_job("paul", 0.0, 50.0, 51.0) for _ in range(4)]:
        plain[job.id] = job

    assert comparison.findings == []


def test_many_jobs_with_one_fault_are_one_finding() -> None:
    comparison = a_good_comparison()
    _add(comparison, *(made_job("paul", 0.0) for _ in range(50)))

    (finding,) = comparison.findings

    assert "50 jobs lost" in finding


def test_a_run_that_was_stopped_says_so() -> None:
    comparison = a_good_comparison()
    comparison.fair.stopped = "stopped after 75 s"

    assert comparison.findings == ["limits and turns: stopped after 75 s"]


def test_a_job_lost_on_plain_celery_is_found_too() -> None:
    comparison = a_good_comparison()
    job = made_job("paul", 0.0)
    comparison.plain.book.jobs[job.id] = job

    (finding,) = comparison.findings

    assert finding.startswith("plain Celery: ")


def test_with_turns_alone_a_quiet_user_may_exceed_and_may_not_wait() -> None:
    comparison = a_good_comparison()
    assert comparison.turns is not None
    jobs = [made_job("paul", 0.0, 6.1, 7.0) for _ in range(4)]
    comparison.turns.book.jobs.update({job.id: job for job in jobs})

    (finding,) = comparison.findings

    assert finding == "turns alone: paul (pro) waited 6.1 s at p95, expected at most 6 s"


@pytest.mark.parametrize(("waited_seconds", "found"), [(25.0, 0), (25.2, 1)])
def test_on_a_slow_machine_a_quiet_user_may_wait_half_of_what_plain_celery_let_them(
    waited_seconds: float, found: int
) -> None:
    comparison = a_good_comparison()
    for job in comparison.plain.book.jobs.values():
        if job.user in ("paul", "emma"):
            job.starts = [job.sends[0] + 50.0]
            job.ends = [job.sends[0] + 51.0]
    comparison.plain.ended_seconds = 60.0
    _add(comparison, made_job("fay", 0.0, waited_seconds, waited_seconds + 0.1))
    assert len(comparison.findings) == found
    if found:
        assert comparison.findings[0].endswith("waited 25.2 s at p95, expected at most 25 s")
