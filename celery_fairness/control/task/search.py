"""Finds tasks by id or tenant, running tasks, and dead letters.

A search for tenants reads their own tasks alone, however many others wait.

Weakness: scheduled tasks are ordered by their times. So a search for a queue's tasks, or a tier's,
reads the heads of all scheduled tasks. A search may miss a task that moves meanwhile, so each is
made twice.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from celery_fairness.config.tenants import key_part
from celery_fairness.control.installation.reader import Reader, batches
from celery_fairness.control.installation.task_records import ORDER_LENGTH, TaskHead, read_head
from celery_fairness.control.task.views import DeadLetter
from celery_fairness.message.headers import HEADER
from celery_fairness.message.tenant_header import TENANT_FROM
from celery_fairness.scheduler import calls

#: Rows or heads in one call.
BATCH = 500
#: Waiting tasks in one group, and tasks that one call cancels.
TOGETHER = 50
#: Number of searches. A task that changed its place during the first one is found in the second.
PASSES = 2


class MessageNames(NamedTuple):
    """The ids and the name in a message's headers; "" if a header is missing."""

    task_id: str = ""
    task: str = ""
    parent_id: str = ""
    root_id: str = ""


class Place(NamedTuple):
    """The place and the record of a task.

    Attributes:
        state: ``waiting``, ``delayed``, ``running``, ``dead`` or ``ended``.
        task: The head of its record.
        message: Its message.
        owner: Process that runs it, or "" if none does.
    """

    state: str
    task: TaskHead
    message: str
    owner: str = ""

    @property
    def names(self) -> MessageNames:
        """The ids and the name in its message."""
        headers = headers_of(self.message)
        names = ("id", "task", "parent_id", "root_id")
        return MessageNames(*(_text(headers.get(name)) for name in names))

    @property
    def tenant_from(self) -> str:
        """The header or property that named its tenant (``tenant_header``); "" if none did."""
        header = headers_of(self.message).get(HEADER)
        return _text(header.get(TENANT_FROM)) if isinstance(header, Mapping) else ""

    @property
    def task_id(self) -> str:
        """Its id; the delivery tag if its message has none."""
        return self.names.task_id or self.task.tag

    @property
    def queue(self) -> str:
        """Its queue; the one to which a parked task goes back."""
        return self.task.shown_queue


def headers_of(message: str | None) -> Mapping[str, Any]:
    """Return the headers of a message; empty if they cannot be read."""
    headers = _read(message).get("headers")
    return headers if isinstance(headers, dict) else {}


def _read(message: str | None) -> dict[str, Any]:
    try:
        found = json.loads(message or "")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str:
    is_name = isinstance(value, (str, int)) and not isinstance(value, bool)
    return str(value) if is_name else ""


def find(reader: Reader, task_id: str) -> Iterator[list[Place]]:
    """Yield the tasks of an id in pages, the newest page first.

    A retry has the id of the first attempt. A producer may use one id for thousands of tasks, so a
    caller that needs one of them stops at the first page that has one.
    """
    for part in reader.parts:
        last: Any = None
        while last != "":
            last, *rows = part.call(calls.FIND, [key_part(task_id), str(last or "")])
            yield _places(rows)


def dead(
    reader: Reader, queue: str, page: int, per_page: int
) -> tuple[list[Place], dict[str, int]]:
    """Return a page of the dead letters of a queue, or of all ("").

    The second value is the number of dead letters of each queue, by name. One call returns both.
    """
    first = (page - 1) * per_page
    if len(reader.parts) == 1:
        rows, counts = _dead_of(reader, queue, first, per_page)
        return _places(rows), counts
    found, counted = (
        list[Sequence[Any]](),
        [_dead_of(each, queue, 0, 0)[1] for each in reader.parts],
    )
    totals = sum(map(Counter, counted), Counter[str]())
    # Each queue has the letters of one partition behind those of another.
    for name in sorted(totals) if not queue else [queue]:
        for part, counts in zip(reader.parts, counted, strict=True):
            letters = counts.get(name, 0)
            if first < letters and len(found) < per_page:
                found += _dead_of(part, name, first, per_page - len(found))[0]
            first = max(0, first - letters)
    return _places(found), dict(totals)


def _dead_of(
    reader: Reader, queue: str, first: int, most: int
) -> tuple[list[Sequence[Any]], dict[str, int]]:
    """Return the dead letters of one partition from an index on, and their numbers by queue."""
    counts, *rows = reader.call(calls.DEAD_LETTERS, [queue, str(first), str(most)])
    return rows, dict(zip(counts[::2], counts[1::2], strict=True))


def _places(rows: Iterable[Sequence[Any]]) -> list[Place]:
    found = []
    for tag, state, owner, head, message in rows:
        task = read_head(tag, head)
        if task is not None:
            found.append(Place(state, task, message, owner))
    return found


def letter(place: Place) -> DeadLetter:
    """Return a dead letter for ``dead_letters``."""
    task = place.task
    return DeadLetter(
        task_id=place.task_id,
        task=place.names.task,
        queue=task.queue,
        tenant=task.tenant,
        attempts=task.attempts,
        deaths=task.deaths,
        cause=_cause(place),
    )


def _cause(place: Place) -> Literal["deaths", "unreadable", "lost"]:
    if not place.message:
        return "lost"
    # A process may have died before a worker could not read the message, so deaths do not show it.
    return "unreadable" if place.task.rejected_by.startswith("unreadable|") else "deaths"


def waiting_tasks(reader: Reader, wanted: Callable[[str, str], bool]) -> Iterator[list[TaskHead]]:
    """Yield waiting and scheduled tasks in groups, those of a lane in their order.

    It searches twice, and yields a task that stays twice. It may miss tasks that are put meanwhile.
    The caller may remove the tasks of a group.

    Args:
        reader: The reader of the installation.
        wanted: Returns whether tasks with this tenant's key and in this queue are wanted.
    """
    for _ in range(PASSES):
        for part in reader.parts:
            yield from _waiting_once(part, wanted)


def tasks_of(reader: Reader, keys: Iterable[str]) -> Iterator[list[TaskHead]]:
    """Yield waiting and scheduled tasks of tenants, as :func:`waiting_tasks` does.

    Args:
        reader: The reader of the installation.
        keys: The keys of the tenants, ``tenant:TENANT``. The keys of their services are added.
    """
    places = [
        (part, name)
        for part, its in _by_part(reader, keys).items()
        for name in _with_services(part, its)
    ]
    for _ in range(PASSES):
        for part, key in places:
            yield from _scheduled_of(part, key)
            fields = [field for field, _ in part.pairs("HSCAN", part.keys.of("tenant_state", key))]
            for field in fields:
                kind, _, queue = field.partition(":")
                if kind == "q":
                    yield from _of_tenant(part, key, queue)


def _by_part(reader: Reader, keys: Iterable[str]) -> dict[Reader, list[str]]:
    found = defaultdict[Reader, list[str]](list)
    for key in keys:
        for part in reader.parts_of_key(key):
            found[part].append(key)
    return found


def _with_services(reader: Reader, keys: Iterable[str]) -> list[str]:
    """Return the keys of tenants, each with those of its services."""
    known = (field.partition(":") for field in reader.read("HKEYS", reader.keys.clock))
    services = sorted(name for kind, _, name in known if kind == "service")
    return [name for key in keys for name in (key, *(f"{key}:{each}" for each in services))]


def _scheduled_of(reader: Reader, key: str) -> Iterator[list[TaskHead]]:
    tags = (tag for tag, _ in reader.pairs("ZSCAN", reader.keys.of("scheduled_of", key)))
    for some in batches(tags, TOGETHER):
        yield list(_heads(zip(some, reader.read("HMGET", reader.keys.tasks, *some), strict=True)))


def _waiting_once(reader: Reader, wanted: Callable[[str, str], bool]) -> Iterator[list[TaskHead]]:
    for queue in set(reader.members(reader.keys.queues)):
        members = (
            member for member, _ in reader.pairs("ZSCAN", reader.keys.of("scheduled", queue))
        )
        for some in batches(members, BATCH):
            tags = [member[ORDER_LENGTH:] for member in some]
            heads = _heads(zip(tags, reader.read("HMGET", reader.keys.tasks, *tags), strict=True))
            its = (each for each in heads if wanted(each.key, each.queue))
            yield from batches(its, TOGETHER)
    for queue in dict(reader.pairs("HSCAN", reader.keys.waiting)):
        for key in _tenants(reader, queue):
            if wanted(key, queue):
                yield from _of_tenant(reader, key, queue)


def _tenants(reader: Reader, queue: str) -> set[str]:
    """Return the keys of the tenants with tasks in a queue. One may change its table meanwhile."""
    tables = [reader.keys.of(kind, queue) for kind in ("active", "blocked", "active")]
    return {key for table in tables for key, _ in reader.pairs("ZSCAN", table)}


def _of_tenant(reader: Reader, key: str, queue: str) -> Iterator[list[TaskHead]]:
    lane, seq = "", "0"
    while True:
        lane, seq, *rows = reader.call(calls.WAITING, [key, queue, lane, seq])
        if its := list(_heads(zip(rows[::2], rows[1::2], strict=True))):
            yield its
        if not lane:
            return


def _heads(rows: Iterable[tuple[str, str | None]]) -> Iterator[TaskHead]:
    """Yield the heads of tasks that are still known."""
    found = (read_head(tag, head) for tag, head in rows)
    yield from (each for each in found if each is not None)


def messages_of(reader: Reader, tags: Sequence[str]) -> list[str | None]:
    """Return the messages of tasks."""
    return list(reader.read("HMGET", reader.keys.messages, *tags)) if tags else []
