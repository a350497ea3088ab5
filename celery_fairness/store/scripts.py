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
    """Read the script of the verb ``name``.

    Raises:
        FileNotFoundError: There is no such verb, or it includes a piece that does not exist.
    """
    source = _expand(f"{name}.lua", set())
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def script_names() -> list[str]:
    """Return every verb that has a script."""
    files = resources.files(__package__).joinpath("lua").iterdir()
    return sorted(f.name[:-4] for f in files if f.name.endswith(".lua"))


def _expand(path: str, seen: set[str]) -> str:
    text = resources.files(__package__).joinpath("lua", *path.split("/")).read_text("utf-8")

    def replace(match: re.Match[str]) -> str:
        piece = match.group(1)
        if piece in seen:
            return ""
        seen.add(piece)
        return _expand(f"includes/{piece}.lua", seen)

    return _INCLUDE.sub(replace, text)
