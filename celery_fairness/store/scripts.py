"""Lua scripts: one file per verb, pieces included where a line asks for them.

``--- @include "name"`` is replaced by ``lua/includes/name.lua``, each piece once per script and
depth first, so a piece may include what it needs.

Redis makes every function of a script anew in each call of it, and collects it afterwards: with
what it refers to, near a microsecond each. So

- functions that a script does not call are left out;
- where ``--- @later name "piece"`` stands, the pieces behind it are one function, ``name()``, that
  makes theirs when it is called first; they are called as ``name().function(...)``;
- ``--- @often function ...`` in a piece that is made later says what most calls of ``name()`` are
  for: all other functions of it are made when the first of those is called;
- ``--- @rarely function ...`` in a verb, behind its includes, makes functions later of pieces that
  are called as they are.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import chain

_INCLUDE = re.compile(r'^--- @include "([a-z_]+)"$', re.MULTILINE)
_CALL = re.compile(r"(?<!local function )\b(\w+)\(")
_COMMENT = re.compile(r"--[^\n]*")
_LATER = re.compile(r'^--- @later (\w+) "([a-z_]+)"$', re.MULTILINE)
#: Stands for the functions of a table that are called.
_CALLED = "called of "
_RARELY = re.compile(r"^--- @rarely ([\w ]+)\n", re.MULTILINE)
_OFTEN = re.compile(r"^--- @often ([\w ]+)\n", re.MULTILINE)
_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end\n", re.MULTILINE | re.DOTALL)


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
    source = _expand_all(folder, f"{verb}.lua")
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


def _expand_all(folder: str, name: str) -> str:
    """Return a script with all its pieces, those that are made later too, and nothing unused."""
    seen: set[str] = set()
    source = _expand(folder, name, seen)
    often: dict[str, list[str]] = {}

    def make_later(match: re.Match[str]) -> str:
        loader, piece = match.groups()
        # What two of them need is in both.
        body = _expand(folder, f"includes/{piece}.lua", set(seen))
        often[loader] = _words(_OFTEN, body)
        body = _OFTEN.sub("", body)
        return (
            f"local made_{loader}\n{loader} = function()\nif made_{loader} then "
            f"return made_{loader} end\n{body}"
            f"made_{loader} = {{{_CALLED}{loader}}}\nreturn made_{loader}\nend"
        )

    source = _LATER.sub(make_later, source)
    rare = _words(_RARELY, source)
    _check(source, "@rarely", rare)
    _check(source, "@often", chain.from_iterable(often.values()))
    source = _used(source)
    for loader, functions in often.items():
        source = _seldom(source, loader, functions)
    source = _rarely(source, rare)
    return re.sub(rf"{_CALLED}(\w+)", lambda match: _table(source, match[1]), source)


def _words(lines: re.Pattern[str], text: str) -> list[str]:
    return " ".join(lines.findall(text)).split()


def _check(source: str, where: str, names: Iterable[str]) -> None:
    """Say where a line names what is no function of the script.

    Raises:
        ValueError: There is no such function.
    """
    if missing := set(names) - {match[1] for match in _FUNCTION.finditer(source)}:
        raise ValueError(f"{where}: no such functions: {', '.join(sorted(missing))}")


def _seldom(source: str, loader: str, often: list[str]) -> str:
    """Return ``source`` with those functions of ``loader()`` made later that are not ``often``."""
    start, end = f"return made_{loader} end\n", f"made_{loader} = {{"
    before, rest = source.split(start)
    body, behind = rest.split(end)
    names = [match[1] for match in _FUNCTION.finditer(body) if match[1] not in often]
    if not often or not names:
        return source
    body, made = _apart(body, names, "seldom")
    call = re.compile(rf"\b{loader}\(\)\.({'|'.join(names)})\(")
    return start.join(
        call.sub(rf"{loader}().seldom().\1(", text)
        for text in (before, f"{body}{made}{end}{behind}")
    )


def _rarely(source: str, names: list[str]) -> str:
    """Return ``source`` with the functions ``names`` made where the first of them is called."""
    if not names:
        return source
    rest, made = _apart(source, names, "rarely")
    before, behind = rest.split("--- @rarely", 1)
    return f"{before}{made}{_RARELY.sub('', '--- @rarely' + behind)}"


def _apart(text: str, names: list[str], loader: str) -> tuple[str, str]:
    """Return ``text`` without the functions ``names``, which it gets of ``loader()``, and that."""
    functions = {match[1]: match[0] for match in _FUNCTION.finditer(text) if match[1] in names}
    rest = _FUNCTION.sub(lambda match: "" if match[1] in functions else match[0], text)
    rest = re.sub(rf"(?<![\w.])({'|'.join(functions)})\(", rf"{loader}().\1(", rest)
    fields = ", ".join(f"{name} = {name}" for name in functions)
    made = (
        f"local made_{loader}\n{loader} = function()\nif made_{loader} then "
        f"return made_{loader} end\n{''.join(functions.values())}"
        f"made_{loader} = {{{fields}}}\nreturn made_{loader}\nend\n"
    )
    return f"local {loader}\n{rest}", made


def _table(source: str, loader: str) -> str:
    """Return the functions that are called as ``loader().function(...)``, as fields of a table."""
    called = sorted(set(re.findall(rf"\b{loader}\(\)\.(\w+)\(", source)))
    return ", ".join(f"{function} = {function}" for function in called)


def _used(source: str) -> str:
    """Return ``source`` without the functions that nothing in it calls."""
    # By name, what each says; the text between them is of nobody.
    functions = {match[1]: match[0] for match in _FUNCTION.finditer(source)}
    rest = _FUNCTION.sub("", source)
    called, ahead = set[str](), _calls(rest)
    while ahead:
        called |= ahead
        ahead = set[str]().union(*(_calls(functions[name]) for name in ahead if name in functions))
        ahead -= called
    return _FUNCTION.sub(lambda match: match[0] if match[1] in called else "", source)


def _calls(text: str) -> set[str]:
    """Return what is called in the text of functions, or outside of them."""
    return set(_CALL.findall(_COMMENT.sub("", text)))
