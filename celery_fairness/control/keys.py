"""The keys that the modules of ``control`` read, and the texts in them.

The library in ``store/lua`` defines both. A text that cannot be read is None here. The keys that a
limiter reads are in :mod:`celery_fairness.store.keys`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from celery_fairness.config.limit_spec import shape_of
from celery_fairness.control.event_types import KEPT_APART
from celery_fairness.scheduler.types import SYSTEM

#: Scores of a limit at which tasks wait: exhausted, or on hold.
CLOSED, PAUSED = -1.0, -2.0
#: Characters before the record of a scheduled task.
ORDER_LENGTH = 17
#: Fields before the message of a record of ``gate_tasks``.
PARKED_FIELDS = 8
#: Fields of a limit's name. The fields after them are the action on a task above the limit.
NAME_FIELDS = 4

_RECORD = re.compile(r"(\d+) (\S+) \d+ \d+ (\S+) (\d) (\S*) (\S*) \S* (\S*) (\S*) \S* (\S*)\n")
_ROW = re.compile(r"(\S+) ([a-z]+)(?:@(\d+)(?:~(\d+))?)? (\d+) ")


def tag_of(lease: str) -> str:
    """Return the delivery tag of the task that holds a lease."""
    return lease.rsplit(".", 2)[0]


def whole_of(key: str) -> str:
    """Return the key of the whole queue for a partition's key, and any other key unchanged."""
    return ":".join(key.split(":")[:2]) if key.startswith("queue:") else key


class TaskName(NamedTuple):
    """The fields of a task's record.

    Attributes:
        tag: Its delivery tag.
        key: Key of its tenant's tier limit, or ``_system``.
        kind: The task's name, in its form in keys.
        rank: Its priority, 0 to 9. A task with 9 goes first.
        limits: Its limits without the tier's, as one text.
        seq: Its sequence number among all tasks.
        cost: The cost that it declares.
        refused: The limit of its last event ``rate_limit.exceeded``, as ``STRATEGY|KEY``. It is
            ``-`` if the task has started since, and "" without such an event.
    """

    tag: str
    key: str
    kind: str
    rank: str
    limits: str
    seq: int
    cost: float
    refused: str

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys in which it holds a slot while it runs, each once, the tenant's first."""
        of_limits = map(key_of_limit, self.limits.split(",") if self.limits else ())
        return tuple(dict.fromkeys((self.key, *of_limits)))

    @property
    def lane(self) -> str:
        """The lane of the task."""
        return f"{self.rank},{self.limits}" if self.limits else self.rank


class Row(NamedTuple):
    """One claimed task: a row of ``running``.

    Attributes:
        owner: Process that holds it.
        state: ``claimed``, ``begun`` or ``acked``.
        queue: Queue of the task.
        task: The fields of its record.
        record: Its whole record.
        since: Logical time of its claim, or None if no process holds the task.
        mean_ms: Recent mean run time of tasks of its name, or None if unknown.
    """

    owner: str
    state: str
    queue: str
    task: TaskName
    record: str
    since: int | None = None
    mean_ms: int | None = None


class Keys:
    """Key names of one installation, of the dispatch path and of gates.

    Args:
        prefix: The start of every key.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.clock = prefix + "clock"
        self.closed = prefix + "closed"
        self.cooled = prefix + "cooled"
        self.events = prefix + "events"
        self.events_apart = tuple(f"{prefix}{each}_events" for each in KEPT_APART)
        self.exceeded = prefix + "exceeded"
        self.gate_tasks = prefix + "gate_tasks"
        self.forwarder = prefix + "forwarder"
        self.forwarded = prefix + "forwarded"
        self.idle = prefix + "idle"
        self.outcomes = prefix + "outcomes"
        self.overrides = prefix + "overrides"
        self.paused = prefix + "paused"
        self.paused_by = prefix + "paused_by"
        self.paused_until = prefix + "paused_until"
        self.queue_keys = prefix + "queue_keys"
        self.queue_limits = prefix + "queue_limits"
        self.returned = prefix + "returned"
        self.running = prefix + "running"
        self.shared = prefix + "shared"
        self.task_events = prefix + "task_events"
        self.virtual = prefix + "virtual"
        self.waiting = prefix + "waiting"
        self.workers = prefix + "workers"

    def of(self, kind: str, name: str) -> str:
        """Return a key of one queue or tenant, such as ``ring:QUEUE``."""
        return f"{self.prefix}{kind}:{name}"

    def pattern(self, kind: str = "") -> str:
        """Return a pattern that matches every key, or every key of one kind."""
        return re.sub(r"([\\*?\[\]])", r"\\\1", self.prefix) + (f"{kind}:*" if kind else "*")


def read_record(text: str) -> TaskName | None:
    """Return the fields of a record."""
    match = _RECORD.match(text)
    if match is None:
        return None
    seq, tag, cost, rank, tenant, service, kind, limits, refused = match.groups()
    key = _key_of(tenant, service)
    return TaskName(tag, key, kind, rank, limits, int(seq), float(cost), refused)


def _key_of(tenant: str, service: str) -> str:
    if not tenant:
        return SYSTEM
    return f"tenant:{tenant}:{service}" if service else f"tenant:{tenant}"


def is_tenants(key: str) -> bool:
    """Return whether a key belongs to a tenant's tier, or to tasks without a tenant."""
    return key == SYSTEM or key.startswith("tenant:")


class ParkedPlaces(NamedTuple):
    """The limits at which a record of ``gate_tasks`` may wait.

    Attributes:
        tenant: Charged tenant.
        places: Key of its tenant's tier limit, and then the names of its other limits.
        expires: Whether it expires.
        record: Key of its tenant's record, without the prefix.
        tier: Tier of its tenant at the time of parking.
    """

    tenant: str
    places: tuple[str, ...]
    expires: bool
    record: str
    tier: str


def read_parked(record: str) -> ParkedPlaces | None:
    """Return the limits at which a parked task may wait."""
    fields = record.partition("\n")[0].split(" ")
    if len(fields) != PARKED_FIELDS:
        return None
    words = fields[6].split(",") if fields[6] else []
    names = ("|".join(shape_of(word).split("|")[:NAME_FIELDS]) for word in words)
    places = dict.fromkeys([fields[2], *names])
    named = tuple(each for each in places if each)
    return ParkedPlaces(fields[2] or SYSTEM, named, fields[1] != "", fields[3], fields[4])


def turn_name(tenant: str, seq: int) -> str:
    """Return the name of a tenant in the order of a limit, which contains its first task."""
    return f"{seq:016} {tenant}"


def read_row(text: str) -> Row | None:
    """Return a row of ``running``. Its length of the queue's name is in bytes."""
    match = _ROW.match(text)
    if match is None:
        return None
    owner, state, since, mean, length = match.groups()
    start, size = match.end(), int(length)
    queue = text[start : start + size].encode()[:size].decode(errors="replace")
    record = text[start + len(queue) :]
    task = read_record(record)
    if task is None:
        return None
    times = [None if each is None else int(each) for each in (since, mean)]
    return Row(owner, state, queue, task, record, *times)


# -- lanes ----------------------------------------------------------------------------------------


def lane_parts(kind: str, name: str) -> tuple[str, str, str]:
    """Return key, part and queue of ``KEY LANE QUEUE`` or ``KEY LANE KIND QUEUE``.

    "" is what is missing.
    """
    parts = name.split(" ", 3 if kind == "back" else 2)
    if kind == "back":
        key, lane, of_kind, queue = (*parts, "", "", "")[:4]
        return key, f"{lane}b {of_kind}", queue
    key, lane, queue = (*parts, "", "")[:3]
    return key, lane, queue


def read_part(part: str) -> tuple[str, str | None]:
    """Return the lane of a part, and the task name if the part holds rescheduled tasks."""
    word, space, kind = part.partition(" ")
    return (word[:-1], kind) if space else (part, None)


def part_key(keys: Keys, key: str, part: str, queue: str) -> str:
    """Return the key that has the tasks of a part."""
    lane, kind = read_part(part)
    if kind is None:
        return keys.of("lane", f"{key} {lane} {queue}")
    return keys.of("back", f"{key} {lane} {kind} {queue}")


def part_length(keys: Keys, key: str, part: str, queue: str) -> tuple[str, str]:
    """Return the command for the number of tasks in a part."""
    command = "LLEN" if read_part(part)[1] is None else "ZCARD"
    return command, part_key(keys, key, part, queue)


def order_key(keys: Keys, key: str, group: str, queue: str) -> str:
    """Return the key with the parts of a wait group in order; the group "" is of ready lanes."""
    if group:
        return keys.of("shelf", f"{key} {group} {queue}")
    return keys.of("ready", f"{key} {queue}")


# -- limits ---------------------------------------------------------------------------------------


def key_of_limit(name: str) -> str:
    """Return the key of a limit."""
    return name.partition("|")[0]


def limits_of(lane: str) -> list[str]:
    """Return the limits of a lane, each as a word."""
    return lane[2:].split(",") if lane[2:] else []


def is_private(word: str) -> bool:
    """Return whether the key of a limit contains the tenant."""
    return word.endswith("p")


def own_group(key: str, lane: str) -> str:
    """Return the wait group of a lane that a private limit rejected."""
    return f"{key} {shape_of(lane)}"


def shared_group(lane: str) -> str:
    """Return the wait group of a lane that another limit rejected."""
    return ",".join(word for word in limits_of(shape_of(lane)) if not is_private(word))


def group_of(key: str, lane: str, alone: str | None) -> str:
    """Return the wait group of a lane by its field in ``parked``; "" if it is ready."""
    if alone is None:
        return ""
    return own_group(key, lane) if float(alone) else shared_group(lane)
