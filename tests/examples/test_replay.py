"""The replay: the limit holds, and the waits are those of the snooze."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.code_analysis.figures import most_at_once
from examples.code_analysis.jobs import Job
from examples.code_analysis.replay import Replayed, Snooze, replay
from tests.examples.made_runs import made_job


def at_once(jobs: int, length_seconds: float = 1.0) -> list[Job]:
    return [made_job("fred", 0.0, 5.0, 5.0 + length_seconds) for _ in range(jobs)]


def test_a_job_that_fits_starts_when_it_is_sent() -> None:
    assert replay(at_once(2), 2, Snooze(30.0, 10.0), seed=1) == [Replayed(0.0, 0.0, 1.0, 0)] * 2


def test_a_refused_job_asks_again_after_the_snooze() -> None:
    first, second = replay(at_once(2), 1, Snooze(30.0, 0.0), seed=1)

    assert first.wait_seconds == 0.0
    assert (second.wait_seconds, second.refusals) == (30.0, 1)


def test_no_limit_and_no_slot() -> None:
    assert all(job.wait_seconds == 0 for job in replay(at_once(9), None, Snooze(1.0, 1.0), seed=1))
    assert replay(at_once(9), 0, Snooze(1.0, 1.0), seed=1) == []


def test_jobs_that_never_ran_are_left_out() -> None:
    assert replay([made_job("fred", 0.0), made_job("fred", 0.0, 1.0)], 1, Snooze(1, 1), 1) == []


def test_a_snooze_of_nothing_comes_to_an_end() -> None:
    assert len(replay(at_once(3, length_seconds=0.01), 1, Snooze(0.0, 0.0), seed=1)) == 3


@given(
    spans=st.lists(st.tuples(st.floats(0, 50), st.floats(0.01, 5)), max_size=40),
    limit=st.integers(1, 5),
    seed=st.integers(0, 5),
)
def test_never_more_than_the_limit(spans: list[tuple[float, float]], limit: int, seed: int) -> None:
    jobs = [made_job("fred", sent, sent, sent + length) for sent, length in spans]

    replayed = replay(jobs, limit, Snooze(1.0, 1.0), seed)

    assert len(replayed) == len(jobs)
    assert most_at_once((job.start_seconds, job.end_seconds) for job in replayed) <= limit
    assert all(
        job.refusals <= job.wait_seconds + 1e-6 <= 2 * job.refusals + 1e-5 for job in replayed
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_snooze_lies_between_its_ends(seed: int) -> None:
    chance = random.Random(seed)
    drawn = [Snooze(30.0, 10.0).draw(chance) for _ in range(1000)]

    assert 30.0 <= min(drawn) < 31.0
    assert 39.0 < max(drawn) < 40.0
    assert str(Snooze(30.0, 0.5)) == "30 s + 0.5 s"
