"""Every key of which anything is known, in the order of their names.

Weakness: to find them, the names of all keys of the installation are read.
"""

from __future__ import annotations

from celery_fairness.control.holds import logical_now
from celery_fairness.control.scan import Reader
from celery_fairness.scheduler.types import SYSTEM

#: TaskFilter of keys that a limit's key stands behind.
_KINDS = ("account", "leases", "waited", "window")
#: As the Open Job Spec's routes have them (10.3).
PAGE_LENGTH, LONGEST_PAGE = 20, 100


def known_keys(reader: Reader) -> list[str]:
    """Return the keys of tenants and limits that are used, or were just now, or were changed."""
    found: set[str] = set()
    for name in reader.scan():
        kind, colon, key = name.partition(":")
        if colon and kind in _KINDS:
            found.add(key)
    keys = reader.keys
    found.update(reader.members(keys.paused))
    for command, table in (
        ("ZSCAN", keys.paused_until),
        ("ZSCAN", keys.cooled),
        ("HSCAN", keys.overrides),
        ("HSCAN", keys.queue_keys),
    ):
        found.update(key for key, _ in reader.pairs(command, table))
    logical = logical_now(reader)
    lately = reader.pairs("ZSCAN", keys.idle)
    found.update(key.strip() for key, until in lately if float(until) > logical)
    return sorted(found - {SYSTEM})
