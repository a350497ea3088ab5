"""Events of an installation, and the table of their types.

Invariant: the function that causes an event also writes it, so neither occurs without the other. An
event's id comes from its place in the stream and from the installation, so it is always the same.

A flood of waiting tasks emits two events for each task, and pushes other events out of the stream.
So events of operators and of failures are also in a second stream, with the same ids. A reader
merges the two into one sequence.

Weakness: each stream keeps its last ten thousand events, so a slow reader misses older ones. A
purge that cancels more tasks than that pushes out the acts of operators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple
from uuid import UUID

from pydantic import AfterValidator, Field, model_serializer

from celery_fairness.config.limit_spec import ACTION_BY_LETTER
from celery_fairness.config.numbers import NUMBERS, read_numbers
from celery_fairness.errors import got, suggestion
from celery_fairness.util.timestamps import at_ms
from celery_fairness.util.value import Value

#: Prefix of the type in a CloudEvent.
CLOUD_PREFIX = "org.openjobspec."
SPEC_VERSION = "1.0"
CONTENT_TYPE = "application/json"

_OF_TASK = ("job_id", "job_type", "queue")
#: Fields with whole numbers.
_COUNTS = {"current", "deaths", "limit", "tasks"}
#: Fields that a gate leaves empty, which is None.
_OR_NONE = {
    "attempt": int,
    "cost": float,
    "ran_seconds": float,
    "rank": int,
    "waited_seconds": float,
}
_TIMES = {"eta", "since", "until"}
#: The end of Python's range of times. A value that reaches it stays a text.
_YEAR_10000_MS = 253_402_300_800_000


class EventType(NamedTuple):
    """One kind of event.

    Attributes:
        name: Its type.
        fields: The names of its data.
        meaning: When it is emitted, in one sentence.
        stream: The stream: ``events`` (a flood of tasks can push it out), also ``kept_events``, or
            only ``trace`` (during a trace).
    """

    name: str
    fields: tuple[str, ...]
    meaning: str
    stream: str = "events"


#: All types, by name.
TYPES: Mapping[str, EventType] = {
    each.name: each
    for each in (
        EventType(
            "rate_limit.exceeded",
            ("key", "strategy", "limit", "current", *_OF_TASK),
            "a limit first rejected a task, at the head of its lane or at a gate",
        ),
        EventType(
            "rate_limit.released",
            ("key", "strategy", *_OF_TASK),
            "a task that had a `rate_limit.exceeded` has started",
        ),
        EventType(
            "rate_limit.dropped",
            ("key", *_OF_TASK),
            "a limit with `on_limit=drop` rejected a task, which is not run",
        ),
        EventType(
            "rate_limit.dynamic_adjusted",
            ("key", "until", "reason"),
            "a key cools down, or longer than before, after a 429 or by an operator",
            "kept_events",
        ),
        EventType(
            "fairness.cool_down_cleared",
            ("key",),
            "an operator ended a cool-down before its time",
            "kept_events",
        ),
        EventType(
            "fairness.paused",
            ("key", "until", "by"),
            "an operator, `by`, paused a key; without `until` the pause lasts until a resume",
            "kept_events",
        ),
        EventType(
            "fairness.resumed",
            ("key", "by"),
            "a pause has ended, by an operator (`by`) or at its time",
            "kept_events",
        ),
        EventType(
            "fairness.override_set",
            ("key", "numbers"),
            "an operator replaced a key's numbers; `numbers` has them by name. A number that stays "
            "is absent, and null is unlimited",
            "kept_events",
        ),
        EventType(
            "fairness.override_ended",
            ("key",),
            "an override has ended, or was cleared",
            "kept_events",
        ),
        EventType(
            "fairness.queue_limit_set",
            ("key", "numbers", "partition"),
            "an operator replaced a queue's numbers; `numbers` has those of the whole queue by "
            "name, and `on_limit`. `partition` has those of each partition. A number that is "
            "absent is unlimited, and an empty object is what the settings declare",
            "kept_events",
        ),
        EventType(
            "fairness.queue_limit_cleared",
            ("key",),
            "an operator cleared the numbers that were set for a queue",
            "kept_events",
        ),
        EventType(
            "fairness.tier_set",
            ("key", "tier", "numbers"),
            "the tier of a tenant was published; `numbers` has the tenant's own numbers by name",
            "kept_events",
        ),
        EventType(
            "fairness.tier_cleared",
            ("key",),
            "the published tier of a tenant was removed",
            "kept_events",
        ),
        EventType(
            "fairness.tiers_published",
            ("source",),
            "another table of tiers is in force; `source` is `database`, or `settings` of a worker",
            "kept_events",
        ),
        EventType(
            "fairness.cancelled",
            _OF_TASK,
            "an operator cancelled a task that waited",
            "kept_events",
        ),
        EventType(
            "fairness.duplicate",
            (*_OF_TASK, "of"),
            "a task was dropped, because the task `of` has its unique key",
        ),
        EventType(
            "fairness.replaced",
            (*_OF_TASK, "by"),
            "a waiting task ended, because the newer task `by` has its unique key",
        ),
        EventType("fairness.expired", _OF_TASK, "a task expired while it waited, so it is not run"),
        EventType(
            "fairness.unpublished",
            _OF_TASK,
            "the broker did not take a parked task back, so it has failed and is not run",
            "kept_events",
        ),
        EventType(
            "fairness.purged",
            ("queue", "tasks"),
            "waiting tasks of a queue were removed, because it was purged or has ended; one for "
            "each part",
            "kept_events",
        ),
        EventType(
            "fairness.lease_expired",
            (*_OF_TASK, "owner", "state"),
            "a lease ended without a renewal; `state` is `claimed`, `begun` (its body ran) or "
            "`acked`",
            "kept_events",
        ),
        EventType(
            "fairness.abandoned",
            (*_OF_TASK, "owner"),
            "an acknowledged task was lost with its worker and is not run again",
            "kept_events",
        ),
        EventType(
            "fairness.dead_lettered",
            (*_OF_TASK, "reason", "deaths"),
            "a task is a dead letter; `reason` is `dead` (its process died too often) or "
            "`unreadable`",
            "kept_events",
        ),
        EventType("fairness.requeued", _OF_TASK, "a dead letter waits again", "kept_events"),
        EventType(
            "fairness.memory_lost",
            ("since",),
            "workers found an empty Redis, so its tasks are gone. The first worker that notices "
            "adds it, once per memory. `since` is when the lost memory had begun or was last taken "
            "over by another server",
            "kept_events",
        ),
        EventType(
            "trace.started",
            ("until",),
            "a trace begins; earlier tasks have no such events",
            "trace",
        ),
        EventType(
            "task.put",
            (*_OF_TASK, "key", "tier", "cost", "rank", "eta"),
            "during a trace, a task was put, or is given to the broker of a gate. `rank` 9 goes "
            "first, and `eta` is the time from which it may start",
            "trace",
        ),
        EventType(
            "task.started",
            (*_OF_TASK, "key", "attempt", "owner", "waited_seconds"),
            "during a trace, a task was claimed `waited_seconds` after its put or its time, or "
            "started at a gate, that long after it was first parked",
            "trace",
        ),
        EventType(
            "task.ended",
            (*_OF_TASK, "key", "attempt", "owner", "outcome", "ran_seconds"),
            "during a trace, an attempt has ended. `outcome` is `done`, `failed`, `retried`, "
            "`unreadable`, or why its task waits again: `head`, `tail`, `died` or `expired`",
            "trace",
        ),
    )
}

#: The first of each trace: every follower receives it.
TRACE_STARTED = "trace.started"
#: The events of a trace, in a stream of their own.
WATCHED = frozenset(each.name for each in TYPES.values() if each.stream == "trace")


#: The upper bits of a number that an id has.
_HIGH = 0x3FFFFF
_TEXT = {"type": "string"}
#: The fields of the envelope, by JSON Schema.
_ENVELOPE: Mapping[str, Any] = {
    "specversion": _TEXT,
    "id": _TEXT,
    "type": {"type": "string", "description": f"One of {', '.join(TYPES)}."},
    "source": _TEXT,
    "time": {"type": "string", "format": "date-time"},
    "subject": {"type": "string", "description": "The id of the task, if it is about one."},
    "datacontenttype": _TEXT,
    "data": {"type": "object"},
}


class Event(Value):
    """One event.

    ``model_dump(mode="json")`` is the envelope of the Open Job Spec.

    Attributes:
        id: ``evt_`` and a UUID of version 7. As ``after`` of ``fairness.events.read`` it selects
            the events that follow.
        type: One of :data:`TYPES`.
        at: Time by the server's clock.
        source: ``ojs://{app}/{component}/{host}`` with the host of the Redis.
        data: The fields that the type lists.
    """

    id: str
    type: str
    at: datetime
    source: str
    data: Annotated[Mapping[str, Any], AfterValidator(MappingProxyType)] = Field(
        default_factory=dict, validate_default=True
    )

    @property
    def subject(self) -> str:
        """The id of its task; "" if it has no task."""
        return str(self.data.get("job_id", ""))

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> dict[str, Any]:
        """Return the schema of the envelope, which has other fields."""
        required = [name for name in _ENVELOPE if name != "subject"]
        return {"type": "object", "properties": dict(_ENVELOPE), "required": required}

    @model_serializer
    def _envelope(self) -> dict[str, Any]:
        about = {"subject": self.subject} if self.subject else {}
        return {
            "specversion": SPEC_VERSION,
            "id": self.id,
            "type": self.type,
            "source": self.source,
            "time": _rfc3339(self.at),
            **about,
            "datacontenttype": CONTENT_TYPE,
            "data": dict(self.data),
        }

    def as_cloudevent(self) -> dict[str, Any]:
        """Return it as a CloudEvent in the JSON format."""
        return self.model_dump(mode="json") | {"type": CLOUD_PREFIX + self.type}


class EventPage(Value):
    """A page of events, the oldest first.

    ``model_dump(mode="json")`` is the answer of the Open Job Spec to a poll.

    Attributes:
        events: The events, up to the requested number.
        cursor: The value of ``after`` for the next page. None if there is no event yet.
        has_more: Whether further events exist now. On a page of the newest events: older ones.
    """

    events: tuple[Event, ...]
    cursor: str | None
    has_more: bool


def event_of(entry: str, fields: Mapping[str, str], source: str, store: str = "") -> Event:
    """Return the event of one entry of the stream; unknown fields stay texts.

    ``store`` names the partition that has the stream. "" is the home.
    """
    ms = int(entry.partition("-")[0])
    data = {name: _value(name, text) for name, text in fields.items() if name != "type"}
    kind = fields.get("type", "")
    # Two streams may have an entry of the same name.
    stream = f"{source}#tasks" if kind in WATCHED else source
    stream_id = event_id(entry, stream + store)
    return Event(id=stream_id, type=kind, at=at_ms(ms), source=source, data=data)


def _value(name: str, text: str) -> Any:
    if name in _COUNTS and text.isdecimal():
        return int(text)
    if name in ("numbers", "partition"):
        return _numbers(text)
    if name in _OR_NONE:
        return _OR_NONE[name](text) if text else None
    if name in _TIMES and text.isdecimal() and int(text) < _YEAR_10000_MS:
        return _rfc3339(at_ms(int(text)))
    return text


def _numbers(text: str) -> dict[str, Any]:
    """Return numbers by name, and the action of a queue's limit; None is unlimited."""
    numbers, _, action = text.partition("|")
    found = {
        name: None if value is None else NUMBERS[name].kind.one(value)
        for name, value in read_numbers(numbers).items()
    }
    return {**found, "on_limit": ACTION_BY_LETTER[action]} if action else found


def _rfc3339(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def event_id(entry: str, source: str) -> str:
    """Return the id of the event at ``entry`` of the stream, ``MILLISECONDS-NUMBER``."""
    ms, number = map(int, entry.split("-"))
    high, low = divmod(number, 1 << 12)
    place = int.from_bytes(hashlib.sha256(source.encode()).digest()[:5], "big")
    bits = ms << 80 | 0x7 << 76 | low << 64 | 0b10 << 62 | (high & _HIGH) << 40 | place
    return f"evt_{UUID(int=bits)}"


def entry_of(event_id: str) -> str:
    """Return the entry of the stream that has the event of an id.

    Raises:
        ValueError: The text is not the id of an event.
    """
    try:
        number = UUID(event_id.removeprefix("evt_"))
    except (ValueError, AttributeError, TypeError):
        number = None
    if number is None or number.version != 7 or not event_id.startswith("evt_"):
        raise ValueError(f"after: expected the id of an event, as 'evt_…', got: {got(event_id)}")
    bits = number.int
    return f"{bits >> 80}-{(bits >> 40 & _HIGH) << 12 | bits >> 64 & 0xFFF}"


def check_types(types: Iterable[str] | None) -> frozenset[str]:
    """Return the requested types, or an empty set for all.

    Raises:
        ValueError: There is no such type.
    """
    if isinstance(types, str):
        raise ValueError(f"types: expected several types, got: {got(types)}")
    asked = frozenset(each if isinstance(each, str) else got(each) for each in types or ())
    for name in asked - TYPES.keys():
        hint = suggestion(name, TYPES)
        known = ", ".join(sorted(TYPES))
        raise ValueError(f"types: expected some of {known}, got: {got(name)}{hint}")
    if asked & WATCHED and asked - WATCHED:
        watched = ", ".join(sorted(WATCHED))
        raise ValueError(
            f"types: expected some of {watched}, or none of them, got: {', '.join(sorted(asked))}"
        )
    return asked
