"""The check of a message from ``fairredis``: its headers, and the errors that reading it raises."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from kombu.exceptions import SerializationError

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
