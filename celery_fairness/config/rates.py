"""Rates: a number of starts per period, in a sliding window or evenly spaced.

A rate is read from text (``100/PT1M``, ``100/m``), from a mapping of ``limit`` and ``period``, and
from the stricter form of the Open Job Spec. An error names every invalid part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from celery_fairness.config.fields import unknown_problems
from celery_fairness.errors import PolicyInvalid, got
from celery_fairness.util.durations import (
    iso_duration,
    milliseconds,
    parse_duration,
    seconds,
)

#: A number of starts, and their period in milliseconds.
Window = tuple[int, int]
#: Most starts that a rate may allow in its period.
MAX_RATE_LIMIT = 1_000_000_000
#: Shortest period, in seconds.
MIN_PERIOD_SECONDS = 0.001
#: Longest period, in seconds: 366 days.
MAX_PERIOD_SECONDS = 366 * 86_400.0

#: Longer numbers are far above the largest limit, and int() does not read very long ones.
_WHOLE = re.compile(r"[0-9]{1,20}")
#: Celery's own periods, as in ``100/m``.
_CELERY_PERIODS = {"s": "PT1S", "m": "PT1M", "h": "PT1H"}
_FIELDS = ("limit", "period")
_PERIOD = "1 ms to 366 days, such as PT1M, 1m30s or 60 (no months or years)"
_ISO_PERIOD = "an ISO 8601 duration from 1 ms to 366 days, such as PT1M (no months or years)"


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of starts per period.

    Attributes:
        limit: Starts, 1 to 1,000,000,000. To stop all starts, use concurrency 0 instead.
        period_seconds: 0.001 to 31,622,400 (366 days), rounded to whole milliseconds.

    Raises:
        PolicyInvalid: A number is out of range, with one problem for each.
    """

    limit: int
    period_seconds: float

    def __post_init__(self) -> None:
        problems = [
            *limit_problems("limit", self.limit),
            *_period_problems("period_seconds", self.period_seconds, self.period_seconds, _PERIOD),
        ]
        if problems:
            raise PolicyInvalid(*problems)
        rounded_seconds = seconds(milliseconds(self.period_seconds))
        object.__setattr__(self, "period_seconds", rounded_seconds)

    @classmethod
    def parse(cls, value: RateLike, name: str = "rate") -> Rate:
        """Read a rate.

        Args:
            value: A Rate, a text or a mapping. In a text such as ``"100/PT1M"`` the period is any
                duration that :func:`~celery_fairness.util.durations.parse_duration` reads, or
                ``s``, ``m`` or ``h`` as in Celery's ``rate_limit``. In a mapping such as
                ``{"limit": 100, "period": "PT1M"}`` it may also be seconds or a timedelta.
            name: The field's name, for messages.

        Raises:
            PolicyInvalid: It is none of these, or a number is out of range.
        """
        if isinstance(value, Rate):
            return value
        if isinstance(value, str) and "/" in value:
            count, _, period = (part.strip() for part in value.partition("/"))
            limit = int(count) if _WHOLE.fullmatch(count) else count
            period = _CELERY_PERIODS.get(period, period)
            return _read(name, {"limit": limit, "period": period}, iso_only=False)
        if isinstance(value, Mapping):
            return _read(name, value, iso_only=False)
        raise PolicyInvalid(
            f"{name}: expected 'LIMIT/PERIOD' such as '100/m' or '100/PT1M', a mapping of limit "
            f"and period, or a Rate, got: {got(value)}"
        )

    @classmethod
    def from_ojs(cls, value: Any, name: str = "rate") -> Rate:
        """Read a rate as the Open Job Spec (6.2) writes it: its period is ISO 8601.

        Raises:
            PolicyInvalid: It is no object of ``limit`` and ``period``, or a number is out of range.
        """
        if not isinstance(value, Mapping):
            raise PolicyInvalid(
                f"{name}: expected an object of limit and period, got: {got(value)}"
            )
        return _read(name, value, iso_only=True)

    def to_ojs(self) -> dict[str, Any]:
        """Return it in the form of the Open Job Spec."""
        return {"limit": self.limit, "period": self.iso_period}

    def __str__(self) -> str:
        return f"{self.limit}/{self.iso_period}"

    @property
    def window(self) -> Window:
        """The starts and the period in whole milliseconds."""
        return self.limit, milliseconds(self.period_seconds)

    @property
    def iso_period(self) -> str:
        """The period as ISO 8601, such as ``PT1M``, ``PT0.1S`` and ``P1D``."""
        return iso_duration(self.period_seconds)


#: The forms that :meth:`Rate.parse` reads.
RateLike = Rate | str | Mapping[str, Any]


def limit_problems(name: str, limit: Any) -> list[str]:
    """Return the problems of a number of starts; empty if it is valid."""
    whole = type(limit) is int
    if whole and 1 <= limit <= MAX_RATE_LIMIT:
        return []
    pausing = " (to pause a key, set its concurrency to 0)" if whole and limit == 0 else ""
    return [
        f"{name}: expected a whole number from 1 to {MAX_RATE_LIMIT}{pausing}, got: {got(limit)}"
    ]


def _period_problems(name: str, period_seconds: Any, shown: Any, expected: str) -> list[str]:
    number = type(period_seconds) in (int, float)
    if number and MIN_PERIOD_SECONDS <= period_seconds <= MAX_PERIOD_SECONDS:
        return []
    return [f"{name}: expected {expected}, got: {got(shown)}"]


def _read(name: str, fields: Mapping[str, Any], iso_only: bool) -> Rate:
    limit: Any = fields.get("limit")
    period: Any = fields.get("period")
    period_seconds = _iso_seconds(period) if iso_only else _seconds(period)
    expected = _ISO_PERIOD if iso_only else _PERIOD
    problems = [
        *unknown_problems(f"{name}: expected fields of {', '.join(_FIELDS)}", fields, _FIELDS),
        *limit_problems(f"{name}.limit", limit),
        *_period_problems(f"{name}.period", period_seconds, period, expected),
    ]
    if problems:
        raise PolicyInvalid(*problems)
    return Rate(limit, period_seconds)


def _seconds(period: Any) -> Any:
    """Return a period in seconds; None for text that is no duration; other values unchanged."""
    if isinstance(period, timedelta):
        return period.total_seconds()
    if not isinstance(period, str):
        return period
    try:
        return parse_duration(period)
    except ValueError:
        return None


def _iso_seconds(period: Any) -> Any:
    written = isinstance(period, str) and period.startswith("P") and period == period.strip()
    return _seconds(period) if written else None
