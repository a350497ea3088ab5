"""Limits beside the tenants' tiers: what each says, what it counts, and when it opens.

A limit has a key, and whoever names the key shares its counts. All tasks of a key are judged by the
newest numbers that came with one (``declared``), or by those that replaced them (an override). A
limit says any of:

    concurrency   leases of the key that live at once; 0 pauses
    rates         starts in any window of a length: a sliding window
    throttle      starts spaced evenly: one, and the next a period divided by the number later

A key may be stopped whatever its limits say (``stops``).

Windows live by the logical clock, which never runs faster than the server's, so that no jump of a
clock lets more starts into a window. Starts are numbered, and the log says when each was: a rate of
N is open when the start N before the next one has left the window. The last EXACT starts are all in
the log, of older ones every fortieth part of the largest rate; where one is missing the next later
one stands for it. So a rate is exact up to EXACT, and above it the limit is kept and up to a
fortieth of it is given away. One part more than the largest rate is kept: where that has left the
window the log has all that is in it, and a rate that is raised is open at once.

A throttle may be late (a worker sleeps, a claim comes after the moment) and makes up for it by at
most a tenth of its interval: two starts are never nearer than nine tenths of it. Starts that were
nearer, because nothing was enforced, leave no debt: one interval after the last of them it is open.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

#: Starts that are remembered one by one.
EXACT = 1000
#: Into so many parts is a larger rate's log divided.
PARTS = 40
#: Starts among which one is found that is given back.
LATER_AT_MOST = 64
#: A key is remembered so long after its last start, at least.
REMEMBERED_MS = 60_000
#: A limit whose numbers are those of its queue; and that of the queue as a whole.
OF_QUEUE, WHOLE = "q", "g"
#: What stands for a number of any size.
SIZE = "#"
#: What never opens by itself.
NEVER = float("inf")


class Limit(NamedTuple):
    """One named constraint of a task.

    Attributes:
        key: Whose counts; by the key pattern of the Open Job Spec, section 6.2.
        concurrency: At once; None is unlimited, 0 pauses.
        rates: ``(starts, period_ms)`` each.
        throttle: ``(starts, period_ms)``, spaced evenly; None where there is none.
        on_limit: ``wait``, ``reschedule`` or ``drop``.
        private: The key was made from the tenant: only this tenant's tasks have it.
        of: ``q``: its numbers are those of its queue (``queues``), and stand there alone; ``g``: it
            is that of the queue as a whole, which a task has only while it runs; "" elsewhere.
    """

    key: str
    concurrency: int | None = None
    rates: tuple[tuple[int, int], ...] = ()
    throttle: tuple[int, int] | None = None
    on_limit: str = "wait"
    private: bool = False
    of: str = ""

    @property
    def name(self) -> str:
        """Where its tasks wait: its key, and which numbers it says, whatever their size."""
        return shape_of(self._numbered)

    @property
    def _numbered(self) -> str:
        """Key and numbers."""
        concurrency, bar, windows = self.numbers.partition("|")
        if self.of == OF_QUEUE:
            concurrency = OF_QUEUE
        return f"{self.key}|{concurrency}{bar}{windows}"

    @property
    def numbers(self) -> str:
        """Its numbers as text."""
        concurrency = "" if self.concurrency is None else str(self.concurrency)
        rates = "+".join(map(window_text, self.rates))
        throttle = window_text(self.throttle) if self.throttle else ""
        return f"{concurrency}|{rates}|{throttle}"

    @property
    def text(self) -> str:
        """The whole limit as a word: without a space, a comma, or a line's end."""
        flag = "p" if self.private else self.of.strip(OF_QUEUE)
        return f"{self._numbered}|{self.on_limit[0]}{flag}"


#: The numbers of a limit's word.
_NUMBERS = re.compile(r"\|([0-9q#]*)\|([^|,]*)\|([^|,]*)")
_ON_LIMIT = {word[0]: word for word in ("wait", "reschedule", "drop")}


def write_limits(limits: tuple[Limit, ...]) -> str:
    """Return limits as one word; "" where there are none. Private ones stand first."""
    return ",".join(limit.text for limit in limits)


def read_limits(word: str) -> tuple[Limit, ...]:
    """Read what :func:`write_limits` wrote."""
    return tuple(map(_read_limit, word.split(","))) if word else ()


def _read_limit(text: str) -> Limit:
    key, concurrency, rates, throttle, flags = text.split("|")
    return Limit(
        key,
        int(concurrency) if concurrency.isdecimal() else None,
        tuple(map(_read_window, rates.split("+"))) if rates else (),
        _read_window(throttle) if throttle else None,
        _ON_LIMIT[flags[0]],
        flags.endswith("p"),
        OF_QUEUE if concurrency == OF_QUEUE else flags[1:].strip("p"),
    )


def limit_numbered(text: str) -> Limit:
    """Return a limit by its key and numbers."""
    return _read_limit(f"{text}|w")


def shape_of(words: str) -> str:
    """Return limits, or a lane, as they would be with any other numbers.

    ``#`` stands for a number. A concurrency of 0 stays: it stops the tasks that say it, and no
    others of its key.
    """
    return _NUMBERS.sub(_marks, words)


def _marks(found: re.Match[str]) -> str:
    concurrency, rates, throttle = found.groups()
    if concurrency not in ("0", OF_QUEUE):
        concurrency = concurrency and SIZE
    return f"|{concurrency}|{rates and SIZE}|{throttle and SIZE}"


def without_whole(word: str) -> str:
    """Return limits without that of the queue as a whole: what a task has while it waits."""
    return write_limits(tuple(limit for limit in read_limits(word) if limit.of != WHOLE))


def of_one_key(limits: tuple[Limit, ...]) -> list[Limit]:
    """Return limits as one for each key, for counting a start: it has the windows of all."""
    found: dict[str, Limit] = {}
    for limit in limits:
        same = found.get(limit.key)
        found[limit.key] = limit if same is None else _both(same, limit)
    return list(found.values())


def _both(one: Limit, other: Limit) -> Limit:
    # The wider spacing is the stricter one.
    throttles = [each for each in (one.throttle, other.throttle) if each]
    throttle = max(throttles, key=lambda each: each[1] / each[0], default=None)
    rates = one.rates if one.rates == other.rates else one.rates + other.rates
    return one._replace(rates=rates, throttle=throttle)


def window_text(window: tuple[int, int]) -> str:
    """Return starts and their time in ms as one word."""
    starts, period_ms = window
    return f"{starts}/{period_ms}"


def _read_window(text: str) -> tuple[int, int]:
    starts, _, period_ms = text.partition("/")
    return int(starts), int(period_ms)


@dataclass(slots=True)
class Window:
    """What a key remembers of its starts.

    Attributes:
        count: How many there were since it is remembered.
        ideal_ms: When the last one would have been with perfect spacing, logical.
        most: The largest rate that was asked of it.
        kept_ms: How long it is remembered after a start.
        asked: The numbers by which the last one was judged, for people who look.
        log: By number, when a start was, logical; not of all.

    Weakness: of a period longer than any before the log knows less than it should: where a rate is
    replaced by one of such a period, the first that it has stands for those that it has not.
    """

    count: int = 0
    ideal_ms: float = 0.0
    most: int = 0
    kept_ms: int = REMEMBERED_MS
    asked: str = ""
    log: dict[int, int] = field(default_factory=dict)

    def rate_wait_ms(self, starts: int, period_ms: int, logical: int) -> float:
        """Return how long until one more start fits into a window; 0: now."""
        if self.count < starts:
            return 0
        number = min(number for number in self.log if number > self.count - starts)
        # Two starts of one millisecond and its neighbours may be nearer than they look.
        return max(0, self.log[number] + period_ms + 1 - logical)

    def throttle_wait_ms(
        self, starts: int, period_ms: int, logical: int, before: float = 0
    ) -> float:
        """Return how long until a start is due that has ``before`` others before it; 0: now."""
        ideal, before = (self.ideal_ms, before + 1) if self.count else (logical, before)
        return max(0, ideal + before * period_ms / starts - logical)

    def start(self, limit: Limit, logical: int) -> None:
        """Count one start of a task that has ``limit``."""
        self.count += 1
        self.asked = limit.numbers
        interval = limit.throttle[1] / limit.throttle[0] if limit.throttle else 0.0
        late_ms = max(1.0, interval / 10)
        ideal_ms = max(self.ideal_ms + interval, logical - late_ms) if interval else logical
        # Where nothing is enforced many start at once: they leave no debt.
        self.ideal_ms = min(ideal_ms, logical)
        for starts, period_ms in limit.rates:
            self.most = max(self.most, starts)
            self.kept_ms = max(self.kept_ms, period_ms)
        if limit.throttle:
            self.kept_ms = max(self.kept_ms, limit.throttle[1])
        self.log[self.count] = logical
        older, part = self.count - EXACT, max(1, -(-self.most // PARTS))
        if older in self.log and older % part:
            del self.log[older]
        for number in sorted(self.log)[:2]:
            if number <= self.count - self.most - part:
                del self.log[number]

    def give_back(self, limit: Limit, at: int) -> bool:
        """Forget the start of ``at``, whose body did not begin; say whether it was found.

        Later ones move up by one. Only the last LATER_AT_MOST are looked at.
        """
        last = sorted(self.log)[-LATER_AT_MOST:]
        found = max((number for number in last if self.log[number] == at), default=None)
        if found is None:
            return False
        for number in range(found, self.count):
            self.log[number] = self.log[number + 1]
        del self.log[self.count]
        self.count -= 1
        if self.log:
            interval = limit.throttle[1] / limit.throttle[0] if limit.throttle else 0.0
            # Not before what the start that is the last one now demands.
            least = self.log[self.count] - max(1.0, interval / 10)
            self.ideal_ms = min(self.ideal_ms, max(self.ideal_ms - interval, least))
        return True
