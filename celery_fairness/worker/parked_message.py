"""The message of a parked task: taken before it leaves, kept as text, published as it is.

It is made as any message of Celery is, by a producer that sends nothing. So it keeps id, arguments,
headers, retries, expiry, time limits, priority, links and canvas, and whoever publishes it needs no
code of the task.

Weakness: headers that JSON cannot hold cannot be kept; such a task is sent back with a countdown.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from kombu import Producer

from celery_fairness.config.queue_policy import queue_of_route
from celery_fairness.limiter.types import Promoted
from celery_fairness.message.headers import COPY_HEADER

#: What a message says that nobody shall run: whoever receives it writes that it was revoked.
LONG_AGO = "1970-01-01T00:00:00+00:00"


class Taken(Producer):
    """A producer that keeps the first message that it is given, and sends none.

    Args:
        connection: Says what kind of broker it is; it is not opened.
    """

    def __init__(self, connection: Any) -> None:
        channel: Any = None
        super().__init__(channel, auto_declare=False)
        self._connection = connection
        self.message: dict[str, Any] | None = None

    @property
    def connection(self) -> Any:
        """Of the broker."""
        return self._connection

    def _publish(  # type: ignore[override]  # the rest says how to wait for the broker
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
            return  # The event of Celery that says that it was sent.
        # The broker's own expiry counts from the publication, and tells nobody.
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
            # A topic exchange of delayed messages finds the queue without their prefix too.
            "routing_key": queue_of_route(routing_key),
            "exchange": exchange,
        }


def as_text(message: Mapping[str, Any]) -> str:
    """Return a message that was taken as text.

    Raises:
        TypeError, ValueError: It has a header or property that JSON cannot hold.
    """
    return json.dumps(message)


def expires_ms(message: Mapping[str, Any]) -> int | None:
    """Return when a message expires, in ms of Unix time; None: never."""
    expires = message["headers"].get("expires")
    if not isinstance(expires, str):
        return None
    at = datetime.fromisoformat(expires)
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0, int(at.timestamp() * 1000))


def body_of(message: Mapping[str, Any]) -> Any:
    """Return the body of a message that was taken."""
    body = message["body"]
    return base64.b64decode(body) if message["binary"] else body


def publish(
    producer: Producer,
    promoted: Promoted,
    destination: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    **options: Any,
) -> None:
    """Publish a parked message as the copy that it is now.

    Args:
        producer: Of its broker.
        promoted: The message.
        destination: Where it goes instead of where it came from, as options of a publication.
        options: Of the publication.
    """
    message = json.loads(promoted.message)
    copy, headers = promoted.copy, message["headers"]
    headers[COPY_HEADER] = {"message": copy.message, "serial": copy.serial}
    if promoted.ended:
        headers["expires"] = LONG_AGO
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
