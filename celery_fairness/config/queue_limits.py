"""The limits of queues: what each lets start of its tasks, as a whole or of each partition.

A queue's numbers lie in one place and are read by each claim, so new ones act on what waits. The
settings declare some; those that people set stand in their place until they are cleared.

    whole        key ``queue:QUEUE``; asked before anything of the queue is looked at
    partitioned  keys ``queue:QUEUE:PARTITION``; each task names its own, its lane waits there

What people say of the key ``queue:QUEUE`` (a pause, a cool-down, an override) is always of the
queue as a whole.

Weakness: a queue without a row here has no limit, so whoever pauses the key of one that has none
makes a row first (``KNOWN``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from celery_fairness.config.limit_spec import (
    OF_QUEUE,
    Limit,
    read_limits,
    window_text,
    write_limits,
)

#: What every key of a queue's limit begins with.
PREFIX = "queue:"
#: What is said of a queue: its declared numbers, those of people, their end, or that it has a key.
DECLARED: Final = "declare"
SET: Final = "set"
CLEARED: Final = "clear"
KNOWN: Final = "know"
How = Literal["declare", "set", "clear", "know"]


@dataclass(frozen=True, slots=True)
class QueueNumbers:
    """The numbers of one queue's limit; of each partition where it has some.

    Attributes:
        concurrency: At once over all processes; None is unlimited, 0 pauses.
        rates: ``(starts, period_ms)`` each.
        throttle: ``(starts, period_ms)``, spaced evenly; None where there is none.
        on_limit: ``wait``, ``reschedule`` or ``drop``.
        local: At once in one process; None is unlimited.
    """

    concurrency: int | None = None
    rates: tuple[tuple[int, int], ...] = ()
    throttle: tuple[int, int] | None = None
    on_limit: str = "wait"
    local: int | None = None

    @property
    def text(self) -> str:
        """The same as the functions keep it."""
        return "|".join(
            (
                _number_text(self.concurrency),
                "+".join(map(window_text, self.rates)),
                window_text(self.throttle) if self.throttle else "",
                self.on_limit[0],
                _number_text(self.local),
            )
        )

    def limit(self, key: str, of: str = "") -> Limit:
        """Return the limit that they are of a key."""
        return Limit(key, self.concurrency, self.rates, self.throttle, self.on_limit, of=of)


def _number_text(number: int | None) -> str:
    return "" if number is None else str(number)


def read_numbers(text: str) -> QueueNumbers:
    """Read what :attr:`QueueNumbers.text` wrote."""
    concurrency, rates, throttle, action, local = text.split("|")
    limit = read_limits(f"_|{concurrency}|{rates}|{throttle}|{action}")[0]
    return QueueNumbers(
        limit.concurrency,
        limit.rates,
        limit.throttle,
        limit.on_limit,
        int(local) if local else None,
    )


@dataclass(frozen=True, slots=True)
class QueueRow:
    """What is known of one queue.

    Attributes:
        key: Of the queue as a whole.
        parts: Its numbers are those of each partition.
        version: Grows with what is said of any queue.
        declared: By the settings.
        said: By people.
    """

    key: str
    parts: bool = False
    version: int = 0
    declared: QueueNumbers | None = None
    said: QueueNumbers | None = None

    @property
    def numbers(self) -> QueueNumbers:
        """Those in force."""
        return self.said or self.declared or QueueNumbers()

    @property
    def text(self) -> str:
        """The same as the functions keep it."""
        said = (each.text if each else "" for each in (self.declared, self.said))
        return " ".join((self.key, "parts" if self.parts else "whole", str(self.version), *said))

    def after(self, how: str, parts: bool, numbers: QueueNumbers | None) -> QueueRow:
        """Return what it is when something was said of it."""
        if how == DECLARED:
            return replace(self, parts=parts and numbers is not None, declared=numbers)
        if how == KNOWN:
            return self
        return replace(self, said=numbers if how == SET else None)


def without_partition(limits: str) -> str:
    """Return the limits of a task that leaves its queue, and with it its partition there."""
    return write_limits(tuple(each for each in read_limits(limits) if each.of != OF_QUEUE))


def read_row(text: str) -> QueueRow:
    """Read what :attr:`QueueRow.text` wrote."""
    key, shape, version, *numbers = text.split(" ")
    declared, said = (read_numbers(each) if each else None for each in numbers)
    return QueueRow(key, shape == "parts", int(version), declared, said)
