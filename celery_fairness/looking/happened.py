"""What happened, read from its stream: the oldest first, as far as it is kept.

What becomes of each task has a stream of its own, which is written while somebody watches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import Any
from urllib.parse import urlsplit

from celery_fairness.events import (
    WATCH_BEGINS,
    WATCHED,
    Event,
    EventPage,
    entry_of,
    event_id,
    event_of,
)
from celery_fairness.looking.reading import Reader
from celery_fairness.store.address import Address, hide_password

#: Entries that one command reads.
TOGETHER = 500
#: Longest answer.
LONGEST_PAGE = 1000
#: How long one command waits for the next event, in ms: shorter than a connection does.
WAIT_MS = 1000
#: For how long a follower watches tasks each time, and how soon it does again, in seconds.
WATCH_SECONDS, WATCH_AGAIN_SECONDS = 30.0, 10.0


def source_of(app: str, address: Address) -> str:
    """Return where events come from: all that read one stream say the same."""
    host = address.master_name or urlsplit(hide_password(address.urls[0])).netloc
    return f"ojs://{app}/dispatch/{host or 'localhost'}"


def page(
    reader: Reader, source: str, after: str | None, types: Collection[str], limit: int
) -> EventPage:
    """Return the next events of some types behind the one of the id ``after``."""
    found: list[Event] = []
    cursor = after
    for event in _entries(reader, source, after, _stream(reader, types)):
        if types and event.type not in types:
            cursor = event.id if len(found) < limit else cursor
        elif len(found) == limit:
            return EventPage(events=tuple(found), cursor=cursor, has_more=True)
        else:
            found.append(event)
            cursor = event.id
    return EventPage(events=tuple(found), cursor=cursor, has_more=False)


def _stream(reader: Reader, types: Collection[str]) -> str:
    return reader.keys.events if WATCHED.isdisjoint(types) else reader.keys.task_events


def _entries(reader: Reader, source: str, after: str | None, stream: str) -> Iterator[Event]:
    start = "-" if after is None else f"({entry_of(after)}"
    while True:
        entries = _read(reader, stream, start)
        for entry, fields in entries:
            yield event_of(entry, fields, source)
        if len(entries) < TOGETHER:
            return
        start = f"({entries[-1][0]}"


def _read(reader: Reader, stream: str, start: str) -> list[tuple[str, dict[str, str]]]:
    entries = reader.read("XRANGE", stream, start, "+", "COUNT", TOGETHER)
    return [(entry, fields_of(flat)) for entry, flat in entries]


def fields_of(flat: Any) -> dict[str, str]:
    """Return the fields of an entry of a stream."""
    # A client that reads for Sentinel makes pairs of them.
    return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))


def follow(
    reader: Reader,
    source: str,
    after: str | None,
    types: Collection[str],
    watch: Callable[[], object],
) -> Iterator[Event]:
    """Return events as they happen, without an end: behind ``after``, or from now on.

    Args:
        reader: Of the installation.
        source: Where its events come from.
        after: The id of an event, or None.
        types: Those that are asked for; none: all but what becomes of tasks.
        watch: Lets what becomes of tasks be told for a while; called where that is asked for.
    """
    stream = _stream(reader, types)
    place = _last(reader, stream) if after is None else entry_of(after)
    if stream == reader.keys.task_events:
        watch()
    else:
        watch = _nothing
    return _follow(reader, source, stream, place, types, watch)


def _nothing() -> None:
    pass


def _follow(
    reader: Reader,
    source: str,
    stream: str,
    place: str,
    types: Collection[str],
    watch: Callable[[], object],
) -> Iterator[Event]:
    watched_at = time.monotonic()

    def watch_again() -> None:
        nonlocal watched_at
        if time.monotonic() - watched_at >= WATCH_AGAIN_SECONDS:
            watch()
            watched_at = time.monotonic()

    while True:
        watch_again()
        entries = _read(reader, stream, f"({place}")
        for entry, fields in entries:
            event = event_of(entry, fields, source)
            # Where a watch begins anew some may be missing.
            if not types or event.type in types or event.type == WATCH_BEGINS:
                yield event
                watch_again()
        if entries:
            place = entries[-1][0]
        else:
            reader.read("XREAD", "COUNT", 1, "BLOCK", WAIT_MS, "STREAMS", stream, place)


def last_id(reader: Reader, source: str) -> str:
    """Return the id of the last event, "" where nothing has happened."""
    last = _last(reader, reader.keys.events)
    return "" if last == "0-0" else event_id(last, source)


def _last(reader: Reader, stream: str) -> str:
    last = reader.read("XREVRANGE", stream, "+", "-", "COUNT", 1)
    return str(last[0][0]) if last else "0-0"
