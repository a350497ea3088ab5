"""The real packages on this machine that the demo analyses.

Invariant: the search imports no package. A name leads to the same folder in the process that sends
a job and in the worker that runs it.

Weakness: the list depends on the installed packages, so two machines may get different loads from
one seed. The two runs of one demo get the same load.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

#: Packages of the demo's environment, or of Python. Missing ones are skipped.
ROOTS = (
    *("amqp", "billiard", "celery", "click", "django", "kombu", "pip", "prompt_toolkit"),
    *("pydantic", "redis", "rich", "vine"),
    *("asyncio", "concurrent", "ctypes", "email", "html", "http", "importlib", "json"),
    *("lib2to3", "logging", "multiprocessing", "unittest", "urllib", "wsgiref", "xml"),
)

#: A package smaller than this is parsed too quickly to be seen, a larger one takes too long.
SMALLEST_BYTES = 100_000
LARGEST_BYTES = 300_000

_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib")).resolve()


class PackageMissing(LookupError):
    """A job names a package that is not installed here."""

    def __init__(self, name: str) -> None:
        """Store the name of the package."""
        self.name = name
        super().__init__(f"package {name!r} expected to be installed here, got: nothing")


@dataclass(frozen=True)
class Package:
    """One package or sub-package: the modules directly in its folder."""

    name: str
    folder: Path
    size_bytes: int

    @property
    def standard(self) -> bool:
        """Whether it is part of Python."""
        folder = self.folder.resolve()
        return _STANDARD_LIBRARY in folder.parents and "site-packages" not in folder.parts


def find_folder(name: str) -> Path:
    """The folder of a package, found without importing it.

    Raises:
        PackageMissing: no such package is installed here.
    """
    root, *rest = name.split(".")
    # Not importlib.util.find_spec: it reads `__spec__` of an imported module, and celery and kombu
    # replace their modules by objects without one.
    found = PathFinder.find_spec(root)
    for location in (found and found.submodule_search_locations) or ():
        folder = Path(location, *rest)
        if (folder / "__init__.py").is_file():
            return folder
    raise PackageMissing(name)


def find_packages(roots: Iterable[str] = ROOTS) -> list[Package]:
    """Packages and sub-packages of a size that makes a job, by name."""
    found = []
    for root in roots:
        try:
            top = find_folder(root)
        except PackageMissing:
            continue
        for path, folders, files in os.walk(top):
            if "__init__.py" not in files:
                folders.clear()
                continue
            folder = Path(path)
            size_bytes = sum((folder / file).stat().st_size for file in files if file[-3:] == ".py")
            if SMALLEST_BYTES <= size_bytes <= LARGEST_BYTES:
                name = ".".join((root, *folder.relative_to(top).parts))
                found.append(Package(name, folder, size_bytes))
    return sorted(found, key=lambda package: package.name)
