"""Durations: seconds outside, whole milliseconds inside, converted only here.

Settings and public arguments are numbers of seconds (``*_seconds``), as in Celery. Functions in
Redis and internals count whole milliseconds (``*_ms``). Environment variables and rates may be
text such as ``1m30s``. Durations for other programs are written as ISO 8601.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import NewType

from celery_fairness.errors import got

Milliseconds = NewType("Milliseconds", int)

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
#: Most digits before and after a number's decimal point.
_DIGITS = 20
_NUMBER = rf"[0-9]{{1,{_DIGITS}}}(?:\.[0-9]{{1,{_DIGITS}}})?"
_PARTS = re.compile(rf"({_NUMBER})(ms|[wdhms])")
_COMPACT = re.compile(rf"(?:{_NUMBER}(?:ms|s|m|h|d))+")
_ISO = re.compile(
    rf"P(?!$)(?:{_NUMBER}W)?(?:{_NUMBER}D)?"
    rf"(?:T(?=[0-9])(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?"
)

DURATION_FORMS = "a duration such as 30, 30s, 1m30s, 500ms or PT30S"


def milliseconds(seconds: float) -> Milliseconds:
    """Return ``seconds`` as whole milliseconds, rounded to the nearest."""
    return Milliseconds(round(seconds * 1000))


def seconds(ms: int) -> float:
    """Return ``ms`` milliseconds as seconds."""
    return ms / 1000


def parse_count(text: str, most: int) -> int | None:
    """Return a text as a whole number from 0 to ``most``; None if it is not one."""
    # A text with more digits than ``most`` is too large, and int() of a long text is slow.
    count = int(text) if re.fullmatch(f"[0-9]{{1,{len(str(most))}}}", text) else most + 1
    return count if count <= most else None


def parse_duration(text: str) -> float:
    """Read a duration, in seconds.

    Args:
        text: A bare number of seconds, ``30s``, ``1m30s``, ``500ms``, or ISO 8601 (``PT30S``)
            without months and years, because their length varies.

    Raises:
        ValueError: The text is none of these. The message names the expected forms.
    """
    stripped = text.strip()
    if re.fullmatch(_NUMBER, stripped):
        return _total([(stripped, _UNIT_MS["s"])])
    if _COMPACT.fullmatch(stripped) or _ISO.fullmatch(stripped):
        parts = _PARTS.findall(stripped.lower())
        return _total((number, _UNIT_MS[unit]) for number, unit in parts)
    raise ValueError(f"expected {DURATION_FORMS}, got: {got(text)}")


def _total(parts: Iterable[tuple[str, int]]) -> float:
    """Return the sum of numbers and their units, in seconds, rounded once at the end.

    With floats, one duration in two forms could give two numbers: PT1M1.471S and 61.471.
    """
    return float(sum(Fraction(number) * unit_ms for number, unit_ms in parts) / 1_000)


def iso_duration(seconds: float) -> str:
    """Return a duration as ISO 8601, in whole milliseconds: ``PT1M``, ``PT0.1S``, ``P1DT1H30M``.

    :func:`parse_duration` reads it back as the same number. Days are the largest unit, because ISO
    8601 does not combine weeks with other units. 0 is ``PT0S``.

    Raises:
        ValueError: It is negative or not finite.
    """
    if not 0 <= seconds < math.inf:
        raise ValueError(f"expected seconds from 0 on, got: {got(seconds)}")
    rest_seconds, ms = divmod(milliseconds(seconds), 1_000)
    minutes, whole = divmod(rest_seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    fraction = f".{ms:03}".rstrip("0") if ms else ""
    time = "".join(
        (
            f"{hours}H" if hours else "",
            f"{minutes}M" if minutes else "",
            f"{whole}{fraction}S" if whole or ms else "",
        )
    )
    date = f"{days}D" if days else ""
    if not time:
        return f"P{date}" if date else "PT0S"
    return f"P{date}T{time}"
