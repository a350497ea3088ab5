"""A number that is added to the table is in each place that is derived from the table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from celery_fairness.config.numbers import read_numbers
from tests.support import new_numbers

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """The new numbers that each place has, from a process that added them before any import."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.new_numbers"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    places: dict[str, list[str]] = json.loads(done.stdout)
    return places


@pytest.mark.parametrize("place", new_numbers.PLACES)
def test_a_new_number_of_each_kind_is_in(place, found):
    assert sorted(found[place]) == sorted(new_numbers.NEW)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("C3;R100/60000+5/1000", {"concurrency": 3, "rate": ((100, 60_000), (5, 1_000))}),
        ("C-", {"concurrency": None}),
        # Z is a number of a newer version, which runs beside this one.
        ("C3;Z9", {"concurrency": 3}),
        ("Z9", {}),
    ],
)
def test_a_text_of_redis_is_read_without_the_numbers_of_a_newer_version(text, found):
    assert read_numbers(text) == found
