"""What happened, read from the stream ``events``: the oldest first, as far as it is kept."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import urlsplit

from celery_fairness.events import Event, EventPage, entry_of, event_id, event_of
from celery_fairness.looking.reading import Reader
from celery_fairness.store.address import Address, hide_password

#: Entries that one command reads.
TOGETHER = 500
#: Longest answer.
LONGEST_PAGE = 1000
#: How long one command waits for the next event, in ms: shorter than a connection does.
WAIT_MS = 1000


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
    for event in _entries(reader, source, after):
        if types and event.type not in types:
            cursor = event.id if len(found) < limit else cursor
        elif len(found) == limit:
            return EventPage(tuple(found), cursor, has_more=True)
        else:
            found.append(event)
            cursor = event.id
    return EventPage(tuple(found), cursor, has_more=False)


def _entries(reader: Reader, source: str, after: str | None) -> Iterator[Event]:
    start = "-" if after is None else f"({entry_of(after)}"
    while True:
        entries = _read(reader, start)
        for entry, fields in entries:
            yield event_of(entry, fields, source)
        if len(entries) < TOGETHER:
            return
        start = f"({entries[-1][0]}"


def _read(reader: Reader, start: str) -> list[tuple[str, dict[str, str]]]:
    entries = reader.read("XRANGE", reader.keys.events, start, "+", "COUNT", TOGETHER)
    return [(entry, _fields(flat)) for entry, flat in entries]


def _fields(flat: Any) -> dict[str, str]:
    # A client that reads for Sentinel makes pairs of them.
    return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))


def follow(
    reader: Reader, source: str, after: str | None, types: Collection[str]
) -> Iterator[Event]:
    """Return events as they happen, without an end: behind ``after``, or from now on."""
    place = _last(reader) if after is None else entry_of(after)
    return _follow(reader, source, place, types)


def _follow(reader: Reader, source: str, place: str, types: Collection[str]) -> Iterator[Event]:
    while True:
        reader.read("XREAD", "COUNT", 1, "BLOCK", WAIT_MS, "STREAMS", reader.keys.events, place)
        while entries := _read(reader, f"({place}"):
            for entry, fields in entries:
                event = event_of(entry, fields, source)
                if not types or event.type in types:
                    yield event
            place = entries[-1][0]


def last_id(reader: Reader, source: str) -> str:
    """Return the id of the last event, "" where nothing has happened."""
    last = _last(reader)
    return "" if last == "0-0" else event_id(last, source)


def _last(reader: Reader) -> str:
    last = reader.read("XREVRANGE", reader.keys.events, "+", "-", "COUNT", 1)
    return str(last[0][0]) if last else "0-0"
