"""The limits of queues: one of a whole queue, and one of each of its partitions.

A queue's numbers are stored in one place. Each claim reads them, so new numbers act on tasks that
already wait. The settings declare numbers. If an operator sets others, these replace them until
they are cleared.

    whole queue     key ``queue:QUEUE``; a claim checks it before it looks at the queue's tasks
    each partition  keys ``queue:QUEUE:PARTITION``; each task has the key at which its lane waits

A running task of a queue with partitions has both keys. A pause, a cool-down or an override acts on
the whole queue or on one partition, by the key.

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
    """The limits of one queue, without keys.

    Attributes:
        key: The key of the whole queue.
        declared: The limit of the whole queue in the settings.
        declared_part: The limit of each partition in the settings. None if it has no partitions.
        by_operator: The limit of the whole queue that an operator has set.
        part_by_operator: The limit of each partition that an operator has set.
    """

    key: str
    declared: Limit | None = None
    declared_part: Limit | None = None
    by_operator: Limit | None = None
    part_by_operator: Limit | None = None

    @property
    def chosen(self) -> tuple[Limit | None, Limit | None]:
        """The limits of the whole queue and of each partition that an operator has set."""
        return self.by_operator, self.part_by_operator

    @property
    def limit(self) -> Limit:
        """The limit of the whole queue in force."""
        return self.by_operator or self.declared or Limit("")

    @property
    def part_limit(self) -> Limit | None:
        """The limit of each partition in force. None if the tasks of the queue have none."""
        return self.declared_part and (self.part_by_operator or self.declared_part)


def read_row(text: str) -> QueueRow:
    """Read a row as the library has written it."""
    texts = texts_of_row(text)
    return QueueRow(
        text.partition(" ")[0], *(_read_queue(each) if each else None for each in texts)
    )


def texts_of_row(text: str) -> list[str]:
    """Return the limits of a row as text; each is "" if there is no row."""
    return text.split(" ")[2:] or ["", "", "", ""]
