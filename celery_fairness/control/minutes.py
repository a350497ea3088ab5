"""The counts of claims and gates in each of the last minutes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from celery_fairness.control.scan import Command, Reader, batches, server_now
from celery_fairness.control.views import Minute, MinuteCount, WaitCount
from celery_fairness.util.durations import seconds

MINUTE_MS = 60_000
#: Minutes whose numbers the function library keeps.
KEPT = 360
#: The kinds of starts: of a task without an older task of its tenant before it, or with one.
QUIET, NOISY = "quiet", "noisy"
#: Minutes that are read at once.
BATCH = 20


def minutes(reader: Reader, last: int) -> Iterator[Minute]:
    """Yield the last minutes that have counts, the oldest first, with the present one."""
    now = server_now(reader) // MINUTE_MS
    for some in batches(range(now - last + 1, now + 1), BATCH):
        commands: list[Command] = [
            ("HGETALL", reader.keys.of("minute", str(each))) for each in some
        ]
        for number, fields in zip(some, reader.together(commands), strict=True):
            if fields:
                at = datetime.fromtimestamp(seconds(number * MINUTE_MS), UTC)
                yield Minute(at=at, counts=tuple(_counts(fields)))


def _counts(fields: Mapping[str, str]) -> Iterator[MinuteCount]:
    found: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for field, count in fields.items():
        what, tier, queue = field.split(" ", 2)
        found[queue, tier][what] = int(count)
    for (queue, tier), counts in sorted(found.items()):
        refused = counts.pop("refused", 0)
        started = sum(counts.values())
        yield MinuteCount(
            *(queue, tier, started, refused), _waits(counts, QUIET), _waits(counts, NOISY)
        )


def _waits(counts: Mapping[str, int], word: str) -> tuple[WaitCount, ...]:
    found = {}
    for what, tasks in counts.items():
        of, _, bits = what.partition(":")
        if of == word:
            found[int(bits)] = tasks
    return tuple(WaitCount(seconds(1 << bits), tasks) for bits, tasks in sorted(found.items()))
