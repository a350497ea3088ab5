"""Make passes the given variables on to its commands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], '--tests "tests" '),
        (["TESTS=tests/unit tests/lua", "ARGS=--times 3"], '"tests/unit tests/lua" --times 3'),
    ],
)
def test_repeat_runs_the_tests_that_it_is_given(given, expected):
    # The variables of the make that may run this test would pass on, too.
    names = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "TESTS", "ARGS")
    environ = {name: value for name, value in os.environ.items() if name not in names}
    command = ["make", "--dry-run", "repeat", *given]
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    (line,) = (each for each in done.stdout.splitlines() if "scripts/repeat" in each)
    assert expected in f"{line} "
