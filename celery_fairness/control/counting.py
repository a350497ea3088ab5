"""The starts of a key: the number in a window, and the time of the next one.

The rules are those of ``store/lua/rates.lua``. The log has only some of the starts. For a start
that is not in the log, the next later one counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from celery_fairness.config.limit_spec import Limit, limit_numbered
from celery_fairness.control.scan import Reader

#: Number of parts of the log for a rate above 1,000 starts.
PARTS = 40


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a rate or a throttle at one moment.

    Attributes:
        starts: Starts that are allowed in a period.
        period_ms: Length of the period.
        count: Starts in the window that ends now.
        wait_ms: Time until the window has fewer starts, or until the next start is due; 0 is now.
    """

    starts: int
    period_ms: int
    count: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Starts:
    """The starts of a key that Redis has stored.

    Attributes:
        count: Number of the last start, counted since the first that is stored; 0 if none is.
        ideal_ms: Logical time that the last start would have with perfect spacing.
        most: The largest rate that was applied to the starts.
        asked: The limit that was applied to the last start, or None if unknown.
        log: ``(number, logical time)`` of some starts, in order.
    """

    count: int = 0
    ideal_ms: float = 0.0
    most: int = 0
    asked: Limit | None = None
    log: tuple[tuple[int, int], ...] = ()

    def rate(self, starts: int, period_ms: int, logical: float) -> Seen:
        """Return the state of a rate."""
        inside = [number for number, at in self.log if at + period_ms + 1 > logical]
        if not inside:
            return Seen(starts, period_ms, 0, 0)
        outside = [number for number, at in self.log if at + period_ms + 1 <= logical]
        part = max(1, -(-self.most // PARTS))
        gone = outside[-1] if outside else max(0, inside[0] - part)
        # If a window has more starts than the rate allows, all the extra ones must leave it first.
        first = max(gone + 1, self.count - starts + 1)
        leaves = next(at for number, at in self.log if number >= first)
        wait_ms = math.ceil(leaves + period_ms + 1 - logical)
        return Seen(starts, period_ms, self.count - gone, wait_ms)

    def throttle(self, starts: int, period_ms: int, logical: float) -> Seen:
        """Return the state of a throttle."""
        wait_ms = self.ideal_ms + period_ms / starts - logical if self.count else 0.0
        return Seen(starts, period_ms, 0, max(0, math.ceil(wait_ms)))


def starts_of(reader: Reader, key: str) -> Starts:
    """Return the stored starts of a key."""
    keys = reader.keys
    (count, ideal, most, asked), log, slots = reader.together(
        [
            ("HMGET", keys.of("window", key), "count", "ideal", "most", "asked"),
            ("ZRANGE", keys.of("starts", key), 0, -1),
            ("HGET", keys.of("pace", key), "asked"),
        ]
    )
    # For a limit without a rate, a gate stores the concurrency together with the run times.
    asked = asked or (f"{slots}||" if slots else None)
    limit = limit_numbered(f"{key}|{asked}") if asked else None
    if count is None:
        return Starts(asked=limit)
    pairs = (each.partition(" ") for each in log)
    times = tuple((int(number), int(at)) for number, _, at in pairs)
    return Starts(int(count), float(ideal), int(most), limit, times)
