"""The streams of events of an installation, merged into one sequence.

An installation has streams in its home and in each partition. The sequence is in the order of the
events' ids, which begin with the time. A reader may continue after any event.

Invariant: no event appears before one that a reader has already. With several partitions a read
therefore ends before the present time of the server whose clock is the slowest. Each stream has all
of its events until then.

Weakness: with several partitions an event is read some milliseconds late, and with servers whose
clocks differ by as much as they differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

from celery_fairness.control.health.event_types import (
    TRACE_STARTED,
    WATCHED,
    Event,
    entry_of,
    event_id,
    event_of,
)
from celery_fairness.control.installation.reader import Reader, server_now
from celery_fairness.store.connection import mapping_of

#: Entries of all streams that are read together.
TOGETHER = 500
#: Entries of one stream that are read at least.
LEAST = 32
#: A number that no entry reaches, and that an id has room for.
LAST_NUMBER = 2**34 - 1

#: Changes that are written in the home and in each partition: all, or those of shared keys.
_OF_ALL = {"fairness.tier_set", "fairness.tier_cleared", "fairness.tiers_published", TRACE_STARTED}
_OF_KEYS = {
    *("fairness.paused", "fairness.resumed", "fairness.override_set", "fairness.override_ended"),
    *("fairness.cool_down_cleared", "fairness.queue_limit_set", "fairness.queue_limit_cleared"),
}


class Found(NamedTuple):
    """An event with the entry of its stream."""

    entry: str
    event: Event


class EventStore:
    """The streams of the home, or of one partition.

    Args:
        reader: Reads its tables.
        source: The ``source`` of its events.
        name: Its name. "" is the home.
    """

    def __init__(self, reader: Reader, source: str, name: str) -> None:
        self.reader, self._source, self._name = reader, source, name

    def found(self, entry: str, flat: Any) -> Found | None:
        """Return the event of an entry; None if the home has it too."""
        fields = mapping_of(flat)
        if self._name and _is_at_home(fields):
            return None
        return Found(entry, event_of(entry, fields, self._source, self._name))

    def streams(self, types: Collection[str]) -> tuple[str, ...]:
        """Return the streams that may have events of these types, the one with all new ones first.

        Events of tasks have a stream of their own.
        """
        keys = self.reader.keys
        return (keys.events, keys.kept_events) if WATCHED.isdisjoint(types) else (keys.trace,)

    def id_at(self, entry: str, types: Collection[str] = ()) -> str:
        """Return the id that an event of these types has at an entry."""
        kind = "" if WATCHED.isdisjoint(types) else "#tasks"
        return event_id(entry, self._source + kind + self._name)

    def read(
        self, types: Collection[str], start: str, end: str, count: int, *, newest: bool
    ) -> list[Found]:
        """Return the first events between two entries, each once."""
        found: list[Found] = []
        command = "XREVRANGE" if newest else "XRANGE"
        while True:
            streams = self.streams(types)
            answers = self.reader.together(
                [(command, each, start, end, "COUNT", count) for each in streams]
            )
            entries = {entry: flat for answer in answers for entry, flat in answer}
            ordered = sorted(entries, key=_place, reverse=newest)[:count]
            some = (self.found(entry, entries[entry]) for entry in ordered)
            found += [each for each in some if each is not None]
            if len(ordered) < count or len(found) >= count:
                return found[:count]
            start = f"({ordered[-1]}"


class EventStreams:
    """All streams of one installation.

    Args:
        reader: Reads the installation.
        source: The ``source`` of events.
    """

    def __init__(self, reader: Reader, source: str) -> None:
        self._reader, self._source = reader, source

    @cached_property
    def stores(self) -> tuple[EventStore, ...]:
        """The stores, the home first."""
        names = (f"#{number}" if number else "" for number in count(0))
        its = zip(self._reader.stores, names, strict=False)
        return tuple(EventStore(reader, self._source, name) for reader, name in its)

    @property
    def are_several(self) -> bool:
        """Whether the installation has several partitions."""
        return len(self.stores) > 1

    def last_id(self, types: Collection[str]) -> str:
        """Return an id behind which all later events are."""
        home = self.stores[0]
        if self.are_several:
            return home.id_at(f"{self._complete_until()}-{LAST_NUMBER}", types)
        last = home.reader.read("XREVRANGE", home.streams(types)[0], "+", "-", "COUNT", 1)
        return home.id_at(str(last[0][0]) if last else "0-0", types)

    def _complete_until(self) -> int:
        """Return the time in ms until which each stream has all of its events."""
        return min(server_now(each.reader) for each in self.stores) - 1

    def read(
        self, types: Collection[str], after: str | None, *, newest: bool = False
    ) -> Iterator[Event]:
        """Yield events in the order of their entries, and of their ids at the same entry.

        Args:
            types: Types that select the streams. An event of another type is yielded too.
            after: The id of an event. The sequence begins behind it. None begins at the end.
            newest: Whether the newest event is the first.
        """
        last = str(self._complete_until()) if self.are_several else "+"
        at_once = max(LEAST, TOGETHER // len(self.stores))
        while True:
            found: list[Found] = []
            for store in self.stores:
                start, end = (last, "-") if newest else ("-", last)
                if after is not None:
                    start = self._start(store, after, types, newest=newest)
                found += store.read(types, start, end, at_once, newest=newest)
            found.sort(key=lambda each: (_place(each.entry), each.event.id), reverse=newest)
            for each in found[:at_once]:
                yield each.event
            if len(found) < at_once:
                return
            after = found[at_once - 1].event.id

    def _start(self, store: EventStore, after: str, types: Collection[str], *, newest: bool) -> str:
        """Return the first entry of a store behind an event, as ``XRANGE`` takes it."""
        entry = entry_of(after)
        if not self.are_several:
            return f"({entry}"
        # Several stores may have an event at this entry.
        its = store.id_at(entry, types)
        is_behind = its < after if newest else its > after
        return entry if is_behind else f"({entry}"


def _is_at_home(fields: Mapping[str, str]) -> bool:
    kind = fields.get("type", "")
    of_key = kind in _OF_KEYS and not fields.get("key", "").startswith("tenant:")
    return of_key or kind in _OF_ALL


def _place(entry: str) -> tuple[int, int]:
    ms, _, number = entry.partition("-")
    return int(ms), int(number)
