"""Limits in addition to the tenants' tiers, and their text form.

A limit has a key, and all tasks with the key share its counts. The newest numbers that a task of
the key brought apply to all of them (``declared``), unless an operator has overridden them. A hold
stops a key independently of its limits (``stops``).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

#: Values of ``Limit.of``: a limit with its queue's numbers, and the limit of the whole queue.
OF_QUEUE, WHOLE = "q", "g"
#: The placeholder for any number.
SIZE = "#"
#: A number of starts, and their period in milliseconds.
Window = tuple[int, int]
OnLimit = Literal["wait", "reschedule", "drop"]
#: The actions for a task over a limit, the mildest first.
ACTIONS: tuple[OnLimit, ...] = ("wait", "reschedule", "drop")
#: The actions by their letter in a limit's text, and in answers of the library.
BY_LETTER: Mapping[str, OnLimit] = {word[0]: word for word in ACTIONS}


class Limit(NamedTuple):
    """One named constraint of a task.

    Attributes:
        key: The key, which matches the pattern of the Open Job Spec, section 6.2.
        concurrency: Tasks at once. None is unlimited, 0 pauses.
        rates: Sliding windows of starts. After a merge none implies another, and the shortest is
            first.
        throttle: Starts in a period, spaced evenly: the interval is the period divided by the
            starts. None means no throttle.
        on_limit: The action for a task over the limit.
        private: The key contains the tenant, so only this tenant's tasks have it.
        of: ``q``: the numbers are stored with the queue (``queues``) and not here. ``g``: this is
            the limit of the whole queue, which a task has only while it runs. "": any other limit.
    """

    key: str
    concurrency: int | None = None
    rates: tuple[Window, ...] = ()
    throttle: Window | None = None
    on_limit: str = "wait"
    private: bool = False
    of: str = ""

    @property
    def name(self) -> str:
        """The place where its tasks wait: key and kinds of numbers, with SIZE for each number."""
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
        """The limit as text without spaces, commas and line ends."""
        flag = "p" if self.private else self.of.strip(OF_QUEUE)
        return f"{self._numbered}|{self.on_limit[0]}{flag}"


#: The numbers in a limit's text.
_NUMBERS = re.compile(r"\|([0-9q#]*)\|([^|,]*)\|([^|,]*)")


def write_limits(limits: Iterable[Limit]) -> str:
    """Return limits as one text; "" for none. Private limits come first."""
    return ",".join(map(_limit_text, limits))


@functools.lru_cache(maxsize=4096)
def _limit_text(limit: Limit) -> str:
    return limit.text


def read_limits(text: str) -> tuple[Limit, ...]:
    """Read what :func:`write_limits` wrote."""
    return tuple(map(_read_limit, text.split(","))) if text else ()


def _read_limit(text: str) -> Limit:
    key, concurrency, rates, throttle, flags = text.split("|")
    return Limit(
        key,
        int(concurrency) if concurrency.isdecimal() else None,
        tuple(map(_read_window, rates.split("+"))) if rates else (),
        _read_window(throttle) if throttle else None,
        BY_LETTER[flags[0]],
        flags.endswith("p"),
        OF_QUEUE if concurrency == OF_QUEUE else flags[1:].strip("p"),
    )


def shape_of(text: str) -> str:
    """Return the text of limits, or of a lane, with ``#`` in place of each number.

    A concurrency of 0 stays, because it stops only the tasks that have it, not all of the key.
    """
    return _NUMBERS.sub(_with_placeholders, text)


def _with_placeholders(found: re.Match[str]) -> str:
    concurrency, rates, throttle = found.groups()
    if concurrency not in ("0", OF_QUEUE):
        concurrency = concurrency and SIZE
    return f"|{concurrency}|{rates and SIZE}|{throttle and SIZE}"


def window_text(window: Window) -> str:
    """Return a window as text: ``STARTS/PERIOD_MS``."""
    starts, period_ms = window
    return f"{starts}/{period_ms}"


def _read_window(text: str) -> Window:
    starts, _, period_ms = text.partition("/")
    return int(starts), int(period_ms)
