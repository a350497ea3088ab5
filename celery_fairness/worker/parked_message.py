"""The message of a parked task: captured before it is sent, stored as text, published unchanged.

Celery makes the message as always, with a producer that sends nothing. The message therefore keeps
id, arguments, headers, retries, expiry, time limits, priority, links and canvas. A promoter can
publish it without the task's code.

Weakness: a header that JSON cannot hold makes a message that cannot be stored. The gate sends such
a task back with a countdown.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kombu import Producer
from kombu.message import Message

from celery_fairness.config.queue_policy import queue_of_route
from celery_fairness.limiter.types import Promoted
from celery_fairness.message.headers import COPY_HEADER


class CapturingProducer(Producer):
    """A producer that keeps its first message, and sends none.

    Args:
        connection: Names the kind of broker. The producer does not open it.
    """

    def __init__(self, connection: Any) -> None:
        channel: Any = None
        super().__init__(channel, auto_declare=False)
        self._connection = connection
        self.message: dict[str, Any] | None = None

    @property
    def connection(self) -> Any:
        """The connection to the broker."""
        return self._connection

    def _publish(  # type: ignore[override]  # the rest is about waiting for the broker
        self,
        body: Any,
        priority: int,
        content_type: str,
        content_encoding: str,
        headers: dict[str, Any],
        properties: dict[str, Any],
        routing_key: str,
        mandatory: bool,
        immediate: bool,
        exchange: str,
        *_: Any,
    ) -> None:
        del mandatory, immediate
        if self.message is not None:
            return  # Celery's own event about the sent task.
        # The broker's expiry counts from the publication, and the broker reports no expired task.
        kept = {name: value for name, value in properties.items() if name != "expiration"}
        binary = isinstance(body, bytes)
        self.message = {
            "body": base64.b64encode(body).decode() if binary else body,
            "binary": binary,
            "priority": priority,
            "content_type": content_type,
            "content_encoding": content_encoding,
            "headers": headers,
            "properties": kept,
            # A topic exchange for delayed messages needs no delay prefix to find the queue.
            "routing_key": queue_of_route(routing_key),
            "exchange": exchange,
        }


def read_parked(text: str, accept: Collection[str] | None) -> Any:
    """Return the stored text of a parked message as a message that accepts these types."""
    taken = json.loads(text)
    facts = {name: taken[name] for name in ("content_type", "content_encoding", "headers")}
    place = {"exchange": taken["exchange"], "routing_key": taken["routing_key"]}
    return Message(
        body_of(taken), properties=taken["properties"], delivery_info=place, accept=accept, **facts
    )


def body_of(message: Mapping[str, Any]) -> Any:
    """Return the body of a captured message."""
    body = message["body"]
    return base64.b64decode(body) if message["binary"] else body


def publish(
    producer: Producer,
    promoted: Promoted,
    destination: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    **options: Any,
) -> None:
    """Publish a parked message with the copy header of its promotion.

    ``destination`` returns publish options that replace the message's own exchange and key.
    """
    message = json.loads(promoted.message)
    copy, headers = promoted.copy, message["headers"]
    headers[COPY_HEADER] = {
        "message": copy.message,
        "serial": copy.serial,
        "waited_ms": promoted.waited_ms,
        "limit": promoted.limit,
    }
    place = {"routing_key": message["routing_key"], "exchange": message["exchange"]}
    place.update(destination(message))
    producer.publish(
        body_of(message),
        **place,
        priority=message["priority"],
        content_type=message["content_type"],
        content_encoding=message["content_encoding"],
        headers=headers,
        **message["properties"],
        **options,
    )
