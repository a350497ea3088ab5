"""Where the tests of Celery's own suite come from: its source distribution."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Git ignores it.
CACHE = ROOT / ".foreign"


def pinned_version() -> str:
    """Return the version of Celery in constraints.txt."""
    match = re.search(r"^celery==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    if match is None:
        raise SystemExit("foreign: constraints.txt: expected a line celery==VERSION; run make lock")
    return match[1]


def fetch() -> Path:
    """Return the folder that has Celery's folder ``t``; download it if it is not there yet.

    Its package ``celery`` is left out: the tests import the one that is installed.
    """
    name = f"celery-{pinned_version()}"
    folder = CACHE / name
    if folder.exists():
        return folder
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        what = f"celery=={pinned_version()}"
        options = ["--quiet", "--no-deps", "--no-binary", "celery", "--dest", temporary]
        print(f"foreign: downloading the source of {what}", flush=True)
        subprocess.run([*_pip(), "download", *options, what], check=True)
        (archive,) = Path(temporary).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tests = [each for each in tar.getmembers() if each.name.startswith(f"{name}/t/")]
            # Python 3.11.3 and older have no filters.
            safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(temporary, tests, **safely)
        shutil.move(Path(temporary) / name, folder)
    return folder


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    uv = shutil.which("uv")
    if uv is None:
        raise SystemExit("foreign: pip or uv is expected; install one (Debian: apt install pipx)")
    # An environment that uv made has no pip.
    return [uv, "tool", "run", "pip"]
