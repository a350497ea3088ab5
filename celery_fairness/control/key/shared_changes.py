"""Limits of queues, and pauses and overrides of keys of several tenants, in each partition.

Such a change is made in the home first, and then in each partition. A process may die in between,
and the memory of a partition may be older than that of the home. So workers compare the tables, and
a change that the home has is made in each partition, and any other ends there.

Invariant: a repair writes what the home has, and a second repair changes nothing.

Weakness: a cool-down is not repaired, because it ends soon. The home has the tiers too. A tenant's
own changes are in its partition alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.reader import Reader, server_now
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.scheduler import calls
from celery_fairness.store.connection import mapping_of

#: A change of a key, as ``pause KEY`` or ``override KEY``, and its text in Redis.
Changes = Mapping[str, str]


class SharedChanges:
    """Repairs the partitions of one installation."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        #: The changes of the home when all partitions were repaired last.
        self._repaired: Any = None

    def repair(self, *, again: bool = False) -> int:
        """Make all partitions agree with the home; return how many changes were made there.

        Args:
            again: Compare the partitions also if the home has not changed since the last repair.

        Raises:
            LimiterUnavailable: A partition does not answer. The others are repaired.
        """
        limiter, reader = self._installation.limiter, self._installation.reader
        home, *parts = limiter.stores
        its, *readers = reader.stores
        wanted = _changes(its)
        if wanted:
            # No claim in the home would end what is over.
            home.renew(())
        state = (wanted, limiter.published_tiers(), home.queue_texts())
        if state == self._repaired and not again:
            return 0
        made, failed = 0, None
        for part, part_reader in zip(parts, readers, strict=True):
            try:
                # A change of a queue's key needs its row.
                made += limiter.copy_queue_rows(part)
                made += self._repair_part(part_reader, wanted)
                if part.published_tiers() != state[1] and state[1][1]:
                    source, tiers = state[1]
                    part.publish_tiers(tiers.values(), source)
                    made += 1
            except LimiterUnavailable as error:
                failed = error
        if failed is not None:
            raise failed
        self._repaired = state
        return made

    def repair_again(self) -> None:
        """Repair partitions that may have lost their memory."""
        self.repair(again=True)

    def _repair_part(self, reader: Reader, wanted: Changes) -> int:
        has = _changes(reader)
        differ = [each for each in {**has, **wanted} if has.get(each) != wanted.get(each)]
        for change in differ:
            self.make(reader, change, wanted.get(change))
        return len(differ)

    def make(self, reader: Reader, change: str, text: str | None) -> None:
        """Make one change in one partition, or end it there if ``text`` is None."""
        what, _, key = change.partition(" ")
        function, args = self._call(what, key, text)
        reader.call(function, args)

    def _call(self, what: str, key: str, text: str | None) -> tuple[str, list[str]]:
        """Return the function and its arguments that make a change, or end it if it is None."""
        ends, _, rest = (text or " ").partition(" ")
        ends_ms = int(ends) if ends else None
        installation = self._installation
        rules = (installation.lease_ms, installation.settings.enforcement.value)
        if what == "override":
            numbers, _, details = rest.partition(" ")
            return calls.OVERRIDE, calls.override_args(key, numbers, 0, ends_ms, details, *rules)
        since, _, by = rest.partition(" ")
        how = "resume" if text is None else "pause"
        since_ms = int(since) if since else None
        times = {"ends_ms": ends_ms, "since_ms": since_ms}
        return calls.STOP, calls.stop_args(how, key, 0, *rules, "", "", by, times)


def _changes(reader: Reader) -> Changes:
    """Return the changes of keys of several tenants that have not ended."""
    return {
        change: text
        for change, text in changes_of(reader).items()
        if not change.partition(" ")[2].startswith("tenant:")
    }


def changes_of(reader: Reader) -> Changes:
    """Return the pauses and overrides that have not ended."""
    rows = mapping_of(reader.read("HGETALL", reader.keys.changes))
    if not rows:
        return {}
    now = server_now(reader)

    ends = {change: text.partition(" ")[0] for change, text in rows.items()}
    return {
        change: text for change, text in rows.items() if not ends[change] or int(ends[change]) > now
    }
