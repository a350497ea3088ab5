"""Reads the limit of an API from the headers of its answer.

Names have any case. The first of these forms that has a value counts:

- ``Retry-After``: seconds or an HTTP date (RFC 9110).
- ``RateLimit: "default";r=50;t=30``, the structured field of the IETF's draft. If it has several
  policies, the one with the fewest remaining requests counts.
- ``RateLimit: limit=100, remaining=50, reset=30``, an earlier draft.
- ``RateLimit-Remaining`` and ``RateLimit-Reset``, the first drafts.
- ``X-RateLimit-Remaining`` and ``X-RateLimit-Reset``, also as ``X-Rate-Limit-…``.

A reset is in seconds from now, or a Unix time in seconds or milliseconds. The time ``Date`` of the
same answer is the now of a Unix time, so the clock of the caller need not be right.

Weakness: a header that cannot be read is ignored, because no task may fail for it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from celery_fairness.util.retry_after import MOST_SECONDS

#: Above the first a reset is a Unix time in seconds, and above the second in milliseconds. A year
#: has 31,536,000 seconds.
UNIX_SECONDS, UNIX_MS = 1e9, 1e11
#: The pairs of headers, the first that is there counts.
_PAIRS = (
    ("ratelimit-remaining", "ratelimit-reset"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("x-rate-limit-remaining", "x-rate-limit-reset"),
)
_PARAMETER = re.compile(r"\b(r|remaining|t|reset)\s*=\s*([0-9]{1,15})(?![0-9.])")


class Reported(NamedTuple):
    """The limit of an API, as the headers of an answer have it.

    Attributes:
        retry_seconds: For how long nothing may be sent. None without such a header.
        remaining: How many requests are left until the reset. None without such a header.
        reset_seconds: The time until the reset, up to a day. 0 without ``remaining``.
    """

    retry_seconds: float | None = None
    remaining: int | None = None
    reset_seconds: float = 0.0


def read_headers(headers: Any) -> Reported:
    """Read the headers of an answer.

    Args:
        headers: A mapping such as that of ``requests`` or ``httpx``, or pairs of name and value. A
            value is text, bytes, a number, or a list of these, of which the first counts.

    Raises:
        TypeError: It is neither.
    """
    known = _as_texts(headers)
    now = _date(known.get("date", ""))
    retry = _retry(known.get("retry-after", ""), now)
    remaining, reset = _quota(known, now)
    return Reported(retry, remaining, reset)


def _as_texts(headers: Any) -> dict[str, str]:
    pairs: Any = headers.items() if hasattr(headers, "items") else headers
    if isinstance(pairs, (str, bytes)) or not isinstance(pairs, Iterable):
        expected = "a mapping of headers, or pairs of name and value"
        raise TypeError(f"headers: expected {expected}, got: {type(headers).__name__}")
    known: dict[str, str] = {}
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(
                f"headers: expected pairs of name and value, got: {type(pair).__name__}"
            )
        known.setdefault(_text(pair[0]).lower(), _text(pair[1]))
    return known


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        value = value[0] if value else ""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value).strip()


def _date(text: str) -> float:
    """Return an HTTP date as Unix seconds; the time of this process without one."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return time.time()


def _retry(text: str, now: float) -> float | None:
    if not text:
        return None
    wait = _seconds(text, now)
    if wait is None:
        try:
            wait = parsedate_to_datetime(text).timestamp() - now
        except (ValueError, TypeError, OverflowError):
            return None
    return wait if wait > 0 else None


def _quota(known: Mapping[str, str], now: float) -> tuple[int | None, float]:
    found = [_policy(each, now) for each in known.get("ratelimit", "").split('"') if "=" in each]
    found += [
        (_count(known[remaining]), _seconds(known.get(reset, ""), now))
        for remaining, reset in _PAIRS
        if remaining in known
    ][:1]
    usable = [
        (count, seconds) for count, seconds in found if count is not None and seconds is not None
    ]
    # A reset that is past is that of an earlier window.
    least = min(((count, seconds) for count, seconds in usable if seconds > 0), default=None)
    return least or (None, 0.0)


def _policy(text: str, now: float) -> tuple[int | None, float | None]:
    """Return the remaining requests and the reset of a policy of ``RateLimit``."""
    named: dict[str, str] = {}
    for name, number in _PARAMETER.findall(text):
        named.setdefault(name, number)
    remaining = named.get("r", named.get("remaining", ""))
    reset = named.get("t", named.get("reset", ""))
    return _count(remaining), _seconds(reset, now)


def _count(text: str) -> int | None:
    number = _number(text)
    return None if number is None or number < 0 else int(number)


def _seconds(text: str, now: float) -> float | None:
    """Return the seconds until a reset, at most a day."""
    number = _number(text)
    if number is None:
        return None
    if number > UNIX_MS:
        number = number / 1000 - now
    elif number > UNIX_SECONDS:
        number -= now
    return min(number, MOST_SECONDS)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
