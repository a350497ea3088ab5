"""``fairness.events``: what happened, and a trace of each task.

:mod:`.event_streams` merges the streams.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from datetime import datetime
from itertools import islice
from urllib.parse import urlsplit

from celery_fairness.config.fields import whole
from celery_fairness.control.health.event_streams import EventStreams
from celery_fairness.control.health.event_types import (
    TRACE_STARTED,
    WATCHED,
    Event,
    EventPage,
    check_types,
    entry_of,
)
from celery_fairness.control.installation.reader import Reader, server_now
from celery_fairness.control.key.stops import lasts_ms
from celery_fairness.scheduler import calls
from celery_fairness.store.address import Address, hide_password
from celery_fairness.util.timestamps import at_ms

#: Most events on a page.
LONGEST_PAGE = 1000
#: Time that one command waits for the next event, in ms. It must be below the socket's timeout.
WAIT_MS = 1000
#: How often a follower looks for events of several partitions, in seconds.
LOOK_SECONDS = 0.5
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
        self._streams = EventStreams(reader, source)

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
        if after is not None:
            entry_of(after)
        for event in self._streams.read(asked, after):
            if asked and event.type not in asked:
                cursor = event.id if len(found) < limit else cursor
            elif len(found) == limit:
                return EventPage(events=tuple(found), cursor=cursor, has_more=True)
            else:
                found.append(event)
                cursor = event.id
        return EventPage(events=tuple(found), cursor=cursor, has_more=False)

    def _newest(self, types: Collection[str], last: int) -> EventPage:
        events = self._streams.read(types, None, newest=True)
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
        if after is None:
            after = self._streams.last_id(asked)
        entry_of(after)
        traces = not WATCHED.isdisjoint(asked)
        if traces:
            self.trace(WATCH_SECONDS)
        return self._follow(after, asked, traces=traces)

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
        self._reader.meet_home()
        for store in self._reader.stores:
            store.call(calls.TRACE, args)

    def traces_until(self) -> datetime | None:
        """Return when the trace that is on will end, by the server's clock; None without one."""
        ends_ms = int(self._reader.read("HGET", self._reader.keys.clock, "traced") or 0)
        return at_ms(ends_ms) if ends_ms > server_now(self._reader) else None

    def _follow(self, after: str, types: Collection[str], *, traces: bool) -> Iterator[Event]:
        watched_at = time.monotonic()

        def watch_again() -> None:
            nonlocal watched_at
            if traces and time.monotonic() - watched_at >= WATCH_AGAIN_SECONDS:
                self.trace(WATCH_SECONDS)
                watched_at = time.monotonic()

        while True:
            watch_again()
            before = after
            for event in self._streams.read(types, after):
                after = event.id
                # The start of a trace shows that events before it may be missing.
                if not types or event.type in types or event.type == TRACE_STARTED:
                    yield event
                    watch_again()
            if after == before:
                self._await_event(after, types)

    def _await_event(self, after: str, types: Collection[str]) -> None:
        """Wait until there is an event behind one, at most for :data:`WAIT_MS`."""
        if self._streams.are_several:
            # One command cannot wait for the streams of several servers.
            time.sleep(LOOK_SECONDS)
            return
        stream = self._streams.stores[0].streams(types)[0]
        block = ("BLOCK", WAIT_MS, "STREAMS", stream, entry_of(after))
        self._reader.read("XREAD", "COUNT", 1, *block)


def source_of(app: str, address: Address) -> str:
    """Return the ``source`` of events, which is the same for all readers of a stream."""
    host = address.master_name or urlsplit(hide_password(address.urls[0])).netloc
    return f"ojs://{app}/dispatch/{host or 'localhost'}"
