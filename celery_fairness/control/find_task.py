"""Tasks by their id or their tenant, wherever they wait; and dead letters.

Weakness: what waits is in no order of ids, so finding one task reads the messages of all that wait,
a bounded number at a time. A task that moves meanwhile may be missed once: who looks, looks twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from celery_fairness.control.keys import ORDER_LENGTH, lane_parts, read_row
from celery_fairness.control.scan import Reader, batches
from celery_fairness.control.views import DeadLetter


class Told(NamedTuple):
    """What the headers of a message say; "" is what they do not."""

    task_id: str = ""
    task: str = ""
    parent_id: str = ""
    root_id: str = ""


class Place(NamedTuple):
    """A task where it lies.

    Attributes:
        queue: Of which it is.
        record: As it lies there.
        state: ``waiting``, ``later``, ``running`` or ``dead``.
        owner: The process that runs it, else "".
        due_ms: The server's time for which it waits, else None.
    """

    queue: str
    record: str
    state: str = "waiting"
    owner: str = ""
    due_ms: float | None = None

    @property
    def task_id(self) -> str:
        """Its id; the delivery tag where its message says none."""
        return read_message(self.record).task_id or self.fields[1]

    @property
    def fields(self) -> list[str]:
        """Those before its message."""
        return self.record.partition("\n")[0].split(" ")

    @property
    def tenant(self) -> str:
        """Who is charged, as written in keys; "" is a system task."""
        return self.fields[6]


def read_message(record: str) -> Told:
    """Return what the message of a record says of its task."""
    try:
        headers = json.loads(record.partition("\n")[2])["headers"]
        return Told(*(_text(headers.get(name)) for name in ("id", "task", "parent_id", "root_id")))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Told()


def _text(value: Any) -> str:
    is_name = isinstance(value, (str, int)) and not isinstance(value, bool)
    return str(value) if is_name else ""


def waiting(reader: Reader) -> Iterator[Place]:
    """Yield every task that waits; some come twice."""
    yield from _later(reader)
    for queue, key in _lanes(reader, ""):
        for record in reader.list_items(key):
            yield Place(queue, record)
    yield from _came_back(reader, "")


def waiting_of(reader: Reader, tenant: str, together: int) -> Iterator[list[Place]]:
    """Yield what waits of a tenant, so many together; those that came after it began may be left.

    Args:
        reader: Of the installation.
        tenant: As written in keys.
        together: Most tasks at once. They are taken away before the next are asked for: the first
            of a lane are asked for again.
    """
    begins = f"tenant:{tenant}"
    for places in (_later(reader), _came_back(reader, begins)):
        yield from batches((each for each in places if each.tenant == tenant), together)
    for queue, key in _lanes(reader, begins):
        others = 0
        for _ in range(0, reader.read("LLEN", key), together):
            # Another tenant's name may begin as this one's key does.
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
    """Yield the dead letters of a queue, or of all; the last of a queue first."""
    for name in reader.names("dead") if queue is None else [queue]:
        for record in reader.list_items(reader.keys.of("dead", name)):
            yield Place(name, record, "dead")


def letter(place: Place) -> DeadLetter:
    """Return a dead letter as it is shown."""
    fields = place.fields
    told = read_message(place.record)
    return DeadLetter(
        task_id=place.task_id,
        task=told.task,
        queue=place.queue,
        tenant=place.tenant,
        attempts=int(fields[2]),
        deaths=int(fields[3]),
    )


def outcome(reader: Reader, place: Place) -> str:
    """Return the outcome of a dead letter whose result is not written yet, else ""."""
    for text, _ in reader.pairs("ZSCAN", reader.keys.outcomes):
        if text.endswith(place.record):
            return text
    return ""
