"""Mutants: each script and each piece with one small mistake in it.

Invariant: the same sources give the same mutants in the same order, each another text than its
source and than every other; no comment and no text of an error is touched.
"""

from __future__ import annotations

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
    "key": {"KEYS": "ARGV", "ARGV": "KEYS"},
    "order": {
        "math.min": "math.max",
        "math.max": "math.min",
        '"RPUSH"': '"LPUSH"',
        '"LPOP"': '"RPOP"',
        '"ZPOPMIN"': '"ZPOPMAX"',
    },
}
#: Names of keys and fields, ends of them, and words of the callers.
_NAME = re.compile(r'"([a-z_]*:?| )"')
_FIELD = re.compile(r"\w+ = ")
#: Arguments that have no other place: a command and its key, a format.
_IN_FRONT = {"redis.call": 2, "string.format": 1}
#: A bound that does not count itself.
_OPEN_BOUND = re.compile(r'"\(([^"]*)"')
#: A minus after one of these has nothing on its left.
_NOTHING_ON_THE_LEFT = {"(", ",", "=", "{", "and", "or", "return", "then"}
_INCLUDE = re.compile(r'^--- @(?:include|later \w+) "([a-z_]+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """One file of the scripts with one mistake.

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
        before = self.source[: self.start]
        named = re.findall(r"^local function (\w+)|^(end)$", before, re.MULTILINE)
        inside = named[-1][0] if named else ""
        return f"{self.file} {inside}".strip()

    @property
    def change(self) -> tuple[str, str]:
        """The lines that are changed, before and after, each as one line."""
        first = self.source.rfind("\n", 0, self.start) + 1
        last = self.source.find("\n", self.start + len(self.old))
        after = self.source[first : self.start] + self.new
        after += self.source[self.start + len(self.old) : last]
        return " ".join(self.source[first:last].split()), " ".join(after.split())


def files() -> list[str]:
    """Return every script and every piece."""
    return sorted(str(path.relative_to(LUA)) for path in LUA.rglob("*.lua"))


def pieces_of(file: str) -> set[str]:
    """Return the pieces that a script or a piece includes, and those which they include."""
    found = set()
    for name in _INCLUDE.findall((LUA / file).read_text("utf-8")):
        folder = "dispatch/" if file.startswith("dispatch/") else ""
        own = f"{folder}includes/{name}.lua"
        piece = own if (LUA / own).is_file() else f"includes/{name}.lua"
        found |= {piece} | pieces_of(piece)
    return found


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
    errors = _texts_of_errors(words)
    for at, word in enumerate(words):
        if word.start not in errors:
            for kind, new in _of_a_word(words, at):
                yield kind, word.start, word.end, new
    for start, end in statements(source, words):
        yield "call", start, end, ""
    for at, word in enumerate(words):
        if word.text in ("if", "elseif"):
            end = next(n for n in range(at, len(words)) if words[n].text == "then")
            yield "guard", words[at + 1].start, words[end - 1].end, "false"
        if word.text == "{":
            yield from _swaps(source, parts(words, at))
    for at, bracket in calls(words):
        listed = parts(words, bracket)
        if words[at].text not in _OTHER["order"]:
            yield from _swaps(source, listed[_IN_FRONT.get(words[at].text, 0) :])
        if words[at].text == "redis.call" and words[bracket + 1].text == '"ZRANGEBYSCORE"':
            yield from _closed_bound(source, listed[3])


def _of_a_word(words: Sequence[Word], at: int) -> Iterator[tuple[str, str]]:
    word = words[at]
    is_of_a_number = word.text == "-" and words[at - 1].text in _NOTHING_ON_THE_LEFT
    for kind, others in _OTHER.items():
        if word.text in others:
            yield kind, "" if is_of_a_number else others[word.text]
    if word.kind == "number":
        yield "number", f"{float(word.text) + 1:.17g}"
    if word.kind == "text":
        if match := _NAME.fullmatch(word.text):
            yield "key", f'"{match.group(1)}_"'
        if match := _OPEN_BOUND.fullmatch(word.text):
            yield "order", f'"{match.group(1)}"'


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
