"""Builds the source archive, and from it the wheel.

The build runs in a copy of the files that it needs. In the work tree, setuptools would also pack
what an earlier build or an editable install has left there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
#: Top folder in the wheel -> where its source is.
SHIPPED = {
    "celery_fairness": ROOT / "celery_fairness",
    "django_celery_fairness": ROOT / "django_app" / "django_celery_fairness",
}
#: If this variable names a folder with both files, the tests of their contents read these.
MADE = "TEST_DIST"
FILES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")


class Built(NamedTuple):
    """The two files of a release."""

    sdist: Path
    wheel: Path


def build(out: Path) -> Built:
    """Build both files in ``out``, which must not have others of the kind.

    Raises:
        SystemExit: The build failed or warned. The text is its output.
    """
    with TemporaryDirectory() as name:
        copy = Path(name)
        for file in FILES:
            shutil.copy(ROOT / file, copy)
        for folder in SHIPPED.values():
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(folder, copy / folder.relative_to(ROOT), ignore=ignored)
        done = subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, copy],
            env={**os.environ, "PYTHONWARNINGS": "error::UserWarning"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"build failed:\n{done.stdout}{done.stderr}")
    return found(out)


def found(folder: Path) -> Built:
    """Return the files in ``folder``.

    Raises:
        ValueError: There is not one of each kind.
    """
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Built(sdist, wheel)
