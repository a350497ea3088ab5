"""Lua as words: enough of the language to change it in one place.

Invariant: comments are no words, so nothing that is found here lies in one.

Weakness: it reads the house style and not all of Lua: texts in double quotes, one statement a line
or between `then`, `do`, `else` and `end`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_WORD = re.compile(
    r"""(?P<comment>--\[\[.*?\]\]|--[^\n]*)
    |(?P<text>"(?:\\.|[^"\\])*")
    |(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)
    |(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)
    |(?P<sign>\.\.\.|\.\.|[<>=~]=|[^\s\w])""",
    re.VERBOSE | re.DOTALL,
)
_OPENING, _CLOSING = "([{", ")]}"
_BEFORE_A_STATEMENT = {"then", "do", "else"}
#: After these a call is a part of something, wherever its line begins.
_GOES_ON = {"=", "and", "or", "not", "return", "in", "..", "+", "-", "*", "/", ",", "("}


@dataclass(frozen=True, slots=True)
class Word:
    """One word: `kind` is text, number, name or sign; a name may have dots in it."""

    kind: str
    text: str
    start: int
    end: int


def words_of(source: str) -> list[Word]:
    """Return the words of a file."""
    return [
        Word(str(match.lastgroup), match.group(), match.start(), match.end())
        for match in _WORD.finditer(source)
        if match.lastgroup != "comment"
    ]


def closing(words: Sequence[Word], opening: int) -> int:
    """Return where the bracket ends that is the word at `opening`."""
    depth = 0
    for at in range(opening, len(words)):
        text = words[at].text
        depth += (text in _OPENING) - (text in _CLOSING) if words[at].kind == "sign" else 0
        if not depth:
            return at
    raise ValueError(f"expected an end of the bracket at {words[opening].start}, got: none")


def parts(words: Sequence[Word], opening: int) -> list[tuple[int, int]]:
    """Return from where to where, in the text, each part of a list in brackets goes."""
    end = closing(words, opening)
    found, first, at = [], opening + 1, opening + 1
    while at <= end:
        if at == end or words[at].text == ",":
            if at > first:
                found.append((words[first].start, words[at - 1].end))
            first = at + 1
        elif words[at].kind == "sign" and words[at].text in _OPENING:
            at = closing(words, at)
        at += 1
    return found


def calls(words: Sequence[Word]) -> Iterator[tuple[int, int]]:
    """Yield every call: the word that is called, and its bracket."""
    for at in range(len(words) - 1):
        named = words[at].kind == "name" and words[at + 1].text == "("
        defined = at > 0 and words[at - 1].text == "function"
        if named and not defined and words[at].text not in {*_GOES_ON, "if", "elseif"}:
            yield at, at + 1


def statements(source: str, words: Sequence[Word]) -> Iterator[tuple[int, int]]:
    """Yield from where to where, in the text, each call goes whose answer nobody uses."""
    for at, bracket in calls(words):
        start, end = words[at].start, words[closing(words, bracket)].end
        before = words[at - 1].text if at else "do"
        begins_its_line = not source[:start].rpartition("\n")[2].strip()
        rest_of_line = source[end:].partition("\n")[0].strip()
        begins = before in _BEFORE_A_STATEMENT or (begins_its_line and before not in _GOES_ON)
        if begins and (not rest_of_line or rest_of_line.startswith("end")):
            yield start, end
