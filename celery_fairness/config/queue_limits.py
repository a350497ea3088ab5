"""The limits of queues: one for a whole queue, or one for each of its partitions.

A queue's numbers are stored in one place. Each claim reads them, so new numbers act on tasks that
already wait. The settings declare numbers. If an operator sets others, these replace them until
they are cleared.

    whole        key ``queue:QUEUE``; a claim checks it before it looks at the queue's tasks
    partitioned  keys ``queue:QUEUE:PARTITION``; each task has the key at which its lane waits

A pause, a cool-down or an override of the key ``queue:QUEUE`` always acts on the whole queue.

Weakness: a queue without a row has no limit, so a pause of its key must make a row first
(``KNOWN``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from celery_fairness.config.limit_spec import Limit, Window, read_limits

#: The beginning of every key of a queue's limit.
PREFIX = "queue:"
#: The names of the queues in which parked tasks wait begin with it. No queue of users does.
PARKED_QUEUES = "@parked:"
#: Changes of a queue's row: declare numbers, set an operator's, clear these, or only make the row.
DECLARED: Final = "declare"
SET: Final = "set"
CLEARED: Final = "clear"
KNOWN: Final = "know"
How = Literal["declare", "set", "clear", "know"]


class QueueNumbers(NamedTuple):
    """The numbers of one queue's limit. In a partitioned queue each partition has them.

    Attributes:
        concurrency: Tasks at once over all processes. None is unlimited, 0 pauses.
        rates: Windows of starts.
        throttle: Starts in a period, spaced evenly. None means no throttle.
        on_limit: ``wait``, ``reschedule`` or ``drop``.
        local: Tasks at once in one process. None is unlimited.
    """

    concurrency: int | None = None
    rates: tuple[Window, ...] = ()
    throttle: Window | None = None
    on_limit: str = "wait"
    local: int | None = None

    @property
    def text(self) -> str:
        """The numbers in the text form that Redis stores."""
        local = "" if self.local is None else self.local
        return f"{self.limit('').numbers}|{self.on_limit[0]}|{local}"

    def limit(self, key: str) -> Limit:
        """Return a limit of ``key`` with these numbers."""
        return Limit(key, self.concurrency, self.rates, self.throttle, self.on_limit)


def read_numbers(text: str) -> QueueNumbers:
    """Read what :attr:`QueueNumbers.text` wrote."""
    numbers, _, local = text.rpartition("|")
    _, concurrency, rates, throttle, on_limit, *_ = read_limits(f"_|{numbers}")[0]
    return QueueNumbers(concurrency, rates, throttle, on_limit, int(local) if local else None)


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue's limit.

    Attributes:
        key: The key of the whole queue.
        parts: Whether each partition has the numbers for itself.
        declared: The numbers of the settings.
        by_operator: The numbers that an operator has set.
    """

    key: str
    parts: bool = False
    declared: QueueNumbers | None = None
    by_operator: QueueNumbers | None = None

    @property
    def numbers(self) -> QueueNumbers:
        """The numbers in force."""
        return self.by_operator or self.declared or QueueNumbers()


def read_row(text: str) -> QueueRow:
    """Read a row as the library has written it."""
    key, shape, _version, *numbers = text.split(" ")
    declared, by_operator = (read_numbers(each) if each else None for each in numbers)
    return QueueRow(key, shape == "parts", declared, by_operator)
