"""The numbers of limits, and the log of the starts that rates and throttles count.

A limit is a text ``key|concurrency|rates|throttle|flags``. This module reads such texts by itself.
It shares no code with the package, because it judges the package.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: ``(starts, period_ms)``.
Window = tuple[int, int]

WAIT, RESCHEDULE, DROP = "w", "r", "d"
#: How long a call waits that cannot know when a limit opens, in ms.
AGAIN_MS = 1000
#: A log is kept this long after the last start, at least, in ms.
LOG_KEPT_MS = 60_000
#: A start is given back if it is one of this many last ones.
GIVEN_BACK_AMONG = 64


class Limit(NamedTuple):
    """One limit, as a task names it or with the numbers that judge it now.

    Attributes:
        key: Whose leases and starts are counted.
        concurrency: Leases at once. None is unlimited, 0 pauses.
        rates: At most so many starts in any window of so many ms.
        throttle: Starts are spaced evenly. None is no spacing.
        action: `WAIT`, `RESCHEDULE` or `DROP` for a task that the limit rejects.
        private: The key contains the tenant.
        of: ``q`` for a partition of a queue, ``g`` for a queue as a whole, otherwise "".
        local: Leases at once in one process, for a limit of a queue.
    """

    key: str
    concurrency: int | None = None
    rates: tuple[Window, ...] = ()
    throttle: Window | None = None
    action: str = WAIT
    private: bool = False
    of: str = ""
    local: int | None = None

    @property
    def interval_ms(self) -> float:
        """How far apart the throttle spaces two starts; 0 without a throttle."""
        return self.throttle[1] / self.throttle[0] if self.throttle else 0

    def with_numbers(self, numbers: Mapping[str, Any]) -> Limit:
        """Return the limit with other numbers."""
        return self._replace(**numbers)


def _window(text: str) -> Window:
    starts, period_ms = text.split("/")
    return int(starts), int(period_ms)


@functools.cache
def read_limits(words: str) -> tuple[Limit, ...]:
    """Read limits with a comma between them; "" has none."""
    return tuple(map(_read_limit, words.split(","))) if words else ()


def _read_limit(word: str) -> Limit:
    key, concurrency, rates, throttle, flags = word.split("|")
    return Limit(
        key,
        int(concurrency) if concurrency.isdecimal() else None,
        tuple(map(_window, rates.split("+"))) if rates else (),
        _window(throttle) if throttle else None,
        flags[0],
        flags[1:] == "p",
        "q" if concurrency == "q" else flags[1:].strip("p"),
    )


def one_per_key(limits: tuple[Limit, ...]) -> list[Limit]:
    """Join the limits of each key: all their rates hold, and the wider spacing."""
    joined: dict[str, Limit] = {}
    for limit in limits:
        one = joined.setdefault(limit.key, limit)
        if one is not limit:
            rates = one.rates if one.rates == limit.rates else one.rates + limit.rates
            wider = limit if limit.interval_ms > one.interval_ms else one
            joined[limit.key] = one._replace(rates=rates, throttle=wider.throttle)
    return list(joined.values())


@dataclass
class StartLog:
    """The starts of one key by the logical clock.

    Attributes:
        count: How many starts there were.
        times: Number and time of the last starts, as many as the largest rate and one more.
        ideal: When the last start should have been, by the throttle.
        most: The largest rate that was ever requested.
        kept_ms: How long the log is kept after the last start.
    """

    count: int = 0
    times: list[tuple[int, int]] = field(default_factory=list)
    ideal: float = 0.0
    most: int = 0
    kept_ms: int = LOG_KEPT_MS

    @property
    def forgotten_at(self) -> int:
        """When the log is forgotten."""
        return self.times[-1][1] + self.kept_ms

    def rate_wait_ms(self, window: Window, time: int) -> int:
        """Return how long one more start does not fit into a window.

        If the log no longer has a start, the next later one stands for it. Two starts may be up to
        1 ms nearer than their whole milliseconds show.
        """
        starts, period_ms = window
        if self.count < starts:
            return 0
        first = next(at for number, at in self.times if number > self.count - starts)
        return max(0, first + period_ms + 1 - time)

    def throttle_wait_ms(self, limit: Limit, time: int, ahead: int, early: bool) -> float:
        """Return how long the spacing keeps the next start, behind so many reserved ones.

        A promotion comes early by a tenth of the interval, at least 10 ms, at most two intervals.
        """
        interval = limit.interval_ms
        wait = (self.ideal + interval if self.count else time) + ahead * interval - time
        if early:
            wait -= max(interval / 10, min(10, 2 * interval))
        return max(0, wait) if limit.throttle else 0

    def start(self, limit: Limit, time: int) -> None:
        """Count a start.

        A start may be late by a tenth of the interval, and the next one makes up for that.
        """
        self.count += 1
        interval = limit.interval_ms
        ideal = max(self.ideal + interval, time - max(1, interval / 10)) if interval else time
        self.ideal = min(time, ideal)
        self.times.append((self.count, time))
        self.most = max([self.most, *(starts for starts, _ in limit.rates)])
        windows = (*limit.rates, *([limit.throttle] if limit.throttle else ()))
        self.kept_ms = max([self.kept_ms, *(period_ms for _, period_ms in windows)])
        assert self.most <= 40, "above a rate of 40 the log keeps parts, which is not described"
        self.times = [each for each in self.times if each[0] > self.count - self.most - 1]

    def give_back(self, limit: Limit, at: int) -> bool:
        """Take out the last start of a time. Return whether a start is left in the log."""
        among = self.times[-GIVEN_BACK_AMONG:]
        found = next((each for each in reversed(among) if each[1] == at), None)
        if found is None:
            return True
        self.times = [
            (number - (number > found[0]), time)
            for number, time in self.times
            if number != found[0]
        ]
        if not self.times:
            return False
        self.count -= 1
        interval, latest = limit.interval_ms, self.times[-1][1]
        ideal = max(self.ideal - interval, latest - max(1, interval / 10))
        self.ideal = min(self.ideal, ideal)
        return True
