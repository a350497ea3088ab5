"""Forwards events from Redis to Celery's event bus, for ``celery events`` and other readers.

Processes write their events to Redis. The workers that send events (``-E``) share one consumer
group of the stream, so Redis gives each event to one of them.

Weakness: a worker that dies while it sends loses at most one batch, and so does a lost answer of
Redis. Several workers may change the order of events of one second. The bus keeps nothing for
readers that are not connected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from celery_fairness.control.health.event_streams import EventStore, EventStreams
from celery_fairness.control.health.event_types import Event
from celery_fairness.control.installation.reader import Reader, server_now
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.util.throttled_log import Notices
from celery_fairness.util.timestamps import at_ms
from celery_fairness.worker.looking_thread import LookingThread

logger = logging.getLogger("celery_fairness")

#: Prefix of an event's type on the bus. Celery uses the part before the first dash as the group.
BUS_PREFIX = "fairness-"
#: The consumer group of all workers, and the name of its one consumer.
GROUP = "bus"
#: Events that waited longer than this for a worker are not sent.
SENT_MS = 3_600_000
#: Events that a worker takes at once.
BATCH_SIZE = 100
#: A pooled connection may have been lost since its last use.
RETRIES: dict[str, Any] = {"retry": True, "retry_policy": {"max_retries": 1}}


class EventForwarder(LookingThread):
    """Forwards events for the life of a worker, while the worker sends events.

    Args:
        sends_events: Returns whether the worker sends events now.
        dispatcher: Opens a dispatcher for the forwarder alone. The worker's own dispatcher writes
            heartbeats in the worker's event loop.
        source: The ``source`` of the events.
    """

    def __init__(
        self,
        sends_events: Callable[[], bool],
        dispatcher: Callable[[], AbstractContextManager[Any]],
        reader: Reader,
        source: str,
    ) -> None:
        super().__init__("forwarder")
        self._sends_events, self._dispatcher = sends_events, dispatcher
        self._streams = EventStreams(reader, source)
        #: Events that this worker has taken and not sent yet.
        self._taken: list[Event] = []
        self._notices = Notices(logger)

    def _look(self) -> None:
        try:
            self.look()
        except Exception as error:  # noqa: BLE001 - Redis does not answer, and will later
            self._notices.error(
                "forwarder", "events could not be forwarded: %s", error or type(error).__name__
            )

    def look(self) -> int:
        """Send new events if this worker sends events; return their number."""
        sent = 0
        while self._sends_events() and not self._stopped.is_set():
            if not self._taken and not self._take():
                break
            with self._dispatcher() as dispatcher:
                while self._taken:
                    event = self._taken[0]
                    dispatcher.send(bus_type(event.type), **RETRIES, **_fields(event))
                    del self._taken[0]
                    sent += 1
        return sent

    def _take(self) -> bool:
        """Take the next events and return whether there were any."""
        return any(self._take_from(each) for each in self._streams.stores)

    def _take_from(self, store: EventStore) -> bool:
        reader, stream = store.reader, store.reader.keys.events
        group = ("GROUP", GROUP, GROUP, "COUNT", BATCH_SIZE, "NOACK", "STREAMS", stream, ">")
        try:
            answer = reader.read("XREADGROUP", *group)
        except LimiterUnavailable as error:
            if "NOGROUP" not in error.problem:
                raise
            # The group begins with the next event. Another worker may have made it meanwhile.
            with suppress(LimiterUnavailable):
                reader.read("XGROUP", "CREATE", stream, GROUP, "$", "MKSTREAM")
            return False
        for _, entries in answer or ():
            oldest = at_ms(server_now(reader) - SENT_MS)
            found = (store.found(entry, flat) for entry, flat in entries)
            events = (each.event for each in found if each is not None)
            self._taken += [event for event in events if event.at >= oldest]
        return bool(answer)


def bus_type(event_type: str) -> str:
    """Return an event's type on the bus: ``fairness-paused`` for ``fairness.paused``."""
    return BUS_PREFIX + event_type.removeprefix("fairness.")


def _fields(event: Event) -> dict[str, Any]:
    return {name: value for name, value in event.model_dump(mode="json").items() if name != "type"}
