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

from collections.abc import Callable
from typing import Any

from celery import signals
from celery.worker.state import requests, task_ready

from celery_fairness.scheduler.lease_table import Held
from celery_fairness.worker.message_check import READ_ERRORS, MessageInvalid, reason_of


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
