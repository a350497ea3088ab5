"""The Redis function library: every module of ``lua/`` as one text.

A module is a table. Each file is in a block of its own, so its constants are local to it, and
modules may call each other in any order. Functions that clients call are in ``lua/functions``.

A second library has the same modules, and those of ``lua/check`` instead of these functions. Only
the command that checks an installation loads it.

The names of the library and of each function contain the digest of the text. So two versions of
this package can use one server, and no version replaces the library of another one. A server keeps
an old library until a person deletes it.

While a library loads, only literals, operators and functions are available: no ``string``, no
``redis.call``.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from redis.exceptions import NoPermissionError, OutOfMemoryError, ResponseError

from celery_fairness.config.numbers import AMOUNTS, NUMBERS
from celery_fairness.errors import FairnessError

#: The beginning of a library's name.
FAMILY = "cf_"
#: The oldest servers that have functions.
FLOOR = "Redis 7.0 or newer, or Valkey 7.2 or newer"
#: The rights to load and call the library, in addition to those on the keys.
RIGHTS = "+fcall +function|list +function|load"

_CODE = re.compile(r'"(?:[^"\\\n]|\\.)*"|--\[\[.*?\]\]|--[^\n]*', re.DOTALL)
_HEAD = """\
local function register(name, flags, callback)
redis.register_function{function_name = LIBRARY .. "_" .. name, callback = callback, flags = flags}
end
local function register_json(name, flags, callback)
register(name, flags, function(keys, args)
return cjson.encode(callback({prefix = keys[1], memo = {}, result = {}}, cjson.decode(args[1])))
end)
end
"""

Call = Callable[..., Any]


class LibraryUnusable(FairnessError, ResponseError):
    """The server cannot load the library, or its tables have another schema.

    The text names the next step.
    """


@dataclass(frozen=True, slots=True)
class Library:
    """One text and its name.

    Attributes:
        name: The library's name, which contains the digest of the text.
        code: The argument of ``FUNCTION LOAD``.
    """

    name: str
    code: str

    def function(self, name: str) -> str:
        """Return the full name of the function ``name`` on a server."""
        return f"{self.name}_{name}"


@functools.cache
def library() -> Library:
    """Return the library of this version."""
    return build()


@functools.cache
def check_library() -> Library:
    """Return the library that checks and repairs the tables of this version."""
    return build(checks=True)


def build(constants: Mapping[str, object] | None = None, *, checks: bool = False) -> Library:
    """Join the modules.

    Args:
        constants: Other values for numeric constants of the modules by name, for tests.
        checks: Use the modules of ``lua/check`` instead of ``lua/functions``.

    Raises:
        ValueError: No module has such a constant.
    """
    text = _text(checks)
    for name, value in (constants or {}).items():
        text, found = re.subn(rf"\b{name} = [\d.]+$", f"{name} = {value}", text, flags=re.MULTILINE)
        if not found:
            raise ValueError(f"constants: expected one of a module, got: {name}")
    name = FAMILY + hashlib.sha256(text.encode()).hexdigest()[:12]
    return Library(name, f'#!lua name={name}\nlocal LIBRARY = "{name}"\n{text}')


def load(call: Call, wanted: Library | None = None) -> None:
    """Load the library unless the server has it.

    Args:
        call: Sends one command, each part an argument, and returns its answer.
        wanted: The library. None means that of this version.

    Raises:
        LibraryUnusable: The server has no functions, the user lacks the rights, memory is full, or
            the name belongs to another text.
        RedisError: Redis does not answer.
    """
    made = wanted or library()
    try:
        if _is_there(call, made):
            return
        call("FUNCTION", "LOAD", made.code)
    except NoPermissionError as error:
        raise LibraryUnusable(f"the user may not load functions, grant {RIGHTS}: {error}") from None
    except OutOfMemoryError as error:
        raise LibraryUnusable(
            f"memory is full and the library {made.name} is not loaded, free some: {error}"
        ) from None
    except ResponseError as error:
        if str(error) == f"Library '{made.name}' already exists":
            return
        if "unknown command" in str(error).lower():
            raise LibraryUnusable(f"the server has no functions, expected {FLOOR}") from None
        raise


def loaded(call: Call) -> dict[str, int]:
    """Return the libraries of this package on a server: the size of each text by name."""
    found = {}
    for row in call("FUNCTION", "LIST", "LIBRARYNAME", f"{FAMILY}*", "WITHCODE"):
        fields = _fields(row)
        found[str(fields["library_name"])] = len(fields["library_code"])
    return found


def is_missing(error: ResponseError) -> bool:
    """Return whether a call failed because the server does not have its function."""
    text = str(error)
    # A pipeline puts the command before the server's text.
    return "Function not found" in text or ("unknown command" in text and "FCALL" in text.upper())


def _is_there(call: Call, made: Library) -> bool:
    found = call("FUNCTION", "LIST", "LIBRARYNAME", made.name, "WITHCODE")
    if not found:
        return False
    if _fields(found[0])["library_code"] != made.code:
        raise LibraryUnusable(
            f"another text has the name {made.name}, delete it: FUNCTION DELETE {made.name}"
        )
    return True


def _fields(row: Any) -> dict[str, Any]:
    # RESP2 returns names and values in turns, RESP3 a map.
    pairs = row.items() if isinstance(row, dict) else zip(row[::2], row[1::2], strict=True)
    return {_as_text(name): _as_text(value) for name, value in pairs}


def _as_text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _text(checks: bool) -> str:
    folder = resources.files(__package__).joinpath("lua")
    modules = _files(folder)
    functions = _files(folder.joinpath("check" if checks else "functions"))
    if checks:
        modules |= functions
        functions = {}
    tables = ", ".join(_table(name) for name in modules)
    empty = ", ".join("{}" for _ in modules)
    files = (*modules.values(), *functions.values())
    blocks = (f"do\n{_code(file.read_text('utf-8'))}end\n" for file in files)
    return f"{_HEAD}{_numbers()}local {tables} = {empty}\n{''.join(blocks)}"


def _numbers() -> str:
    """Return the table of numbers as constants of the library, for ``lua/numbers.lua``."""
    rows = ", ".join(
        f'{each.letter} = {{name = "{each.name}", kind = "{each.kind.name}"}}'
        for each in NUMBERS.values()
    )
    order = ", ".join(f'"{each.letter}"' for each in NUMBERS.values())
    amounts = ", ".join(f"{each.name} = true" for each in NUMBERS.values() if each.taken_of)
    return (
        f"local BY_LETTER, ORDER = {{{rows}}}, {{{order}}}\n"
        f'local AMOUNTS, AMOUNT_LETTERS = {{{amounts}}}, "[{AMOUNTS}]"\n'
    )


def _files(folder: Traversable) -> dict[str, Traversable]:
    """Return the Lua files of ``folder`` by name, in order."""
    files = {each.name.removesuffix(".lua"): each for each in folder.iterdir()}
    return {name: files[name] for name in sorted(files) if files[name].name != name}


def _table(module: str) -> str:
    """Return the name of a module's table."""
    return "".join(part.capitalize() for part in module.split("_"))


def _code(text: str) -> str:
    """Return Lua without comments, indents and empty lines."""
    text = _CODE.sub(lambda match: match[0] if match[0].startswith('"') else "", text)
    return "".join(f"{line.strip()}\n" for line in text.split("\n") if line.strip())
