"""The table of other people's packages has the versions that are tested."""

from __future__ import annotations

from pathlib import Path

from tests.foreign.packages.environment import OLDEST_SENTRY, REQUIREMENTS

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/versions.md"


def test_the_table_has_the_packages_and_versions_that_are_installed():
    table = PAGE.read_text().partition("<!-- table: packages -->")[2].partition("<!-- end")[0]
    rows = [line.split("|")[1:3] for line in table.strip().splitlines()[2:]]
    told = {(name.strip(), each) for name, text in rows for each in text.strip().split(" and ")}
    lines = [*REQUIREMENTS.read_text().splitlines(), OLDEST_SENTRY]
    assert told == {tuple(line.split("==")) for line in lines if not line.startswith("#")}
