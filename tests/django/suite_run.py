"""One run of the Django suite in a process of its own, and what became of each test.

Invariant: a test that was collected and is not in the report is an error, never a pass.

Weakness: the tests are found by reading the files, so one that is made in another way than by a
``def test_…`` at the top of a module would not be counted.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from xml.etree import ElementTree

from tests.support.postgres import PostgresServer
from tests.support.servers import NotInstalled

SUITE = Path(__file__).resolve().parent / "suite"
ROOT = SUITE.parent.parent.parent
#: Modules about Redis, requests or the environment. The database stores only users, tokens and the
#: history for them, so they run on one database. Every other module runs on each.
ON_ONE_DATABASE = frozenset(
    (
        "test_api_limits",
        "test_api_page",
        "test_api_schema",
        "test_dashboard",
        "test_dead_letters",
        "test_demo_settings",
        "test_limit_pages",
        "test_metrics",
        "test_partitions",
        "test_permissions",
        "test_queue_pages",
        "test_redis_pages",
        "test_task_search",
    )
)


def runs_everything(database: str) -> bool:
    """Whether this is the database of the modules that need only one.

    It is PostgreSQL, which rejects more values, or SQLite if PostgreSQL is not installed.
    """
    try:
        PostgresServer()
    except NotInstalled:
        return database == "sqlite"
    return database == "postgres"


def modules(database: str) -> list[Path]:
    """Return the files of the suite that run on ``database``."""
    left_out = frozenset() if runs_everything(database) else ON_ONE_DATABASE
    return [path for path in sorted(SUITE.glob("test_*.py")) if path.stem not in left_out]


def names(database: str) -> list[str]:
    """Return every test function that runs on ``database``, as ``module.function``."""
    return [
        f"{path.stem}.{node.name}"
        for path in modules(database)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


@dataclass
class Outcome:
    """What became of one test function, all its parameters together."""

    ran: int = 0
    skipped: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass
class SuiteRun:
    """A finished run: outcomes by name, and all that it printed."""

    outcomes: dict[str, Outcome]
    output: str

    @classmethod
    def on(cls, database: str, folder: Path) -> Self:
        """Run the modules of ``database``: sqlite or postgres."""
        report = folder / f"{database}.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}"]
        command += map(str, modules(database))
        # The other tests run without Django's plugin.
        command += ["-p", "django", "-o", "django_find_project=false"]
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider"],
            cwd=ROOT,
            env={**os.environ, "TEST_DATABASE": database},
            capture_output=True,
            text=True,
            check=False,
        )
        outcomes: dict[str, Outcome] = defaultdict(Outcome)
        if report.exists():
            for case in ElementTree.parse(report).iter("testcase"):
                _note(outcomes, case)
        return cls(dict(outcomes), done.stdout + done.stderr)


def _note(outcomes: dict[str, Outcome], case: ElementTree.Element) -> None:
    module = case.get("classname", "").rpartition(".")[2]
    function = case.get("name", "").partition("[")[0]
    outcome = outcomes[f"{module}.{function}"]
    for child in case:
        if child.tag == "skipped":
            outcome.skipped.append(child.get("message", ""))
        elif child.tag in ("failure", "error"):
            outcome.failures.append(f"{case.get('name')}: {child.text}")
    outcome.ran += 1
