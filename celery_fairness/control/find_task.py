"""Finds waiting tasks by id or tenant, running tasks, and dead letters.

Weakness: nothing is ordered by task id, so a search reads the messages of all waiting tasks, a
bounded number at a time. It may miss a task that moves meanwhile, so callers search twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from celery_fairness.control.keys import ORDER_LENGTH, lane_parts, read_row
from celery_fairness.control.scan import Reader, batches
from celery_fairness.control.views import DeadLetter


class MessageNames(NamedTuple):
    """The ids and the name in a message's headers; "" if a header is missing."""

    task_id: str = ""
    task: str = ""
    parent_id: str = ""
    root_id: str = ""


class Place(NamedTuple):
    """The place and the record of a task.

    Attributes:
        queue: Queue of the task.
        record: Its record in Redis.
        state: ``waiting``, ``later``, ``running`` or ``dead``.
        owner: Process that runs it, or "" if none does.
        due_ms: Its eta by the server's clock, or None without one.
    """

    queue: str
    record: str
    state: str = "waiting"
    owner: str = ""
    due_ms: float | None = None

    @property
    def task_id(self) -> str:
        """Its id; the delivery tag if its message has none."""
        return read_message(self.record).task_id or self.fields[1]

    @property
    def fields(self) -> list[str]:
        """The fields of its record before the message."""
        return self.record.partition("\n")[0].split(" ")

    @property
    def tenant(self) -> str:
        """The charged tenant, in its form in keys; "" is a system task."""
        return self.fields[6]


def read_message(record: str) -> MessageNames:
    """Return the ids and the name in the message of a record."""
    try:
        headers = json.loads(record.partition("\n")[2])["headers"]
        return MessageNames(
            *(_text(headers.get(name)) for name in ("id", "task", "parent_id", "root_id"))
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return MessageNames()


def _text(value: Any) -> str:
    is_name = isinstance(value, (str, int)) and not isinstance(value, bool)
    return str(value) if is_name else ""


def waiting(reader: Reader) -> Iterator[Place]:
    """Yield every waiting task; some may occur twice."""
    yield from _later(reader)
    for queue, key in _lanes(reader, ""):
        for record in reader.list_items(key):
            yield Place(queue, record)
    yield from _came_back(reader, "")


def waiting_of(reader: Reader, tenant: str, together: int) -> Iterator[list[Place]]:
    """Yield the waiting tasks of a tenant in groups; it may miss tasks that are put meanwhile.

    Args:
        reader: The reader of the installation.
        tenant: The tenant, in its form in keys.
        together: Most tasks in a group. The caller must remove them before it takes the next
            group, because each group is read from the front of a lane.
    """
    begins = f"tenant:{tenant}"
    for places in (_later(reader), _came_back(reader, begins)):
        yield from batches((each for each in places if each.tenant == tenant), together)
    for queue, key in _lanes(reader, begins):
        others = 0
        for _ in range(0, reader.read("LLEN", key), together):
            # The lane may be another tenant's whose name begins with this one's.
            some = reader.read("LRANGE", key, others, others + together - 1)
            its = [each for each in (Place(queue, one) for one in some) if each.tenant == tenant]
            others += len(some) - len(its)
            yield its


def _later(reader: Reader) -> Iterator[Place]:
    for queue in reader.names("later"):
        for member, due in reader.pairs("ZSCAN", reader.keys.of("later", queue)):
            yield Place(queue, member[ORDER_LENGTH:], "later", due_ms=float(due))


def _lanes(reader: Reader, begins: str) -> Iterator[tuple[str, str]]:
    for name in reader.names("lane"):
        key, _, queue = lane_parts("lane", name)
        if key.startswith(begins):
            yield queue, reader.keys.of("lane", name)


def _came_back(reader: Reader, begins: str) -> Iterator[Place]:
    for name in reader.names("back"):
        key, _, queue = lane_parts("back", name)
        if not key.startswith(begins):
            continue
        for tag, _ in reader.pairs("ZSCAN", reader.keys.of("back", name)):
            record = reader.read("HGET", reader.keys.returned, tag)
            if record is not None:
                yield Place(queue, record)


def running(reader: Reader) -> Iterator[Place]:
    """Yield every claimed task."""
    for _, text in reader.pairs("HSCAN", reader.keys.running):
        row = read_row(text)
        if row is not None:
            yield Place(row.queue, row.record, "running", row.owner)


def dead(reader: Reader, queue: str | None = None) -> Iterator[Place]:
    """Yield the dead letters of a queue, or of all queues; the newest of a queue first."""
    for name in reader.names("dead") if queue is None else [queue]:
        for record in reader.list_items(reader.keys.of("dead", name)):
            yield Place(name, record, "dead")


def letter(place: Place) -> DeadLetter:
    """Return a dead letter for ``dead_letters``."""
    fields = place.fields
    names = read_message(place.record)
    return DeadLetter(
        task_id=place.task_id,
        task=names.task,
        queue=place.queue,
        tenant=place.tenant,
        attempts=int(fields[2]),
        deaths=int(fields[3]),
    )


def outcome(reader: Reader, place: Place) -> str:
    """Return the outcome of a dead letter if its result is not stored yet; "" if it is."""
    for text, _ in reader.pairs("ZSCAN", reader.keys.outcomes):
        if text.endswith(place.record):
            return text
    return ""
