"""``make dist``: builds the package, checks it, and runs the quick start with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.package.build import MADE, ROOT, build
from tests.package.quick_start import run_quick_start

DIST = ROOT / "dist"


def main() -> None:
    """Build and check; end with another status than 0 at the first mistake."""
    shutil.rmtree(DIST, ignore_errors=True)
    built = build(DIST)
    check("twine", "check", "--strict", *map(str, built))
    check("pytest", "-q", "tests/package")
    run_quick_start(built.wheel)
    print("dist:", *(str(path.relative_to(ROOT)) for path in built))


def check(*command: str) -> None:
    """Run a module of Python."""
    environment = {**os.environ, MADE: str(DIST)}
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=environment, check=False)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
