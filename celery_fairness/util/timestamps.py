"""Times of the server in ms since 1970, and times in the headers of a message.

Celery writes the latter as ISO 8601, with a zone or without.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at_ms(unix_ms: int) -> datetime:
    """Return Unix milliseconds as a time, exactly."""
    return _EPOCH + timedelta(milliseconds=unix_ms)


def eta_ms(eta: Any) -> int:
    """Return a time as Celery writes it, in ms since 1970; 0 if there is none."""
    when = _time(eta)
    if when is None:
        return 0
    return max(0, _ms(when if when.tzinfo else when.replace(tzinfo=UTC)))


def expires_ms(expires: Any) -> int:
    """Return the time at which a message expires, in ms since 1970; 0 if there is none.

    A time without a time zone also gives 0: only the worker, in its own zone, can check it.
    """
    when = _time(expires)
    return 0 if when is None or when.tzinfo is None else max(1, _ms(when))


def _time(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _ms(when: datetime) -> int:
    return round(when.timestamp() * 1000)
