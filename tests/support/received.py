"""The properties of a message as the request of a worker has them, without a broker."""

from __future__ import annotations

import json
from typing import Any

from kombu.message import Message

from celery_fairness.worker.captured_message import Received


def received(
    headers: dict[str, Any],
    body: Any = "[[], {}, {}]",
    properties: dict[str, Any] | None = None,
    place: dict[str, Any] | None = None,
    content_type: str = "application/json",
    content_encoding: str = "utf-8",
) -> Received:
    """Return the properties of a message of Celery."""
    encoded: Any = body if isinstance(body, (str, bytes)) else json.dumps(body)
    return Received(
        Message(
            encoded,
            content_type=content_type,
            content_encoding=content_encoding,
            headers=headers,
            properties=properties or {},
            delivery_info=place or {"exchange": "", "routing_key": "celery"},
        )
    )
