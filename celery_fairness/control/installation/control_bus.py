"""Which workers answer on Celery's control bus, and which of them are not announced in Redis.

A worker without this package, such as one of an old image, writes nothing to the installation. It
still answers the control command ``active_queues``, as every worker does.

Invariant: no caller waits longer than :data:`WAIT_SECONDS`, and one caller per process asks at a
time. An answer has its time, and is not used once it is :data:`OLD_SECONDS` old.

Weakness: a worker is not seen if its remote control is off, if a task occupies its pool ``solo``,
or if it has another ``control_exchange`` or virtual host.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from celery_fairness.control.installation.reader import Reader
from celery_fairness.control.installation.views import (
    UnannouncedWorker,
    WorkerReplies,
    WorkerStatus,
)
from celery_fairness.control.installation.workers import READ_AT_MOST, are_too_many, living
from celery_fairness.errors import LimiterUnavailable

#: How long a worker has for its reply, in seconds. It is Celery's own default.
REPLY_SECONDS = 1.0
#: How long a caller waits for the replies at most, with the connection, in seconds.
WAIT_SECONDS = 2.0
#: Replies that are older are asked for again, while callers get those, in seconds.
FRESH_SECONDS = 10.0
#: Replies that are older are not used, so a caller waits for new ones, in seconds.
OLD_SECONDS = 60.0
#: Most characters of a name that a reply or an error brings.
NAME_CHARACTERS = 200
#: Most queues of one worker.
QUEUES_AT_MOST = 100
#: Time-outs of the connection for the transports that have them. Without these a silent broker
#: would keep the asking thread for ever.
_TIMEOUTS: Mapping[str, Mapping[str, float]] = {
    "amqp": {"read_timeout": WAIT_SECONDS, "write_timeout": WAIT_SECONDS},
    "redis": {"socket_timeout": WAIT_SECONDS, "socket_connect_timeout": REPLY_SECONDS},
}
#: Not all announcements are read, so a worker that answers may be announced all the same.
_TOO_MANY = f"more than {READ_AT_MOST:,} workers are announced"
_NO_ANSWER = f"Celery's control bus did not answer within {WAIT_SECONDS:g} s"


@dataclass(frozen=True, slots=True)
class _Asked:
    """The replies to one question.

    Attributes:
        at: When it was asked, by the clock of this process.
        tick: The same by the monotonic clock.
        replies: The queues of each worker by its name. A name may answer for several workers.
        announced: How many workers of each name were announced at that time.
        problem: Why nobody could answer. "" if somebody could.
    """

    at: datetime
    tick: float
    replies: Sequence[tuple[str, tuple[str, ...] | None]] = ()
    announced: Counter[str] = field(default_factory=Counter)
    problem: str = ""


class ControlBus:
    """Asks the workers of one app on its broker. Threads may share it.

    Args:
        app: The Celery app.
        reader: Reads the announcements.
    """

    def __init__(self, app: Any, reader: Reader) -> None:
        self._app = app
        self._reader = reader
        self._last: _Asked | None = None
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()
        self._pid = os.getpid()
        self._began = float("-inf")

    def compare(self, workers: Sequence[WorkerStatus], queues: Iterable[str]) -> WorkerReplies:
        """Return who answered, and who of them is not announced.

        Args:
            workers: The workers that are announced now.
            queues: The queues of the installation.
        """
        asked = self._asked()
        if asked is None or asked.problem:
            at = datetime.now(UTC) if asked is None else asked.at
            return WorkerReplies(at=at, problem=_NO_ANSWER if asked is None else asked.problem)
        announced = asked.announced | Counter(each.name for each in workers)
        known = {*queues, *(queue for each in workers for queue in each.queues)}
        by_name: defaultdict[str, list[tuple[str, ...] | None]] = defaultdict(list)
        for name, taken in asked.replies:
            by_name[name].append(taken)
        found = []
        for name, replies in by_name.items():
            # Two workers of one name cannot be told apart, so each has the queues of both.
            listed = [each for each in replies if each is not None]
            taken = tuple(sorted({*chain(*listed)})) if len(listed) == len(replies) else None
            shares = taken is None or not known.isdisjoint(taken)
            left = max(0, len(replies) - announced[name])
            found += [UnannouncedWorker(name, taken, shares)] * left
        found.sort(key=lambda each: (not each.shares, each.name))
        return WorkerReplies(
            at=asked.at, answered=len(asked.replies), unannounced=tuple(found[:READ_AT_MOST])
        )

    def close(self) -> None:
        """Wait for the thread that asks, as long as a caller would."""
        with self._own_lock():
            thread = self._thread
        if thread is not None:
            thread.join(WAIT_SECONDS)

    def _own_lock(self) -> threading.Lock:
        """Return the lock of this process. A thread of its parent may hold the one before."""
        if self._pid != os.getpid():
            self._start, self._pid = threading.Lock(), os.getpid()
        return self._start

    def _asked(self) -> _Asked | None:
        """Return the replies, or None if there are none within :data:`WAIT_SECONDS`."""
        now = time.monotonic()
        with self._own_lock():
            age = float("inf") if self._last is None else now - self._last.tick
            thread = self._thread
            if age > FRESH_SECONDS and (thread is None or not thread.is_alive()):
                # A fork has no thread of its parent: there it is not alive.
                thread = self._thread = threading.Thread(target=self._ask, daemon=True)
                self._began = now
                thread.start()
            began = self._began
        if age > OLD_SECONDS and thread is not None:
            thread.join(max(0.0, began + WAIT_SECONDS - now))
        last = self._last
        return last if last is not None and time.monotonic() - last.tick <= OLD_SECONDS else None

    def _ask(self) -> None:
        at, tick = datetime.now(UTC), time.monotonic()
        try:
            self._last = self._broadcast(at, tick)
        except Exception as error:  # noqa: BLE001 - the broker's client may raise anything
            self._last = _Asked(at, tick, problem=self._problem_of(error))

    def _broadcast(self, at: datetime, tick: float) -> _Asked:
        if not self._app.conf.worker_enable_remote_control:
            return _Asked(at, tick, problem="worker_enable_remote_control is off in this app")
        with self._app.connection_for_write(connect_timeout=REPLY_SECONDS) as connection:
            kind = connection.transport
            if "fanout" not in kind.implements.exchange_type:
                why = f"the broker ({kind.driver_type}) has no control bus"
                return _Asked(at, tick, problem=why)
            options = _TIMEOUTS.get(kind.driver_type, {})
            connection.transport_options = {**connection.transport_options, **options}
            # Each address once: kombu pauses for seconds before it tries one again.
            connection.ensure_connection(max_retries=max(0, len(connection.alt or ()) - 1))
            before = self._announced()
            answers = self._app.control.broadcast(
                "active_queues", reply=True, timeout=REPLY_SECONDS, connection=connection
            )
            # A worker may have started or ended meanwhile.
            announced = before | self._announced()
        if are_too_many(self._reader):
            return _Asked(at, tick, problem=_TOO_MANY)
        replies = [
            (str(name)[:NAME_CHARACTERS], _queues(reply))
            for answer in answers or ()
            if isinstance(answer, Mapping)
            for name, reply in answer.items()
        ]
        return _Asked(at, tick, replies, announced)

    def _announced(self) -> Counter[str]:
        return Counter(each.name for each in living(self._reader))

    def _problem_of(self, error: Exception) -> str:
        """Return the error. The text of an unexpected one might have a secret."""
        name = type(error).__name__
        if isinstance(error, (OSError, LimiterUnavailable)) or name == "OperationalError":
            return f"{name}: {error}"[:NAME_CHARACTERS]
        return name


def _queues(reply: Any) -> tuple[str, ...] | None:
    """Return the queues of a reply, or None if the worker did not send them."""
    if not isinstance(reply, list):
        return None
    names = {str(each["name"]) for each in reply if isinstance(each, Mapping) and "name" in each}
    return tuple(name[:NAME_CHARACTERS] for name in sorted(names)[:QUEUES_AT_MOST])
