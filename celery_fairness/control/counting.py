"""How many starts of a key its windows hold, and when they let the next one start.

As the function library judges them (``store/lua/rates.lua``): where a start is not in the log, the
next later one stands for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from celery_fairness.config.limit_spec import Limit, limit_numbered
from celery_fairness.control.scan import Reader

#: Into so many parts the log of a rate above 1,000 starts is divided.
PARTS = 40


@dataclass(frozen=True, slots=True)
class Seen:
    """A rate, or a throttle, at one moment.

    Attributes:
        starts: Its limit.
        period_ms: Its period.
        count: Starts in the window that ends now.
        wait_ms: How long until the window holds less, or the next start is due; 0: now.
    """

    starts: int
    period_ms: int
    count: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Starts:
    """What Redis remembers of the starts of a key.

    Attributes:
        count: How many there were since they are remembered; 0: none is.
        ideal_ms: When the last one would have been with perfect spacing, logical.
        most: The largest rate that was asked of them.
        asked: By which limit the last one was judged; None: not known.
        log: Numbers and logical times, in their order; not of all.
    """

    count: int = 0
    ideal_ms: float = 0.0
    most: int = 0
    asked: Limit | None = None
    log: tuple[tuple[int, int], ...] = ()

    def rate(self, starts: int, period_ms: int, logical: float) -> Seen:
        """Return a rate as it stands."""
        inside = [number for number, at in self.log if at + period_ms + 1 > logical]
        if not inside:
            return Seen(starts, period_ms, 0, 0)
        outside = [number for number, at in self.log if at + period_ms + 1 <= logical]
        part = max(1, -(-self.most // PARTS))
        gone = outside[-1] if outside else max(0, inside[0] - part)
        # Where more than it allows are inside, all that are too many must leave first.
        first = max(gone + 1, self.count - starts + 1)
        leaves = next(at for number, at in self.log if number >= first)
        wait_ms = math.ceil(leaves + period_ms + 1 - logical)
        return Seen(starts, period_ms, self.count - gone, wait_ms)

    def throttle(self, starts: int, period_ms: int, logical: float) -> Seen:
        """Return a throttle as it stands."""
        wait_ms = self.ideal_ms + period_ms / starts - logical if self.count else 0.0
        return Seen(starts, period_ms, 0, max(0, math.ceil(wait_ms)))


def starts_of(reader: Reader, key: str) -> Starts:
    """Return what is remembered of the starts of a key."""
    keys = reader.keys
    (count, ideal, most, asked), log, slots = reader.together(
        [
            ("HMGET", keys.of("window", key), "count", "ideal", "most", "asked"),
            ("ZRANGE", keys.of("starts", key), 0, -1),
            ("HGET", keys.of("pace", key), "asked"),
        ]
    )
    # Of a limit that says slots alone a gate notes the number with how long they are held.
    asked = asked or (f"{slots}||" if slots else None)
    limit = limit_numbered(f"{key}|{asked}") if asked else None
    if count is None:
        return Starts(asked=limit)
    pairs = (each.partition(" ") for each in log)
    times = tuple((int(number), int(at)) for number, _, at in pairs)
    return Starts(int(count), float(ideal), int(most), limit, times)
