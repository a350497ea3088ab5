"""When a broker delivers an unacknowledged message again, and how long a message may wait."""

from __future__ import annotations

from typing import Any

#: kombu's default on Redis, in seconds.
REDIS_VISIBILITY_SECONDS = 3600.0
#: The part of the visibility timeout that a countdown may take.
VISIBILITY_SHARE = 0.9


def visibility_seconds(app: Any) -> float | None:
    """Return the time after which the broker of a worker delivers an unacknowledged message again.

    None is never.
    """
    return _visibility_seconds(app, app.connection_for_read())


def longest_countdown_seconds(app: Any) -> float | None:
    """Return the longest countdown whose message is not delivered twice; None is no bound."""
    visibility = _visibility_seconds(app, app.connection_for_write())
    return None if visibility is None else visibility * VISIBILITY_SHARE


def _visibility_seconds(app: Any, broker: Any) -> float | None:
    options = app.conf.broker_transport_options or {}
    value = options.get("visibility_timeout")
    if value is None:
        driver = broker.get_transport_cls().driver_type
        value = {"redis": REDIS_VISIBILITY_SECONDS, "sqs": 1800.0}.get(driver)
    return None if value is None else float(value)
