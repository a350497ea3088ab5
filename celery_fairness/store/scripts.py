"""Lua scripts: one file per verb, pieces included where a line asks for them.

``--- @include "name"`` is replaced by ``lua/includes/name.lua``, each piece once per script and
depth first, so a piece may include what it needs.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

_INCLUDE = re.compile(r'^--- @include "([a-z_]+)"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One script, ready to be sent.

    Attributes:
        name: The verb.
        source: Lua with its includes expanded.
        sha: What EVALSHA takes.
    """

    name: str
    source: str
    sha: str


@functools.cache
def load_script(name: str) -> Script:
    """Read the script of the verb ``name``; those of the dispatch path are ``dispatch/NAME``.

    Raises:
        FileNotFoundError: There is no such verb, or it includes a piece that does not exist.
    """
    folder, _, verb = name.rpartition("/")
    source = _expand(folder, f"{verb}.lua", set())
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def script_names(folder: str = "") -> list[str]:
    """Return every verb of ``folder`` that has a script."""
    files = _path(folder, "").iterdir()
    return sorted(f.name[:-4] for f in files if f.name.endswith(".lua"))


def _path(folder: str, name: str) -> Traversable:
    parts = [part for part in (folder, *name.split("/")) if part]
    return resources.files(__package__).joinpath("lua", *parts)


def _expand(folder: str, name: str, seen: set[str]) -> str:
    text = _path(folder, name).read_text("utf-8")

    def replace(match: re.Match[str]) -> str:
        piece = match.group(1)
        if piece in seen:
            return ""
        seen.add(piece)
        file = f"includes/{piece}.lua"
        # A folder's own pieces, else those that all share.
        owner = folder if _path(folder, file).is_file() else ""
        return _expand(owner, file, seen)

    return _INCLUDE.sub(replace, text)
