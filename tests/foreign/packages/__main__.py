"""``python -m tests.foreign.packages``: run the tests of other people's packages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from celery_fairness.testing.child_process import dying_with_parent
from tests.foreign.packages.environment import OLD_SENTRY, python
from tests.foreign.source import ROOT

HERE = Path(__file__).parent
#: The files. pytest finds them only where it is told to: their packages are not in ``.venv``.
FILES = "check_*.py"


def run(arguments: Sequence[str] = ()) -> int:
    """Run the tests: those of Sentry with either release, and all others; return the exit code.

    Sentry patches Celery for its whole process, so each of these runs has processes of its own.
    """
    command = [str(python()), "-m", "pytest", "-q", "-o", f"python_files={FILES}", "--rootdir=."]
    command += ["-p", "no:cacheprovider", "-p", "no:valkey", "-p", "no:django", "-p", "no:celery"]
    command += ["-c", str(HERE / "pytest.ini"), *arguments]
    sentry = str(HERE / "check_sentry.py")
    of_sentry = [*command, "-p", "sentry_first", sentry]
    started = [
        _start(of_sentry),
        _start(of_sentry, OLD_SENTRY),
        _start([*command, "-n", "2", str(HERE), "--ignore", sentry]),
    ]
    return max(each.wait() for each in started)


def _start(command: list[str], *first: Path) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(map(str, (*first, ROOT, HERE)))
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(dying_with_parent(command), cwd=ROOT, env=env)


def main() -> int:
    """Run, with further arguments of pytest; returns the exit code."""
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
