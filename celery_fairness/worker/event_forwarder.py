"""Passes what happened on to Celery's event bus, where ``celery events`` and others listen.

Events lie in Redis, told by whoever caused them; of the workers that send events (``-E``) one reads
them for all. The election is a key that lives for some seconds; how far was read is another.

Weakness: a worker that dies between sending and noting leaves some to be sent twice; they keep
their ids. The bus itself keeps nothing for who does not listen.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from celery_fairness.control import events as happened
from celery_fairness.control.event_types import Event
from celery_fairness.control.scan import Reader
from celery_fairness.util.ids import new_id
from celery_fairness.util.throttled_log import Notices

logger = logging.getLogger("celery_fairness")

#: What stands before a type on the bus: Celery takes what is before the first dash for a group.
GROUP = "fairness-"
#: How often a worker looks, in seconds.
EVERY_SECONDS = 1.0
#: How long nobody else reads after the reader has looked last, in seconds.
ELECTED_SECONDS = 5
#: How long it is kept how far was read: whoever comes later begins with what happens then.
NOTED_SECONDS = 3600
#: Events that are sent before it is noted how far.
TOGETHER = 100
#: A connection of the pool may have been lost since it was used last.
RETRIES: dict[str, Any] = {"retry": True, "retry_policy": {"max_retries": 1}}


class EventForwarder:
    """Sends events for the life of a worker, while that sends any.

    Args:
        sends: Says whether the worker sends events now.
        dispatcher: Opens an event dispatcher of Celery's for the forwarder alone. The worker's own
            dispatcher writes heartbeats in the worker's event loop.
        reader: Of the installation.
        source: Where its events come from.
    """

    def __init__(
        self,
        sends: Callable[[], bool],
        dispatcher: Callable[[], AbstractContextManager[Any]],
        reader: Reader,
        source: str,
    ) -> None:
        self._sends, self._dispatcher = sends, dispatcher
        self._reader, self._source = reader, source
        self._elected, self._noted = reader.keys.forwarder, reader.keys.forwarded
        self._name = new_id(8)
        self._notices = Notices(logger)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forwarder", daemon=True)

    def start(self) -> None:
        """Send from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more; another worker may be elected at once."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_SECONDS):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - Redis is away, and comes back
                self._notices.error(
                    "forwarder", "events could not be passed on: %s", error or type(error).__name__
                )

    def look(self) -> int:
        """Send what has happened, where this worker is the one that does; returns how many."""
        if not self._sends() or not self._is_elected():
            return 0
        sent, more = 0, True
        after = self._reader.read("GET", self._noted)
        if after is None:
            self._note(happened.last_id(self._reader, self._source))
            return 0
        while more and not self._stopped.is_set():
            page = happened.page(self._reader, self._source, after or None, (), TOGETHER)
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
    """Return what an event's type is on the bus: ``fairness-paused`` for ``fairness.paused``."""
    return GROUP + event_type.removeprefix("fairness.")


def _fields(event: Event) -> dict[str, Any]:
    return {name: value for name, value in event.model_dump(mode="json").items() if name != "type"}
