"""The numbers of limits, and the log of the starts that rates and throttles count.

A limit is a text ``key|numbers|flags``, and its numbers are ``C3;R100/60000;T5/1000``: a letter
and a value each. This module reads such texts by itself. It shares no code with the package,
because it judges the package.
"""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
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
        burst: Leases at once of a tenant whose claim finds nothing else.
        units: What a start of the task counts at the rates.
        slots: What the task counts at the concurrency.
    """

    key: str
    concurrency: int | None = None
    rates: tuple[Window, ...] = ()
    throttle: Window | None = None
    action: str = WAIT
    private: bool = False
    of: str = ""
    local: int | None = None
    units: int = 1
    slots: int = 1
    burst: int | None = None

    @property
    def takes(self) -> int:
        """How many slots the task takes now. If it takes more than the limit, it takes all."""
        most = self.slots if self.concurrency is None else self.concurrency
        return max(1, min(self.slots, most))

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
    key, text, flags = word.split("|")
    by_letter = {part[0]: part[1:] for part in text.split(";") if part}
    concurrency, throttle = by_letter.get("C"), by_letter.get("T")
    return Limit(
        key,
        None if concurrency is None else int(concurrency),
        tuple(map(_window, by_letter["R"].split("+"))) if "R" in by_letter else (),
        None if throttle is None else _window(throttle),
        flags[0],
        flags[1:] == "p",
        "q" if text == "q" else flags[1:].strip("p"),
        units=int(by_letter.get("U", 1)),
        slots=int(by_letter.get("S", 1)),
    )


@functools.cache
def without_amounts(words: str) -> str:
    """Return limits without what one task takes: tasks that differ by this share a lane."""
    return re.sub(r"([|;][SU])\d+", r"\g<1>1", words)


def one_per_key(limits: tuple[Limit, ...]) -> list[Limit]:
    """Join the limits of each key: all their rates hold, and the wider spacing."""
    joined: dict[str, Limit] = {}
    for limit in limits:
        one = joined.setdefault(limit.key, limit)
        if one is not limit:
            rates = one.rates if one.rates == limit.rates else one.rates + limit.rates
            wider = limit if limit.interval_ms > one.interval_ms else one
            counts = [x.concurrency for x in (one, limit) if x.concurrency is not None]
            joined[limit.key] = one._replace(
                concurrency=min(counts, default=None),
                rates=rates,
                throttle=wider.throttle,
                units=max(one.units, limit.units),
                slots=max(one.slots, limit.slots),
            )
    return list(joined.values())


def units_of(words: str) -> dict[str, int]:
    """Return by key how many units a task with these limits takes, if that is not 1."""
    return {x.key: x.units for x in one_per_key(read_limits(words)) if x.units > 1}


@functools.cache
def several_of(words: str) -> frozenset[str]:
    """Return the keys of which a task with these limits takes several slots or units."""
    limits = one_per_key(read_limits(words))
    return frozenset(x.key for x in limits if x.units > 1 or x.slots > 1)


@dataclass
class StartLog:
    """The starts of one key by the logical clock.

    Attributes:
        windows: By period, the times of the starts that were in the window at the last start, with
            the units that count for each time.
        ideal: When the last start should have been, by the throttle. None if there was none.
        forgotten_at: When the log is forgotten.
        left: By period, the starts that had left the window at a later start. They count for a look
            at an earlier time alone.
    """

    windows: dict[int, dict[int, int]] = field(default_factory=dict)
    ideal: float | None = None
    forgotten_at: int = 0
    left: defaultdict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))

    def known(self, period_ms: int) -> dict[int, int]:
        """Return the starts of a period. A period that is new has those of the longest one."""
        return self.windows.get(period_ms) or self.windows.get(max(self.windows, default=0), {})

    def rate_wait_ms(self, window: Window, time: int, units: int = 1) -> float:
        """Return how long a start of so many units does not fit into a window.

        Two starts may be up to 1 ms nearer than their whole milliseconds show.
        """
        most, period_ms = window
        starts = self.left[period_ms] | self.known(period_ms)
        inside = {at: n for at, n in starts.items() if time < at + period_ms + 1}
        if units > most:
            return math.inf
        wait, left = 0, sum(inside.values())
        for at, counted in sorted(inside.items()):
            if left + units <= most:
                break
            wait, left = at + period_ms + 1 - time, left - counted
        return wait

    def throttle_wait_ms(self, limit: Limit, time: int, ahead: int, early: bool) -> float:
        """Return how long the spacing keeps the next start, behind so many reserved ones.

        A promotion comes early by a tenth of the interval, at least 10 ms, at most two intervals.
        """
        interval = limit.interval_ms
        wait = (time if self.ideal is None else self.ideal + interval) + ahead * interval - time
        if early:
            wait -= max(interval / 10, min(10, 2 * interval))
        return max(0, wait) if limit.throttle else 0

    def start(self, limit: Limit, time: int) -> None:
        """Count a start.

        A start may be late by a tenth of the interval, and the next one makes up for that. If the
        limit has a rate, the log forgets the other periods but the longest.
        """
        interval = limit.interval_ms
        ideal = max((self.ideal or 0) + interval, time - max(1, interval / 10))
        self.ideal = min(time, ideal) if interval else time
        assert all(starts <= 40 for starts, _ in limit.rates), "a part of a period is not described"
        own = _periods_of(limit)
        longest = max(own | set(self.windows))
        periods = own | ({longest} if limit.rates else set(self.windows))
        known = {each: self.known(each) for each in periods}
        for each, starts in known.items():
            self.left[each] |= {at: n for at, n in starts.items() if at + each + 1 <= time}
        self.windows = {
            each: {at: n for at, n in starts.items() if at + each + 1 > time}
            for each, starts in known.items()
        }
        for starts in self.windows.values():
            starts[time] = starts.get(time, 0) + limit.units
        self.forgotten_at = time + max(LOG_KEPT_MS, longest)

    def give_back(self, limit: Limit, at: int) -> bool:
        """Take out a start of a time. Return whether a start is left in the log."""
        if not any(at in starts for starts in self.windows.values()):
            return True
        for starts in self.windows.values():
            if at in starts:
                starts[at] = max(0, starts[at] - limit.units)
                if not starts[at]:
                    del starts[at]
        self.windows = {each: starts for each, starts in self.windows.items() if starts}
        assert self.ideal is not None
        interval = limit.interval_ms
        latest = max(max(self.windows.get(each, {0: 0})) for each in {0, *_periods_of(limit)})
        ideal = max(self.ideal - interval, latest - max(1, interval / 10))
        self.ideal = min(self.ideal, ideal)
        return bool(self.windows)

    def correct(self, at: int, more: int, time: int) -> None:
        """A start of a time counts so many units more, or fewer. Outside of a window, from now."""
        for period_ms, starts in self.windows.items():
            if at in starts and at + period_ms + 1 > time:
                starts[at] = max(0, starts[at] + more)
            elif more > 0:
                known = {x: n for x, n in starts.items() if x + period_ms + 1 > time}
                known[time] = known.get(time, 0) + more
                self.windows[period_ms] = known
        if more > 0 and self.windows:
            forgotten_at = time + max(LOG_KEPT_MS, max(self.windows))
            self.forgotten_at = max(self.forgotten_at, forgotten_at)


def _periods_of(limit: Limit) -> set[int]:
    """Return the periods in which a limit counts starts.

    A throttle counts those of its last hundred intervals, if no rate has a longer period.
    """
    periods = {period_ms for _, period_ms in limit.rates}
    if limit.throttle:
        own = math.ceil(limit.interval_ms * min(100, limit.throttle[0]))
        periods |= {own} if own > max(periods, default=0) else set()
    return periods
