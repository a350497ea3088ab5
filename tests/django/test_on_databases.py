"""The Django suite on each database, each in one process; every test of it is a test here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.django.suite_run import SuiteRun, names
from tests.support.services import missing
from tests.support.waiting import at_most

_runs: dict[str, SuiteRun] = {}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("django")


# The first test on a database waits for the whole run. Each test of that run has a timeout of its
# own, which names a test that hangs. It must come first.
@pytest.mark.timeout(at_most(800))
@pytest.mark.parametrize(
    ("database", "name"),
    [
        pytest.param(database, name, marks=marks)
        for database, marks in (("sqlite", ()), ("postgres", pytest.mark.postgres))
        for name in names(database)
    ],
)
def test_django(database: str, name: str, folder: Path) -> None:
    if database not in _runs:
        _runs[database] = SuiteRun.on(database, folder)
    run = _runs[database]
    outcome = run.outcomes.get(name)
    assert outcome is not None, f"{name} did not run:\n{run.output[-5000:]}"
    assert not outcome.failures, "\n".join(outcome.failures)
    if outcome.skipped:
        missing(outcome.skipped[0])
