"""A copy of the scripts that the loader of the package reads, so that a mutant may take a place.

Invariant: nothing is written to the scripts themselves; when the copy is closed, or a mutant is
taken out, the loader reads again what it read before.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_fairness.store import scripts
from tests.mutants.making import LUA, Mutant


class Copy:
    """Scripts in a directory of their own; `read` are those that were loaded."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.read: set[str] = set()
        shutil.copytree(LUA, directory)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scripts, "_path", self._path)
            self.load_anew()
            yield
        self.load_anew()

    @contextmanager
    def having(self, mutant: Mutant) -> Iterator[None]:
        file = self.directory / mutant.file
        file.write_text(mutant.text, "utf-8")
        self.load_anew()
        yield
        file.write_text(mutant.source, "utf-8")
        self.load_anew()

    def load_anew(self) -> None:
        self.read.clear()
        scripts.load_script.cache_clear()

    def _path(self, folder: str, name: str) -> Path:
        file = self.directory / folder / name
        if file.is_file():
            self.read.add(str(file.relative_to(self.directory)))
        return file
