"""``fairness.events``: what happened, and a trace of each task."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

from celery_fairness.config.fields import whole
from celery_fairness.control.event_types import Event, EventPage, check_types
from celery_fairness.control.events import LONGEST_PAGE, WATCH_SECONDS, EventStream
from celery_fairness.control.holding import TRACE_SECONDS, Holding, lasts_ms


class EventsApi:
    """The streams of events of one installation.

    Every method raises ``LimiterUnavailable`` if Redis does not answer.

    Args:
        stream: Returns the streams.
        holding: Returns what turns the trace on.
    """

    def __init__(self, stream: Callable[[], EventStream], holding: Callable[[], Holding]) -> None:
        self._stream = stream
        self._holding = holding

    def read(
        self,
        after: str | None = None,
        types: Collection[str] | None = None,
        limit: int = 100,
        *,
        last: int | None = None,
    ) -> EventPage:
        """Return stored events, the oldest first.

        A flood of tasks does not push out what operators do, what fails or what is cancelled: of
        each of these kinds, and of the rest, the last ten thousand events are stored.

        Args:
            after: The id of an event, or a page's cursor, to begin behind; None: the oldest.
            types: The event types to return, see ``event_types.TYPES``. None returns all but
                those of tasks (``task.…``), which exist while a trace is on and are named alone.
            limit: The most events, 1 to 1,000.
            last: Instead of ``limit`` and ``after``: so many of the newest, 1 to 1,000.

        Raises:
            ValueError: An argument is invalid.
        """
        length = whole(1, LONGEST_PAGE)
        length.check("limit", limit)
        asked = check_types(types)
        if last is not None:
            length.check("last", last)
            if after is not None:
                raise ValueError("expected after or last, got: both")
            return self._stream().last_page(asked, last)
        return self._stream().page(after, asked, limit)

    def follow(
        self, after: str | None = None, types: Collection[str] | None = None
    ) -> Iterator[Event]:
        """Yield events as they happen, until the caller leaves the loop.

        No event is missed or yielded twice. A caller that stores the id of its last event and
        begins ``after`` it sees each event at least once, while the stream stores it. Following
        events of tasks turns the trace on, as :meth:`trace` does, until the caller stops.

        Args:
            after: As for :meth:`read`; None: from now on.
            types: As for :meth:`read`.

        Raises:
            ValueError: As :meth:`read`.
            LimiterUnavailable: Redis does not answer; begin again after the last event.
        """
        asked = check_types(types)
        return self._stream().follow(after, asked, partial(self.trace, WATCH_SECONDS))

    def trace(self, for_seconds: float) -> None:
        """Emit events of each task for a time: ``task.put``, ``task.started``, ``task.ended``.

        At a gate it covers tasks that have limits; producers emit ``task.put`` within a second.
        Each event costs the functions one command. The last hundred thousand are stored, in a
        stream of their own, until an hour after the trace.

        Args:
            for_seconds: How long, in seconds, at most a day. Several traces do not shorten each
                other.

        Raises:
            ValueError: The number is invalid.
        """
        if for_seconds is None:
            raise ValueError("for_seconds: expected a number of seconds, got: None")
        self._holding().trace(lasts_ms(for_seconds, most=TRACE_SECONDS))
