"""A copy of the modules that the package makes its library of, so that a mutant may take a place.

Invariant: nothing is written to the modules themselves; when the copy is closed, or a mutant is
taken out, the library is made anew of what it was made of before.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources.abc import Traversable
from pathlib import Path

import pytest

from celery_fairness.store import library
from tests.mutants.making import LUA, Mutant


class Copy:
    """Modules in a directory of their own; `called` are the functions that were called by name."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.called: set[str] = set()
        shutil.copytree(LUA, directory)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        files, function = library._files, library.Library.function

        def of_the_copy(folder: Traversable) -> dict[str, Traversable]:
            return files(self.directory / Path(str(folder)).relative_to(LUA))

        def noted(made: library.Library, name: str) -> str:
            self.called.add(name)
            return function(made, name)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(library, "_files", of_the_copy)
            patch.setattr(library.Library, "function", noted)
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
        # Not before: pytest warns of modules that it could not rewrite.
        from tests.reference import walk

        self.called.clear()
        library.library.cache_clear()
        # The walk of the reference caches the libraries with other bounds.
        walk.library_of.cache_clear()
