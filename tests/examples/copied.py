"""An example in a folder of its own, as a person copies it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.local_process import ROOT, clean_environment
from tests.support.waiting import at_most

_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"(?:order|report|task) (\S+) of (\S+) (begins|ends)$", re.MULTILINE)


class Copied:
    """A copy of the folder ``examples/NAME``, and commands in it."""

    def __init__(self, name: str, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder / name
        shutil.copytree(
            ROOT / "examples" / name,
            self.folder,
            ignore=shutil.ignore_patterns("__pycache__", "db.sqlite3", "wheels"),
        )
        #: The environment of the processes of the example.
        self.variables = {"PYTHONPATH": str(self.folder), **variables}
        (block,) = _BLOCK.findall((self.folder / "README.md").read_text())
        self.commands = block.splitlines()

    def command(self, beginning: str) -> str:
        """Return the one command of the README that begins so."""
        (found,) = (each for each in self.commands if each.startswith(beginning))
        return found

    def python(self, command: str, *more: str) -> str:
        """Run a command that begins with `python`, and return what it printed."""
        name, *words = shlex.split(command)
        assert name == "python", command
        done = subprocess.run(
            [sys.executable, *words, *more],
            cwd=self.folder,
            env={**clean_environment(), **self.variables},
            capture_output=True,
            text=True,
            timeout=at_most(60),
            check=False,
        )
        assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
        return done.stdout


def ended(log: str) -> int:
    """Return how many bodies have ended, by a worker's log."""
    return sum(word == "ends" for _, _, word in _LINE.findall(log))


def most_at_once(log: str, of: Callable[[str], bool] = lambda _: True) -> int:
    """Return how many bodies of these tenants ran at once at most, by a worker's log.

    A body that has begun and not ended holds its slots, so this is never more than the truth.
    """
    running = most = 0
    for _, tenant, word in _LINE.findall(log):
        if of(tenant):
            running += 1 if word == "begins" else -1
            most = max(most, running)
    return most
