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
from typing import Final, Literal

from celery_fairness.config.limit_spec import Limit, read_limits

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


def write_queue(limit: Limit) -> str:
    """Return the limit of a queue, without its key, as the text in Redis: ``NUMBERS|ACTION``."""
    return limit.text.removeprefix(f"{limit.key}|")


def _read_queue(text: str) -> Limit:
    return read_limits(f"|{text}")[0]


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue's limit.

    Attributes:
        key: The key of the whole queue.
        parts: Whether each partition has the numbers for itself.
        declared: The limit of the settings, without a key.
        by_operator: The limit that an operator has set, without a key.
    """

    key: str
    parts: bool = False
    declared: Limit | None = None
    by_operator: Limit | None = None

    @property
    def limit(self) -> Limit:
        """The limit in force, without a key."""
        return self.by_operator or self.declared or Limit("")


def read_row(text: str) -> QueueRow:
    """Read a row as the library has written it."""
    key, shape, _version, *numbers = text.split(" ")
    declared, by_operator = (_read_queue(each) if each else None for each in numbers)
    return QueueRow(key, shape == "parts", declared, by_operator)
