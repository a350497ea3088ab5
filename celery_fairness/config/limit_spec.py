"""Limits beside the tenants' tiers: what each says, what it counts, and when it opens.

A limit has a key, and whoever names the key shares its counts. All tasks of a key are judged by the
newest numbers that came with one (``declared``), or by those that replaced them (an override). A
limit says any of:

    concurrency   leases of the key that live at once; 0 pauses
    rates         starts in any window of a length: a sliding window
    throttle      starts spaced evenly: one, and the next a period divided by the number later

A key may be stopped whatever its limits say (``stops``).
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: A limit whose numbers are those of its queue; and that of the queue as a whole.
OF_QUEUE, WHOLE = "q", "g"
#: What stands for a number of any size.
SIZE = "#"


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
