"""Every key of which anything is known, in the order of their names.

Each table that has keys is read in pages. Other keys of the Redis are not read.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_fairness.control.keys import keys_of_row
from celery_fairness.control.scan import Reader, logical_now
from celery_fairness.scheduler.types import SYSTEM
from celery_fairness.store.keys import Names

#: As the Open Job Spec's routes have them (10.3).
PAGE_LENGTH, LONGEST_PAGE = 20, 100


def known_keys(reader: Reader) -> list[str]:
    """Return the keys of tenants and limits that are used, or were just now, or were changed."""
    return sorted(set(_known(reader, reader.keys)) - {SYSTEM})


def _known(reader: Reader, keys: Names) -> Iterator[str]:
    yield from reader.members(keys.paused)
    tables = [("ZSCAN", name) for name in (keys.paused_until, keys.cooled)]
    tables += [("HSCAN", name) for name in (keys.overrides, keys.queue_keys, keys.waiting_at)]
    for queue, _ in reader.pairs("HSCAN", keys.waiting):
        tables += [("ZSCAN", keys.of(kind, queue)) for kind in ("ring", "full")]
    for command, table in tables:
        yield from (key for key, _ in reader.pairs(command, table))
    for _, row in reader.pairs("HSCAN", keys.running):
        yield from keys_of_row(row)
    logical = logical_now(reader)
    lately = reader.pairs("ZSCAN", keys.idle)
    yield from (key.strip() for key, until in lately if float(until) > logical)
