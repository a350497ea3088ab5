"""Fixtures of the demo site as processes; and Django kept out of the rest of the suite.

Invariant: the tests in ``suite/`` configure Django for their whole process, so they run in a
process of their own (:mod:`tests.django.test_on_databases`), unless they are asked for by path.

Weakness: ``pytest -k`` on the whole suite chooses among them by the names that
``test_on_databases`` gives them, and the process runs all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

collect_ignore = ["suite"]

PROJECT = Path(__file__).resolve().parents[2] / "django_app"


@pytest.fixture
def site_environment(tmp_path: Path) -> dict[str, str]:
    """Variables for a demo site with a folder of its own."""
    return {
        "DEMO_SITE_DIR": str(tmp_path / "site"),
        "PYTHONPATH": str(PROJECT),
        "DJANGO_SUPERUSER_PASSWORD": "let me in",
    }


@pytest.fixture
def manage(site_environment: dict[str, str]) -> Callable[..., str]:
    """Run a management command of the demo site to its end; give back what it printed."""

    def manage(*arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, str(PROJECT / "manage.py"), *arguments],
            env={**os.environ, **site_environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        printed = done.stdout + done.stderr
        assert done.returncode == status, f"{arguments} ended with {done.returncode}:\n{printed}"
        return printed

    return manage
