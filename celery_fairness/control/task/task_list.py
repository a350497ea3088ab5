"""Lists of tasks by tenant, queue, key and state, and the bulk cancel of the tasks of a filter.

The function ``list`` of the library returns a page in one call. It looks at a bounded number of
tasks, so a page of a filter that takes few of many tasks takes several calls.

Invariant: a task that keeps its state is on exactly one page, also if other tasks change between
two calls.
A task that starts or comes due meanwhile is on one page at most.

Weakness: a dead letter that is requeued, or a task whose worker dies, may be on two pages.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from celery_fairness.config.fields import whole
from celery_fairness.config.tenants import key_part, normalise, read_tier_key, reserved
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.installation.task_records import read_head
from celery_fairness.control.key.queue_keys import find_key
from celery_fairness.control.task.cancellation import cancel_tasks
from celery_fairness.control.task.search import PASSES
from celery_fairness.control.task.views import STATES, TaskPage, TaskRow, TasksCancelled
from celery_fairness.errors import got, suggestion
from celery_fairness.limiter.redis import Limiter

#: Most tasks on a page, and their number by default. A task takes up to 70 microseconds of Redis.
LONGEST_LIST, LIST_LENGTH = 50, 50
#: Calls that one page takes at most. Then it has fewer tasks than wanted, and a cursor.
CALLS_AT_MOST = 4
#: Tasks in one call of a walk.
WALK_LENGTH = 100
#: Characters of the arguments.
ARGS_CHARACTERS = 80
#: States that a bulk cancel takes.
CANCELLED_STATES = ("waiting", "parked", "delayed")

#: Longest cursor. That of a walk through records has the tags that its page had no room for.
CURSOR_CHARACTERS = 16_384

#: The end of a page, as the function ``list`` returns it.
Position = Mapping[str, Any]


class Place(NamedTuple):
    """The beginning of a page: the index of a partition, and a position in it or None."""

    partition: int
    position: Position | None


_SECTIONS = {"dead", "running", "waiting", "parked", "retried", "delayed"}
_POSITION = ("section", "part", "at", "member")
#: A score of Redis, or "" before the first member.
_AT = re.compile(r"(-?\d+(\.\d+)?(e[+-]?\d+)?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Filter:
    """The tasks that a list has.

    Attributes:
        tenant: Their tenant in its form in keys. None is any.
        queue: Their queue. None is any.
        key: The key in which they count. None is any.
        states: Their states.
    """

    tenant: str | None = None
    queue: str | None = None
    key: str | None = None
    states: tuple[str, ...] = STATES

    @property
    def request(self) -> dict[str, Any]:
        """The fields as the function ``list`` takes them."""
        given = {"tenant": self.tenant, "queue": self.queue, "key": self.key}
        wanted = {name: value for name, value in given.items() if value is not None}
        return {**wanted, "states": dict.fromkeys(self.states, True)}


def read_filter(
    installation: Installation,
    tenant: str | None,
    queue: str | None,
    key: str | None,
    state: str | None,
    states: tuple[str, ...] = STATES,
) -> Filter:
    """Return the filter that a person names.

    Raises:
        TenantInvalid: The text cannot be a tenant.
        ValueError: Another value is invalid.
    """
    name = None
    if tenant is not None:
        name = normalise(tenant)
        if name is None:
            raise ValueError(f"tenant: expected a tenant, got: {tenant!r}")
        name = key_part(reserved(name))
    if queue is not None:
        _check_queue(queue)
    if key is not None:
        key = find_key(installation, key)[0]
    if state is not None and state not in states:
        hint = suggestion(str(state), states)
        raise ValueError(f"state: expected one of {', '.join(states)}, got: {got(state)}{hint}")
    return Filter(name, queue, key, states if state is None else (state,))


def _check_queue(queue: Any) -> None:
    problem = f"queue: expected the name of a queue, got: {got(queue)}"
    if not isinstance(queue, str) or not queue:
        raise ValueError(problem)
    try:
        queue.encode()
    except UnicodeEncodeError:
        raise ValueError(problem) from None


def list_tasks(
    installation: Installation, wanted: Filter, limit: int, cursor: str | None
) -> TaskPage:
    """Return a page of tasks; see ``TasksApi.list``."""
    whole(1, LONGEST_LIST).read("limit", limit)
    parts = _parts(installation, wanted)
    place: Place | None = Place(0, None) if cursor is None else _place(cursor, len(parts))
    rows: list[TaskRow] = []
    # Partitions come one after the other.
    ordered = len(parts) == 1
    for _ in range(CALLS_AT_MOST + len(parts) - 1):
        if place is None or len(rows) >= limit:
            break
        answer, place = _read_page(parts, wanted, place, limit - len(rows), detailed=True)
        rows += (_row(installation, row, answer["now"]) for row in answer.get("rows", ()))
        ordered = ordered and not answer.get("no_order", False)
    return TaskPage(
        items=tuple(rows),
        cursor=None if place is None else _cursor(place, len(parts)),
        is_ordered=ordered,
    )


def _parts(installation: Installation, wanted: Filter) -> Sequence[Limiter]:
    """Return the partitions that may have tasks of a filter."""
    limiter = installation.limiter
    if wanted.tenant:
        return (limiter.part_of_tenant(wanted.tenant),)
    return limiter.parts if wanted.key is None else limiter.parts_of_key(wanted.key)


def _read_page(
    parts: Sequence[Limiter], wanted: Filter, place: Place, most: int, *, detailed: bool
) -> tuple[Mapping[str, Any], Place | None]:
    """Return a page of one partition, and the place behind it; None if no task is left."""
    number, position = place
    answer = parts[number].list_tasks(wanted.request, position, most, detailed=detailed)
    if (position := answer.get("next")) is not None:
        return answer, Place(number, position)
    return answer, Place(number + 1, None) if number + 1 < len(parts) else None


def _row(installation: Installation, row: Mapping[str, Any], now_ms: int) -> TaskRow:
    age, due = row.get("age_ms"), row.get("due")
    return TaskRow(
        task_id=row["id"] or row["tag"],
        task=row["name"],
        state=row["state"],
        why=row.get("why", ""),
        key=row.get("by", ""),
        owner=row.get("owner", ""),
        age_seconds=None if age is None else age / 1000,
        due_at=None if due is None else _time(due),
        due_in_seconds=None if due is None else max(0.0, (due - now_ms) / 1000),
        tenant=_tenant(installation, row),
        tier=row.get("tier", ""),
        priority=row.get("rank"),
        queue=row["queue"],
        args=_arguments(row),
    )


def _time(ms: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        # After the year 9999.
        return None


def _tenant(installation: Installation, row: Mapping[str, Any]) -> str:
    """Return the tenant as its message has it, or else as keys have it; "" for a system task."""
    sent, name = row.get("sent_tenant", ""), str(row["tenant"])
    if sent and name and key_part(sent) == name:
        return str(sent)
    if name or not row["key"].startswith("tenant:"):
        return name
    by_service = installation.settings.tier_scope == "service"
    found = read_tier_key(row["key"], by_service)
    return found[0] if found else ""


def _arguments(row: Mapping[str, Any]) -> str | None:
    args, kwargs = row.get("args"), row.get("kwargs")
    if args is None and kwargs is None:
        return None
    texts = [each for each, empty in ((args, "()"), (kwargs, "{}")) if each and each != empty]
    text = " ".join(texts) or (args or kwargs or "")
    return text if len(text) <= ARGS_CHARACTERS else text[: ARGS_CHARACTERS - 1] + "…"


def _cursor(place: Place, parts: int) -> str:
    """Return a place as a word without special characters."""
    number, position = place
    words = [] if parts == 1 else [number]
    if position is not None:
        # An empty table of Lua may be an object in JSON.
        words += [*(position[name] for name in _POSITION), *(position.get("rest") or ())]
    return urlsafe_b64encode(json.dumps(words).encode()).decode().rstrip("=")


def _place(cursor: str, parts: int) -> Place:
    """Return the place of a cursor.

    Raises:
        ValueError: It is no cursor of a page.
    """
    problem = f"cursor: expected the cursor of a page, got: {got(cursor)}"
    try:
        if len(cursor) > CURSOR_CHARACTERS:
            raise ValueError(problem)
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        words = json.loads(urlsafe_b64decode(padded))
        number = 0
        if parts > 1:
            number, *words = words
            if type(number) is not int or not 0 <= number < parts:
                raise ValueError(problem)
            if not words:
                return Place(number, None)
        section, part, at, member, *rest = words
        if section not in _SECTIONS or not all(isinstance(each, str) for each in words):
            raise ValueError(problem)
        if not _AT.fullmatch(at):
            raise ValueError(problem)
        # A lone surrogate has no form in UTF-8.
        "".join(words).encode()
    except (AttributeError, TypeError, ValueError, RecursionError):
        raise ValueError(problem) from None
    return Place(
        number, {"section": section, "part": part, "at": at, "member": member, "rest": rest}
    )


def walk(installation: Installation, wanted: Filter) -> Iterator[list[str]]:
    """Yield the tags of the tasks of a filter in groups, in one pass.

    The caller may remove the tasks of a group.
    """
    parts = _parts(installation, wanted)
    place: Place | None = Place(0, None)
    while place is not None:
        answer, place = _read_page(parts, wanted, place, WALK_LENGTH, detailed=False)
        heads = (read_head(tag, head) for tag, head in answer.get("rows", ()))
        yield [each.tag for each in heads if each is not None]


def count_tasks(installation: Installation, wanted: Filter) -> int:
    """Return how many tasks a filter takes, by one walk."""
    return sum(map(len, walk(installation, wanted)))


def cancel_listed(
    installation: Installation,
    wanted: Filter,
    most: int | None,
    progress: Callable[[int], None] | None,
) -> TasksCancelled:
    """Cancel the tasks of a filter; see ``TasksApi.cancel_all``."""
    cancelled = 0
    # A task that comes due during the first pass is found in the second.
    for _ in range(PASSES):
        for tags in walk(installation, wanted):
            some = tags if most is None else tags[: most - cancelled]
            cancelled += cancel_tasks(installation, some)
            if progress is not None:
                progress(cancelled)
            if len(some) < len(tags):
                return TasksCancelled(cancelled=cancelled, has_more=True)
    return TasksCancelled(cancelled=cancelled, has_more=False)
