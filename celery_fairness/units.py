"""Durations: seconds outside, whole milliseconds inside, converted here only.

Settings and public arguments are numbers of seconds (``*_seconds``), as in Celery. Scripts and
internals count whole milliseconds (``*_ms``). Text such as ``1m30s`` is read only where a
variable of the environment gives it.
"""

from __future__ import annotations

import re
from typing import NewType

from celery_fairness.errors import got

Milliseconds = NewType("Milliseconds", int)

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"\d+(?:\.\d+)?"
_PARTS = re.compile(rf"({_NUMBER})(ms|s|m|h|d)")
_COMPACT = re.compile(rf"(?:{_NUMBER}(?:ms|s|m|h|d))+")
_ISO = re.compile(
    rf"P(?!$)(?:({_NUMBER})W)?(?:({_NUMBER})D)?"
    rf"(?:T(?=\d)(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_NUMBER})S)?)?"
)
_ISO_SECONDS = (604800.0, 86400.0, 3600.0, 60.0, 1.0)

DURATION_FORMS = "a duration such as 30, 30s, 1m30s, 500ms or PT30S"


def milliseconds(seconds: float) -> Milliseconds:
    """Return ``seconds`` as whole milliseconds, rounded to the nearest."""
    return Milliseconds(round(seconds * 1000))


def seconds(ms: int) -> float:
    """Return ``ms`` milliseconds as seconds."""
    return ms / 1000


def parse_duration(text: str) -> float:
    """Read a duration, in seconds.

    Args:
        text: A bare number of seconds, ``30s``, ``1m30s``, ``500ms``, or ISO 8601 (``PT30S``)
            without months and years, whose length is not fixed.

    Raises:
        ValueError: The text is none of these; the message says what is expected.
    """
    stripped = text.strip()
    if re.fullmatch(_NUMBER, stripped):
        return float(stripped)
    if _COMPACT.fullmatch(stripped):
        return sum(float(n) * _UNIT_SECONDS[unit] for n, unit in _PARTS.findall(stripped))
    iso = _ISO.fullmatch(stripped)
    if iso:
        pairs = zip(iso.groups(), _ISO_SECONDS, strict=True)
        return sum(float(n) * size for n, size in pairs if n is not None)
    raise ValueError(f"expected {DURATION_FORMS}, got: {got(text)}")
