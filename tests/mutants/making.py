"""Mutants: each module and each function of the library with one small mistake in it.

Invariant: the same sources give the same mutants in the same order, each another text than its
source and than every other; no comment and no text of an error is touched.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from itertools import pairwise
from pathlib import Path

from tests.mutants.words import Word, calls, closing, parts, statements, words_of

LUA = Path(str(resources.files("celery_fairness.store"))) / "lua"

KINDS = ("comparison", "sign", "number", "boolean", "key", "order", "guard", "call")

#: Words, by the kind of the mistake, and what stands in their place.
_OTHER = {
    "comparison": {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "=="},
    "sign": {"+": "-", "-": "+", "*": "/", "/": "*"},
    "boolean": {"and": "or", "or": "and", "not": "", "true": "false", "false": "true"},
    "key": {"keys": "args", "args": "keys"},
    "order": {
        "math.min": "math.max",
        "math.max": "math.min",
        '"RPUSH"': '"LPUSH"',
        '"LPOP"': '"RPOP"',
        '"ZPOPMIN"': '"ZPOPMAX"',
    },
}
#: The names of all keys. A wrong one there is the same in all functions.
_KEYS = "keys.lua"
#: Names of fields, ends of names, and words of the callers.
_NAME = re.compile(r'"([a-z_]*:?| )"')
_FIELD = re.compile(r"\w+ = ")
#: Arguments that have no other place: a command and its key, a format.
_IN_FRONT = {"redis.call": 2, "string.format": 1}
#: A bound that does not count itself.
_OPEN_BOUND = re.compile(r'"\(([^"]*)"')
#: A minus after one of these has nothing on its left.
_NOTHING_ON_THE_LEFT = {"(", ",", "=", "{", "and", "or", "return", "then"}
#: What a function of the library is given; elsewhere these names are those of other values.
_GIVEN = "(keys, args)"
_REGISTERED = re.compile(r'^register(?:_json)?\("(\w+)"', re.MULTILINE)
_FUNCTION = re.compile(r"^( *)(?:local )?function (?:\w+\.)?(\w+)\(", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """One file of the library with one mistake.

    Attributes:
        file: Its path below ``store/lua``.
        kind: One of `KINDS`.
        start: Where in the file what was changed begins.
        old: What stood there.
        new: What stands there instead.
    """

    file: str
    kind: str
    start: int
    old: str
    new: str

    @cached_property
    def source(self) -> str:
        """The file as it should be."""
        return (LUA / self.file).read_text("utf-8")

    @property
    def text(self) -> str:
        """The file with the mistake."""
        return self.source[: self.start] + self.new + self.source[self.start + len(self.old) :]

    @property
    def line(self) -> int:
        """The number of the line, from 1."""
        return self.source.count("\n", 0, self.start) + 1

    @property
    def place(self) -> str:
        """The file and the function: what a person calls the place, whatever its line number."""
        inside = ""
        for match in _FUNCTION.finditer(self.source, 0, self.start):
            end = self.source.find(f"\n{match.group(1)}end\n", match.end())
            if end > self.start:
                inside = match.group(2)
        return f"{self.file} {inside}".strip()

    @property
    def unit(self) -> str:
        """What is run or not run as a whole: a function of a module, or else the file."""
        for start, end, name in _functions_of(self.file, self.source):
            if start < self.start < end:
                return f"{self.file} {name}"
        return self.file

    @property
    def change(self) -> tuple[str, str]:
        """The lines that are changed, before and after, each as one line."""
        first = self.source.rfind("\n", 0, self.start) + 1
        last = self.source.find("\n", self.start + len(self.old))
        after = self.source[first : self.start] + self.new
        after += self.source[self.start + len(self.old) : last]
        return " ".join(self.source[first:last].split()), " ".join(after.split())


def files() -> list[str]:
    """Return every module and every file of functions of the library that workers call."""
    found = (
        path for path in LUA.rglob("*.lua") if path.parent.name != "check" and path.name != _KEYS
    )
    return sorted(str(path.relative_to(LUA)) for path in found)


@functools.cache
def reached_by(function: str) -> frozenset[str]:
    """Return the units that a call of a function of the library may run, its own with them."""
    bodies = _bodies()
    modules = {_table(file): file for file in files() if "/" not in file}
    found: set[str] = set()
    rest = {unit for unit, text in bodies.items() if function in _REGISTERED.findall(text)}
    while rest:
        unit = rest.pop()
        found.add(unit)
        own = unit.partition(" ")[0]
        for word in words_of(bodies[unit]):
            table, _, name = word.text.partition(".")
            if not name:
                rest |= {f"{own} {table}"} & bodies.keys() - found
            elif table in modules:
                file = modules[table]
                # Where it is no function it is a number.
                rest |= {file, f"{file} {name}"} & bodies.keys() - found
    return frozenset(found)


@functools.cache
def _bodies() -> dict[str, str]:
    """Return the text of each unit."""
    bodies = {}
    for file in files():
        source = rest = (LUA / file).read_text("utf-8")
        for start, end, name in _functions_of(file, source):
            bodies[f"{file} {name}"] = source[start:end]
            rest = rest.replace(source[start:end], "")
        bodies[file] = rest
    return bodies


def _functions_of(file: str, source: str) -> Iterator[tuple[int, int, str]]:
    """Yield from where to where each function of a module goes, and its name."""
    if "/" not in file:
        for match in _FUNCTION.finditer(source):
            if not match.group(1):
                yield match.start(), source.index("\nend\n", match.end()), match.group(2)


def _table(file: str) -> str:
    """Return what a module is called in Lua."""
    return "".join(map(str.capitalize, Path(file).stem.split("_")))


def mutants_of(file: str) -> list[Mutant]:
    """Return the mutants of one file in the order of its text, none twice."""
    source = (LUA / file).read_text("utf-8")
    words = words_of(source)
    made = sorted(
        (start, KINDS.index(kind), source[start:end], new)
        for kind, start, end, new in _changes(source, words)
    )
    first = {}
    for start, kind, old, new in made:
        mutant = Mutant(file, KINDS[kind], start, old, new)
        if mutant.text != source:
            first.setdefault(mutant.text, mutant)
    return list(first.values())


def _changes(source: str, words: Sequence[Word]) -> Iterator[tuple[str, int, int, str]]:
    kept = _texts_of_errors(words) | _registrations(words)
    if _GIVEN not in source:
        kept |= {word.start for word in words if word.text in _OTHER["key"]}
    for at, word in enumerate(words):
        if word.start not in kept:
            for kind, new in _of_a_word(words, at):
                yield kind, word.start, word.end, new
    for start, end in statements(source, words):
        if start not in kept:
            yield "call", start, end, ""
    for at, word in enumerate(words):
        if word.text in ("if", "elseif"):
            end = next(n for n in range(at, len(words)) if words[n].text == "then")
            yield "guard", words[at + 1].start, words[end - 1].end, "false"
        if word.text == "{" and word.start not in kept:
            yield from _swaps(source, parts(words, at))
    for at, bracket in calls(words):
        if words[at].start in kept:
            continue
        listed = parts(words, bracket)
        if words[at].text not in _OTHER["order"]:
            yield from _swaps(source, listed[_IN_FRONT.get(words[at].text, 0) :])
        if words[at].text == "redis.call" and words[bracket + 1].text == '"ZRANGEBYSCORE"':
            yield from _closed_bound(source, listed[3])


def _of_a_word(words: Sequence[Word], at: int) -> Iterator[tuple[str, str]]:
    word = words[at]
    is_of_a_number = word.text == "-" and words[at - 1].text in _NOTHING_ON_THE_LEFT
    for kind, others in _OTHER.items():
        if word.text in others and (kind != "key" or _is_looked_in(words, at)):
            yield kind, "" if is_of_a_number else others[word.text]
    if word.text.startswith("Keys."):
        yield "key", f'({word.text} .. "_")'
    if word.kind == "number":
        yield "number", f"{float(word.text) + 1:.17g}"
    if word.kind == "text":
        if match := _NAME.fullmatch(word.text):
            yield "key", f'"{match.group(1)}_"'
        if match := _OPEN_BOUND.fullmatch(word.text):
            yield "order", f'"{match.group(1)}"'


def _is_looked_in(words: Sequence[Word], at: int) -> bool:
    """Say whether something of a list is asked for; its name may be given away, or anew."""
    before = words[at - 1].text
    return words[at + 1].text == "[" or before == "#" or words[at - 2].text == "unpack"


def _swaps(source: str, listed: Sequence[tuple[int, int]]) -> Iterator[tuple[str, int, int, str]]:
    # Fields with names have no order.
    listed = [(start, end) for start, end in listed if not _FIELD.match(source, start)]
    for (start, end), (next_start, next_end) in pairwise(listed):
        between = source[end:next_start]
        swapped = source[next_start:next_end] + between + source[start:end]
        yield "order", start, next_end, swapped


def _closed_bound(source: str, bound: tuple[int, int]) -> Iterator[tuple[str, int, int, str]]:
    start, end = bound
    if '"' not in source[start:end]:
        yield "order", start, end, f'string.format("(%.17g", {source[start:end]})'


def _texts_of_errors(words: Sequence[Word]) -> set[int]:
    found = set()
    for at, bracket in calls(words):
        if words[at].text == "redis.error_reply":
            found |= {word.start for word in words[bracket : closing(words, bracket)]}
    return found


def _registrations(words: Sequence[Word]) -> set[int]:
    """Return the words that say by what name a function is called, and how."""
    found = set()
    for at, bracket in calls(words):
        if words[at].text in ("register", "register_json"):
            end = closing(words, bracket)
            written = (n for n in range(bracket, end) if words[n].text == "function")
            begins = next(written, None)
            last = end if begins is None else closing(words, begins + 1)
            found |= {word.start for word in words[at : last + 1]}
    return found
