"""``fairness.events``: what happened, and a trace of each task.

:mod:`.event_types` explains the streams that a reader merges.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from datetime import datetime
from itertools import islice
from urllib.parse import urlsplit

from celery_fairness.config.fields import whole
from celery_fairness.control.health.event_types import (
    TRACE_STARTED,
    WATCHED,
    Event,
    EventPage,
    check_types,
    entry_of,
    event_of,
)
from celery_fairness.control.installation.reader import Reader, server_now
from celery_fairness.control.key.stops import lasts_ms
from celery_fairness.scheduler import calls
from celery_fairness.store.address import Address, hide_password
from celery_fairness.store.connection import mapping_of
from celery_fairness.util.timestamps import at_ms

#: Entries that one command reads.
TOGETHER = 500
#: Most events on a page.
LONGEST_PAGE = 1000
#: Time that one command waits for the next event, in ms. It must be below the socket's timeout.
WAIT_MS = 1000
#: Longest trace, in seconds. A trace cannot be ended early.
TRACE_SECONDS = 86_400
#: Duration of a follower's trace, and time after which it renews the trace, in seconds.
WATCH_SECONDS, WATCH_AGAIN_SECONDS = 30.0, 10.0


class EventsApi:
    """The streams of events of one installation.

    Every method raises ``LimiterUnavailable`` if Redis does not answer.
    """

    def __init__(self, reader: Reader, source: str) -> None:
        self._reader = reader
        self._source = source

    def read(
        self,
        after: str | None = None,
        types: Collection[str] | None = None,
        limit: int = 100,
        *,
        last: int | None = None,
    ) -> EventPage:
        """Return stored events, the oldest first.

        A flood of events of tasks does not push out the acts of operators and the failures. Redis
        stores the last ten thousand events of both.

        Args:
            after: The id of an event or the cursor of a page. The answer begins after it. None
                begins with the oldest event.
            types: The event types to return, see ``event_types.TYPES``. None returns all but
                those of tasks (``task.…``), which exist while a trace is on and are named alone.
            limit: The most events, 1 to 1,000.
            last: Return this number of the newest events, 1 to 1,000. It replaces ``limit`` and
                ``after``.

        Raises:
            ValueError: An argument is invalid.
        """
        length = whole(1, LONGEST_PAGE)
        length.read("limit", limit)
        asked = check_types(types)
        if last is not None:
            length.read("last", last)
            if after is not None:
                raise ValueError("expected after or last, got: both")
            return self._newest(asked, last)
        found: list[Event] = []
        cursor = after
        start = "-" if after is None else f"({entry_of(after)}"
        for event in self._entries("XRANGE", self._streams(asked), start, "+"):
            if asked and event.type not in asked:
                cursor = event.id if len(found) < limit else cursor
            elif len(found) == limit:
                return EventPage(events=tuple(found), cursor=cursor, has_more=True)
            else:
                found.append(event)
                cursor = event.id
        return EventPage(events=tuple(found), cursor=cursor, has_more=False)

    def _newest(self, types: Collection[str], last: int) -> EventPage:
        events = self._entries("XREVRANGE", self._streams(types), "+", "-")
        newest = (event for event in events if not types or event.type in types)
        found = list(islice(newest, last))
        return EventPage(
            events=tuple(reversed(found)),
            cursor=found[0].id if found else None,
            has_more=next(newest, None) is not None,
        )

    def follow(
        self, after: str | None = None, types: Collection[str] | None = None
    ) -> Iterator[Event]:
        """Yield events as they happen, until the caller leaves the loop.

        No event is missed or yielded twice. A caller that stores the id of its last event and
        begins ``after`` it sees each event at least once, while the stream stores it. Following
        events of tasks turns the trace on, as :meth:`trace` does, until the caller stops.

        Args:
            after: As for :meth:`read`. None begins with the next event.
            types: As for :meth:`read`.

        Raises:
            ValueError: As :meth:`read`.
            LimiterUnavailable: Redis does not answer. Begin again after the last event.
        """
        asked = check_types(types)
        streams = self._streams(asked)
        place = self._last(streams[0]) if after is None else entry_of(after)
        traces = not WATCHED.isdisjoint(asked)
        if traces:
            self.trace(WATCH_SECONDS)
        return self._follow(streams, place, asked, traces=traces)

    def trace(
        self, for_seconds: float | None = None, *, until: datetime | float | None = None
    ) -> None:
        """Emit events of each task for a time: ``task.put``, ``task.started``, ``task.ended``.

        At a gate it covers tasks that have limits; producers emit ``task.put`` within a second.
        Each event costs the functions one command. The last hundred thousand are stored, in a
        stream of their own, until an hour after the trace.

        Args:
            for_seconds: How long, in seconds, at most a day. Several traces do not shorten each
                other.
            until: The end instead: a datetime with a time zone, or Unix seconds.

        Raises:
            ValueError: The time is invalid.
        """
        if for_seconds is None and until is None:
            raise ValueError("for_seconds: expected a number of seconds, or until, got: none")
        lasts = lasts_ms(self._reader, for_seconds, until, most=TRACE_SECONDS)
        args = calls.trace_args(lasts)
        self._reader.call(calls.TRACE, args)

    def traces_until(self) -> datetime | None:
        """Return when the trace that is on will end, by the server's clock; None without one."""
        ends_ms = int(self._reader.read("HGET", self._reader.keys.clock, "traced") or 0)
        return at_ms(ends_ms) if ends_ms > server_now(self._reader) else None

    def _follow(
        self,
        streams: tuple[str, ...],
        place: str,
        types: Collection[str],
        *,
        traces: bool,
    ) -> Iterator[Event]:
        watched_at = time.monotonic()

        def watch_again() -> None:
            nonlocal watched_at
            if traces and time.monotonic() - watched_at >= WATCH_AGAIN_SECONDS:
                self.trace(WATCH_SECONDS)
                watched_at = time.monotonic()

        while True:
            watch_again()
            entries = self._merged("XRANGE", streams, f"({place}", "+")
            for entry, fields in entries:
                event = event_of(entry, fields, self._source)
                # The start of a trace shows that events before it may be missing.
                if not types or event.type in types or event.type == TRACE_STARTED:
                    yield event
                    watch_again()
            if entries:
                place = entries[-1][0]
            else:
                block = ("BLOCK", WAIT_MS, "STREAMS", streams[0], place)
                self._reader.read("XREAD", "COUNT", 1, *block)

    def _streams(self, types: Collection[str]) -> tuple[str, ...]:
        """Return the streams to merge; the first one has all new events."""
        keys = self._reader.keys
        if WATCHED.isdisjoint(types):
            return (keys.events, keys.kept_events)
        return (keys.trace,)

    def _entries(
        self, command: str, streams: tuple[str, ...], start: str, end: str
    ) -> Iterator[Event]:
        """Yield all events between two entries; arguments as for :meth:`_merged`."""
        while True:
            entries = self._merged(command, streams, start, end)
            for entry, fields in entries:
                yield event_of(entry, fields, self._source)
            if len(entries) < TOGETHER:
                return
            start = f"({entries[-1][0]}"

    def _merged(
        self, command: str, streams: tuple[str, ...], start: str, end: str
    ) -> list[tuple[str, dict[str, str]]]:
        """Return the first entries of several streams in the order of their ids, each once.

        Args:
            command: ``XRANGE``, or ``XREVRANGE`` for the newest first.
            streams: Keys of the streams.
            start: The first entry.
            end: The last entry.
        """
        commands = [(command, each, start, end, "COUNT", TOGETHER) for each in streams]
        answers = self._reader.together(commands)
        found = {entry: flat for answer in answers for entry, flat in answer}
        ordered = sorted(found, key=_place, reverse=command == "XREVRANGE")[:TOGETHER]
        return [(entry, mapping_of(found[entry])) for entry in ordered]

    def _last(self, stream: str) -> str:
        last = self._reader.read("XREVRANGE", stream, "+", "-", "COUNT", 1)
        return str(last[0][0]) if last else "0-0"


def _place(entry: str) -> tuple[int, int]:
    ms, _, number = entry.partition("-")
    return int(ms), int(number)


def source_of(app: str, address: Address) -> str:
    """Return the ``source`` of events, which is the same for all readers of a stream."""
    host = address.master_name or urlsplit(hide_password(address.urls[0])).netloc
    return f"ojs://{app}/dispatch/{host or 'localhost'}"
