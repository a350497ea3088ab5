"""The guard of a worker on ``fairredis``: a message that Celery cannot read ends no worker.

Celery expects what Celery has written. A header of another type raises in the strategy, in the
handover to the pool, in a timer or in the pool's callbacks, and most of these errors end the
worker. The message would come back and end the next one. So the guard makes it a dead letter at its
first delivery, and the worker goes on with the other tasks of the claim.

Invariant: an error counts as the message's only before the body begins, and only if its type is one
that reading raises. Errors of connections, result backends and pools pass through, because an
outage would make dead letters of good messages.

Weakness: such an error in a user's own ``Request`` or ``Strategy`` counts as the message's too. The
log line has its place, and the dead letters can be requeued.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from celery import signals
from celery.worker.state import requests, task_ready
from kombu.exceptions import SerializationError

from celery_fairness.scheduler.lease_table import Held

#: What Celery and kombu raise when they read a message of a wrong shape.
READ_ERRORS = (
    *(TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError),
    SerializationError,
)


class MessageInvalid(ValueError):
    """A header with which a worker would fail later, when the body has begun."""


def _is_name(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float))


def _is_time(value: Any) -> bool:
    return value is None or isinstance(value, (str, datetime))


def _is_timelimit(value: Any) -> bool:
    return not value or (
        isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_seconds, value))
    )


def _is_seconds(value: Any) -> bool:
    try:
        return value is None or (isinstance(value, (int, float)) and math.isfinite(value))
    except OverflowError:
        return False


def _are_names(value: Any) -> bool:
    return not value or (isinstance(value, (list, tuple)) and all(map(_is_name, value)))


def _is_mapping(value: Any) -> bool:
    return not value or isinstance(value, dict)


#: For each header that the main process reads: whether it is valid, and what is expected.
_HEADERS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "id": (_is_name, "text"),
    "shadow": (_is_name, "text"),
    "eta": (_is_time, "a time as text"),
    "expires": (_is_time, "a time as text"),
    "timelimit": (_is_timelimit, "two numbers of seconds"),
    "stamped_headers": (_are_names, "a list of names"),
    "stamps": (_is_mapping, "an object"),
}


def expect_valid(headers: Mapping[str, Any]) -> None:
    """Check the headers that the main process reads.

    Raises:
        MessageInvalid: One has a type that Celery never writes.
    """
    for name, (is_valid, expected) in _HEADERS.items():
        value = headers.get(name)
        if value is not None and not is_valid(value):
            found = type(value).__name__
            raise MessageInvalid(f"{name}: expected {expected}, got: {found}")


class MessageGuard:
    """Stands before the functions of a worker's consumer that read messages.

    Messages that were not claimed pass it.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._make_handler = consumer.create_task_handler
        # Celery logs such messages whole and deletes them, or fails at that.
        self._discard_undecoded = consumer.on_decode_error
        self._discard_invalid = consumer.on_invalid_task
        self._discard_unknown = consumer.on_unknown_message
        consumer.create_task_handler = self.create_task_handler
        consumer.on_decode_error = self.on_decode_error
        consumer.on_invalid_task = self.on_invalid_task
        consumer.on_unknown_message = self.on_unknown_message

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        """Return Celery's function for each message, behind the guard."""
        handle = self._make_handler(*args, **options)

        def on_task_received(message: Any) -> Any:
            held = held_of(message)
            try:
                return handle(message)
            except READ_ERRORS as error:
                if held is None or held.begun or held.ended:
                    raise
                set_aside(message, held, error)

        return on_task_received

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Set aside a message whose body cannot be decoded."""
        if not self.takes(message, exc):
            self._discard_undecoded(message, exc)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Set aside a message with arguments or times that Celery refuses."""
        if self.takes(message, exc):
            signals.task_rejected.send(sender=self._consumer, message=message, exc=exc)
        else:
            self._discard_invalid(body, message, exc)

    def on_unknown_message(self, body: Any, message: Any) -> None:
        """Set aside a message that names no task."""
        if self.takes(message, MessageInvalid("it names no task")):
            signals.task_rejected.send(sender=self._consumer, message=message, exc=None)
        else:
            self._discard_unknown(body, message)

    def takes(self, message: Any, error: Exception) -> bool:
        """Set aside a message if it was claimed; return whether it was."""
        held = held_of(message)
        if held is not None:
            set_aside(message, held, error)
        return held is not None


def held_of(message: Any) -> Held | None:
    """Return the lease of a claimed message; None for another message."""
    session = getattr(message.channel, "session", None)
    return None if session is None else session.lease_table.get(message.delivery_tag)


def set_aside(message: Any, held: Held, error: Exception) -> None:
    """Make a claimed message a dead letter, because the worker cannot read it."""
    message.channel.dead_letter(message, held, reason_of(error))
    for request in list(requests.values()):
        # Celery may have reserved it.
        if getattr(request, "_held", None) is held:
            task_ready(request)


def reason_of(error: Exception) -> str:
    """Return a text without the values of the message, which the error's own text may have."""
    if isinstance(error, MessageInvalid):
        return str(error)
    kind, place = type(error).__name__, error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None:
        return kind
    return f"{kind} in {place.tb_frame.f_globals.get('__name__')}, line {place.tb_lineno}"
