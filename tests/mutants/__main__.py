"""``make mutants``: make small mistakes in the Lua modules, and print those that no test sees."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait

from tests.mutants import equivalent, judge
from tests.mutants.making import Mutant, files, mutants_of

PROGRESS_SECONDS = 15.0
CAUGHT, EQUIVALENT, SURVIVED, STALE = "caught", "equivalent", "survived", "stale"

#: A mutant, one of the words above, and who caught it or why nobody can.
Outcome = tuple[Mutant, str, str]


def main() -> int:
    """Judge and print; returns 1 where a mutant survives, or the list of equivalents is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--script", action="append", help="such as lanes or functions/put")
    parser.add_argument("--sample", type=int, help="so many of each file, for a quick look")
    parser.add_argument("--seed", type=int, default=0, help="decides sample and operations")
    parser.add_argument(
        "--suite",
        action="append",
        help="of these tests alone, such as tests/reference: what they see",
    )
    parser.add_argument("--json", action="store_true", help="print every mutant, and no table")
    options = parser.parse_args()
    # An orderly end, so that the judges and their servers end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begun = time.monotonic()
    every = {file: mutants_of(file) for file in files()}
    chosen = _chosen(options.script or [])
    mutants = [mutant for file in chosen for mutant in _sampled(every[file], options)]
    unknown = list(equivalent.unknown(mutant for each in every.values() for mutant in each))
    with tempfile.TemporaryDirectory() as directory:
        suites = options.suite or judge.SUITES
        judged = _judged(mutants, options.seed, directory, suites)
        outcomes = list(_progress(judged, len(mutants)))
    wrong = [each for each in outcomes if each[1] in (SURVIVED, STALE)]
    if options.json:
        print(json.dumps([_fields(*each) for each in outcomes], indent=1))
    else:
        _print_equivalents(outcomes)
        _print_table(chosen, outcomes)
        for each in wrong:
            print(_told(*each))
        for place, before, after in unknown:
            print(f"listed, but no mutant: {place}\n  - {before}\n  + {after}")
        survive = sum(word == SURVIVED for _, word, _ in wrong)
        print(
            f"seed {options.seed}, {time.monotonic() - begun:.0f} s: {survive} survive, "
            f"{len(wrong) - survive + len(unknown)} entries of the list are wrong"
        )
    return 1 if wrong or unknown else 0


def _chosen(scripts: Sequence[str]) -> list[str]:
    if not scripts:
        return files()
    asked = {f"{name}.lua" for name in scripts}
    if strangers := asked - set(files()):
        raise SystemExit(f"--script: expected one of {files()} without .lua, got: {strangers}")
    return sorted(asked)


def _sampled(mutants: list[Mutant], options: argparse.Namespace) -> list[Mutant]:
    if options.sample is None or options.sample >= len(mutants):
        return mutants
    return random.Random(options.seed).sample(mutants, options.sample)


def _judged(
    mutants: Sequence[Mutant], seed: int, directory: str, suites: Sequence[str]
) -> Iterator[Outcome]:
    """Hand each mutant to whichever judge is free, one judge for each processor."""
    context = multiprocessing.get_context("spawn")
    judges: dict[Connection, Mutant | None] = {}
    processes = []
    for number in range(os.cpu_count() or 1):
        ours, theirs = context.Pipe()
        copy = os.path.join(directory, str(number))
        process = context.Process(target=judge.run, args=(theirs, seed, copy, suites), daemon=True)
        process.start()
        processes.append(process)
        theirs.close()
        judges[ours] = None
    reasons = equivalent.reasons()
    rest = iter(mutants)
    while judges:
        for free in wait(list(judges)):
            try:
                told = free.recv()
            except EOFError:
                raise SystemExit("a judge ended before its work did") from None
            mutant = judges.pop(free)
            if mutant:
                yield outcome(mutant, told, reasons.get(equivalent.entry_of(mutant)))
            elif told:
                raise SystemExit(f"a test fails without any mutant:\n{told}")
            following = next(rest, None)
            if following:
                judges[free] = following
                free.send((following, equivalent.entry_of(following) in reasons))
            else:
                free.send(None)
    for process in processes:
        process.join()


def outcome(mutant: Mutant, caught_by: str | None, reason: str | None) -> Outcome:
    if caught_by is None:
        return mutant, EQUIVALENT if reason else SURVIVED, reason or ""
    return mutant, STALE if reason else CAUGHT, caught_by


def _progress(outcomes: Iterator[Outcome], total: int) -> Iterator[Outcome]:
    print(f"{total} mutants; first all tests without any", file=sys.stderr)
    counted: Counter[str] = Counter()
    told_at = time.monotonic()
    for each in outcomes:
        counted[each[1]] += 1
        if each[1] in (SURVIVED, STALE):
            print(_told(*each), file=sys.stderr)
        if time.monotonic() - told_at > PROGRESS_SECONDS:
            told_at = time.monotonic()
            counts = ", ".join(f"{number} {word}" for word, number in counted.items())
            print(f"{counted.total()} of {total}: {counts}", file=sys.stderr)
        yield each


def _told(mutant: Mutant, word: str, note: str) -> str:
    before, after = mutant.change
    stale = f", listed as equivalent but caught by {note}" if word == STALE else ""
    head = f"{word}: {mutant.place}, line {mutant.line}, {mutant.kind}{stale}"
    return f"{head}\n  - {before}\n  + {after}"


def _fields(mutant: Mutant, word: str, note: str) -> dict[str, object]:
    before, after = mutant.change
    return {
        "file": mutant.file,
        "line": mutant.line,
        "kind": mutant.kind,
        "before": before,
        "after": after,
        "outcome": word,
        "note": note,
    }


def _print_equivalents(outcomes: Sequence[Outcome]) -> None:
    for mutant, word, reason in sorted(outcomes, key=lambda each: (each[0].file, each[0].start)):
        if word == EQUIVALENT:
            print(f"{mutant.file}:{mutant.line}: {mutant.change[1]}\n  equivalent: {reason}")


def _print_table(chosen: Sequence[str], outcomes: Sequence[Outcome]) -> None:
    words = (CAUGHT, EQUIVALENT, SURVIVED, STALE)
    counts = Counter((mutant.file, word) for mutant, word, _ in outcomes)
    heads = "".join(f"{head:>13}" for head in ("mutants", *words))
    print(f"\n{'module or function':32}{heads}")
    for file in chosen:
        own = [counts[file, word] for word in words]
        cells = "".join(f"{cell:>13}" for cell in (sum(own), *own))
        print(f"{file:32}{cells}")
    print()


if __name__ == "__main__":
    sys.exit(main())
