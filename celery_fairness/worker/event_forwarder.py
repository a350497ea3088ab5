"""Forwards events from Redis to Celery's event bus, for ``celery events`` and other readers.

Processes write their events to Redis. One of the workers that send events (``-E``) reads them for
all. A key that lives for some seconds elects this worker; another key stores how far it has read.

Weakness: a worker that dies after sending and before storing its position leaves events that the
next worker sends again, with the same ids. The bus keeps nothing for readers that are not
connected.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from celery_fairness.control.event_types import Event
from celery_fairness.control.events import EventsApi
from celery_fairness.control.scan import Reader
from celery_fairness.util.ids import new_id
from celery_fairness.util.throttled_log import Notices

logger = logging.getLogger("celery_fairness")

#: Prefix of an event's type on the bus. Celery uses the part before the first dash as the group.
BUS_PREFIX = "fairness-"
#: How often a worker looks for events, in seconds.
EVERY_SECONDS = 1.0
#: How long an election lasts after the elected worker's last look, in seconds.
ELECTED_SECONDS = 5
#: How long the position lives, in seconds. Without it, a new reader starts with new events.
NOTED_SECONDS = 3600
#: Events that are sent before the position is stored.
BATCH_SIZE = 100
#: A pooled connection may have been lost since its last use.
RETRIES: dict[str, Any] = {"retry": True, "retry_policy": {"max_retries": 1}}


class EventForwarder:
    """Forwards events for the life of a worker, while the worker sends events.

    Args:
        sends_events: Returns whether the worker sends events now.
        dispatcher: Opens a dispatcher for the forwarder alone. The worker's own dispatcher writes
        heartbeats in the worker's event loop.
    """

    def __init__(
        self,
        sends_events: Callable[[], bool],
        dispatcher: Callable[[], AbstractContextManager[Any]],
        reader: Reader,
        events: EventsApi,
    ) -> None:
        self._sends_events, self._dispatcher = sends_events, dispatcher
        self._reader, self._events = reader, events
        self._elected, self._noted = reader.keys.forwarder, reader.keys.forwarded
        self._name = new_id(8)
        self._notices = Notices(logger)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forwarder", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; another worker takes over when the election ends."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_SECONDS):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - Redis does not answer, and will later
                self._notices.error(
                    "forwarder", "events could not be forwarded: %s", error or type(error).__name__
                )

    def look(self) -> int:
        """Send new events if this worker is elected; return their number."""
        if not self._sends_events() or not self._is_elected():
            return 0
        sent, more = 0, True
        after = self._reader.read("GET", self._noted)
        if after is None:
            self._note(self._events.read(last=1).cursor or "")
            return 0
        while more and not self._stopped.is_set():
            page = self._events.read(after or None, limit=BATCH_SIZE)
            if page.events:
                with self._dispatcher() as dispatcher:
                    for event in page.events:
                        dispatcher.send(bus_type(event.type), **RETRIES, **_fields(event))
            sent += len(page.events)
            more = page.has_more and self._is_elected()
            after = page.cursor or ""
            self._note(after)
        return sent

    def _note(self, event_id: str) -> None:
        self._reader.read("SET", self._noted, event_id, "EX", NOTED_SECONDS)

    def _is_elected(self) -> bool:
        name, seconds = self._name, ELECTED_SECONDS
        if self._reader.read("SET", self._elected, name, "NX", "EX", seconds):
            return True
        if self._reader.read("GET", self._elected) != name:
            return False
        self._reader.read("EXPIRE", self._elected, seconds)
        return True


def bus_type(event_type: str) -> str:
    """Return an event's type on the bus: ``fairness-paused`` for ``fairness.paused``."""
    return BUS_PREFIX + event_type.removeprefix("fairness.")


def _fields(event: Event) -> dict[str, Any]:
    return {name: value for name, value in event.model_dump(mode="json").items() if name != "type"}
