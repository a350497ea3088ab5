"""The numbers: percentiles, and how many jobs ran at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.code_analysis.figures import (
    by_user,
    most_at_once,
    percentile,
    quiet_waits_seconds,
    running_over_time,
)
from examples.code_analysis.users import BACKGROUND, USERS
from tests.examples.made_runs import LIMITS, made_job


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([], 95, None),
        ([3.0], 50, 3.0),
        ([3.0], 95, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 50, 2.0),
        (list(range(1, 101)), 95, 95),
        (list(range(1, 101)), 100, 100),
        (list(range(1, 21)), 95, 19),
    ],
)
def test_percentile(values: list[float], percent: float, expected: float | None) -> None:
    assert percentile(values, percent) == expected


@given(st.lists(st.floats(0, 100), min_size=1), st.integers(1, 100))
def test_a_percentile_has_its_share_below_it(values: list[float], percent: int) -> None:
    found = percentile(values, percent)

    assert found is not None
    assert sum(value <= found for value in values) >= len(values) * percent / 100


def test_runs_that_meet_did_not_run_together() -> None:
    assert most_at_once([(0.0, 1.0), (1.0, 2.0)]) == 1
    assert most_at_once([(0.0, 1.1), (1.0, 2.0)]) == 2
    assert most_at_once([]) == 0
    assert running_over_time([(0.0, 2.0), (1.0, 2.0)]) == [(0.0, 1), (1.0, 2), (2.0, 0)]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=30))
def test_most_at_once_is_what_one_sees_by_looking_at_every_moment(
    spans: list[tuple[int, int]],
) -> None:
    runs = [(float(start), float(start + length)) for start, length in spans]
    looked = max(
        (sum(start <= moment < end for start, end in runs) for moment in range(30)), default=0
    )

    assert most_at_once(runs) == looked


def test_the_lines_of_the_table() -> None:
    jobs = [
        made_job("fred", 0.0, 1.0, 2.0, refusals=2),
        made_job("fred", 0.0, 3.0, 4.0),
        made_job("paul", 0.0, 0.5, 9.0),
        made_job("paul", 0.0, 0.75, 9.0),
        made_job("paul", 0.0),
        made_job(None, 0.0, 7.0, 8.0),
    ]
    lines = {line.user: line for line in by_user(jobs, LIMITS, until_seconds=10.0)}

    assert list(lines) == [*(user.name for user in USERS), BACKGROUND]
    assert (lines["fred"].limit, lines["fred"].most_at_once, lines["fred"].refusals) == (1, 1, 2)
    assert (lines["paul"].jobs, lines["paul"].done, lines["paul"].most_at_once) == (3, 2, 2)
    assert (lines["paul"].wait_p50_seconds, lines["paul"].wait_p95_seconds) == (0.5, 0.75)
    assert (lines["emma"].jobs, lines["emma"].wait_p95_seconds) == (0, None)
    assert lines[BACKGROUND].limit is None
    assert quiet_waits_seconds(list(lines.values())) == [0.5, 0.75]
