"""Every row of the Open Job Spec's rate limiting that is kept has a test that is named by it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
ROWS = [f"s{row:02}" for row in range(1, 55)]
ROWS += [f"rl{row:03}" for row in range(1, 7)] + [f"rlr{row:03}" for row in range(1, 6)]


@pytest.fixture(scope="module")
def named():
    text = "\n".join(file.read_text() for file in TESTS.rglob("test_*.py"))
    return {
        word
        for name in re.findall(r"^ *def test_(\w+)\(", text, re.MULTILINE)
        for word in name.lower().split("_")
    }


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_a_test(named, row):
    assert row in named
