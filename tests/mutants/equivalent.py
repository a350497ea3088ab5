"""Mutants that change no answer and nothing that is kept, each with the reason.

They stand in `equivalent.txt`, a block each: the file and the function, the line as it is (`-`) and
as the mutant has it (`+`), as often as needed, and the reason. Line numbers may move; a line that
is written anew is looked at anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.mutants.making import Mutant

FILE = Path(__file__).with_name("equivalent.txt")

#: The place, the line before and after.
Entry = tuple[str, str, str]


def entry_of(mutant: Mutant) -> Entry:
    """Return what a mutant is listed by."""
    return (mutant.place, *mutant.change)


def reasons() -> dict[Entry, str]:
    """Return the list: why no test can see the mutant."""
    found: dict[Entry, str] = {}
    for block in FILE.read_text("utf-8").strip().split("\n\n"):
        place, *lines = block.splitlines()
        changes = [line for line in lines if line[0] in "-+"]
        reason = " ".join(line.strip() for line in lines if line not in changes)
        for before, after in zip(changes[::2], changes[1::2], strict=True):
            entry = (place, before[2:], after[2:])
            if not reason or before[0] + after[0] != "-+" or entry in found:
                raise ValueError(f"{FILE.name}: expected -, + and a reason, once, got: {block}")
            found[entry] = reason
    return found


def unknown(mutants: Iterable[Mutant]) -> Iterator[Entry]:
    """Yield what is listed and is none of the mutants."""
    made = {entry_of(mutant) for mutant in mutants}
    return (entry for entry in reasons() if entry not in made)
