"""The keys of the dispatch path and the texts that lie in them, as the functions write them.

``store/lua/functions`` is what decides; a text that cannot be read is None here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from celery_fairness.config.limit_spec import shape_of
from celery_fairness.control.event_types import KEPT_APART
from celery_fairness.scheduler.types import SYSTEM

#: Scores of a limit at which tasks wait: it is exhausted, or stopped.
CLOSED, PAUSED = -1.0, -2.0
#: What stands before a record that waits for its time, in characters.
ORDER_LENGTH = 17
#: Fields before the message of a record of ``gate_tasks``.
PARKED_FIELDS = 8
#: Fields of a limit that are its name; those behind them say what becomes of a task.
NAME_FIELDS = 4

_RECORD = re.compile(r"(\d+) (\S+) \d+ \d+ (\S+) (\d) (\S*) (\S*) \S* (\S*) (\S*) \S* (\S*)\n")
_ROW = re.compile(r"(\S+) ([a-z]+)(?:@(\d+)(?:~(\d+))?)? (\d+) ")


def tag_of(lease: str) -> str:
    """Return the delivery tag of the task whose lease it is."""
    return lease.rsplit(".", 2)[0]


def whole_of(key: str) -> str:
    """Return the key of a queue as a whole for that of a partition; any other as it is."""
    return ":".join(key.split(":")[:2]) if key.startswith("queue:") else key


class TaskName(NamedTuple):
    """Which task, who is charged, what it is, and how it stands among that tenant's.

    Attributes:
        tag: Its delivery tag.
        key: Of its tenant's tier limit, or ``_system``.
        kind: Its name as it is written in keys.
        rank: 0 to 9; 9 goes first.
        limits: Those beside its tier's, as one word.
        seq: Its place among all.
        cost: What it declares.
        refused: The limit of which it was told that it refused it: ``STRATEGY|KEY``; ``-`` where it
            has started since, "" where there is none.
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
        """Every key of which it holds a slot while it runs: the tenant's first, each once."""
        of_limits = map(key_of_limit, self.limits.split(",") if self.limits else ())
        return tuple(dict.fromkeys((self.key, *of_limits)))

    @property
    def lane(self) -> str:
        """The lane in which it waits, or waited."""
        return f"{self.rank},{self.limits}" if self.limits else self.rank


class Row(NamedTuple):
    """One claimed task as ``running`` keeps it.

    Attributes:
        owner: The process that holds it.
        state: ``claimed``, ``begun`` or ``acked``.
        queue: In which it waited.
        task: Its names.
        record: The whole.
        since: The logical time of its claim; None of a task that no process holds.
        mean_ms: How long tasks of its kind took lately; None where nothing was known.
    """

    owner: str
    state: str
    queue: str
    task: TaskName
    record: str
    since: int | None = None
    mean_ms: int | None = None


class Keys:
    """Key names of one installation's dispatch path.

    Args:
        prefix: What every key begins with.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.charged = prefix + "charged"
        self.clock = prefix + "clock"
        self.closed = prefix + "closed"
        self.cooled = prefix + "cooled"
        self.ends = prefix + "ends"
        self.events = prefix + "events"
        self.events_apart = tuple(f"{prefix}{each}_events" for each in KEPT_APART)
        self.exceeded = prefix + "exceeded"
        self.gate_expires = prefix + "gate_expires"
        self.gate_looks = prefix + "gate_looks"
        self.gate_promoted = prefix + "gate_promoted"
        self.gate_tasks = prefix + "gate_tasks"
        self.gate_virtual = prefix + "gate_virtual"
        self.gate_waiting = prefix + "gate_waiting"
        self.forwarder = prefix + "forwarder"
        self.forwarded = prefix + "forwarded"
        self.idle = prefix + "idle"
        self.known = prefix + "known"
        self.looks = prefix + "looks"
        self.news = prefix + "news"
        self.outcomes = prefix + "outcomes"
        self.opens = prefix + "opens"
        self.overrides = prefix + "overrides"
        self.paused = prefix + "paused"
        self.paused_by = prefix + "paused_by"
        self.paused_until = prefix + "paused_until"
        self.queue_keys = prefix + "queue_keys"
        self.queue_limits = prefix + "queue_limits"
        self.returned = prefix + "returned"
        self.running = prefix + "running"
        self.sequence = prefix + "sequence"
        self.shared = prefix + "shared"
        self.task_events = prefix + "task_events"
        self.tiers = prefix + "tiers"
        self.virtual = prefix + "virtual"
        self.waiting = prefix + "waiting"
        self.workers = prefix + "workers"

    def of(self, kind: str, name: str) -> str:
        """Return a key of one queue or tenant, such as ``ring:QUEUE``."""
        return f"{self.prefix}{kind}:{name}"

    def pattern(self, kind: str = "") -> str:
        """Return what matches every key, or those of one kind."""
        return re.sub(r"([\\*?\[\]])", r"\\\1", self.prefix) + (f"{kind}:*" if kind else "*")


def read_record(text: str) -> TaskName | None:
    """Return whose task a record is."""
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
    """Say whether a key is that of a tenant's tier, or of the tasks without a tenant."""
    return key == SYSTEM or key.startswith("tenant:")


class ParkedPlaces(NamedTuple):
    """What a record of ``gate_tasks`` says of where it may be.

    Attributes:
        tenant: Who is charged.
        places: The names of its limits, the key of its tenant's tier before.
        expires: It does.
        record: Of its tenant, in Redis, without the prefix.
        tier: Of its tenant, as it was known.
    """

    tenant: str
    places: tuple[str, ...]
    expires: bool
    record: str
    tier: str


def read_parked(record: str) -> ParkedPlaces | None:
    """Return where a task of a gate may wait."""
    fields = record.partition("\n")[0].split(" ")
    if len(fields) != PARKED_FIELDS:
        return None
    words = fields[6].split(",") if fields[6] else []
    names = ("|".join(shape_of(word).split("|")[:NAME_FIELDS]) for word in words)
    places = dict.fromkeys([fields[2], *names])
    told = tuple(each for each in places if each)
    return ParkedPlaces(fields[2] or SYSTEM, told, fields[1] != "", fields[3], fields[4])


def turn_name(tenant: str, seq: int) -> str:
    """Return what a tenant is called among those of a place, by its first task."""
    return f"{seq:016} {tenant}"


def read_row(text: str) -> Row | None:
    """Return a row of ``running``; the queue's length there is in bytes."""
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
    told = [None if each is None else int(each) for each in (since, mean)]
    return Row(owner, state, queue, task, record, *told)


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
    """Return the lane of a part, as orders name it, and its kind; None: what never came back."""
    word, space, kind = part.partition(" ")
    return (word[:-1], kind) if space else (part, None)


def part_key(keys: Keys, key: str, part: str, queue: str) -> str:
    """Return the key in which the tasks of a part are."""
    lane, kind = read_part(part)
    if kind is None:
        return keys.of("lane", f"{key} {lane} {queue}")
    return keys.of("back", f"{key} {lane} {kind} {queue}")


def part_length(keys: Keys, key: str, part: str, queue: str) -> tuple[str, str]:
    """Return the command that asks how many tasks are in a part."""
    command = "LLEN" if read_part(part)[1] is None else "ZCARD"
    return command, part_key(keys, key, part, queue)


def order_key(keys: Keys, key: str, group: str, queue: str) -> str:
    """Return in which order the parts of a group stand; "" is what no limit keeps."""
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
    """Say whether the key of a limit was made from the tenant."""
    return word.endswith("p")


def own_group(key: str, lane: str) -> str:
    """Return the group of a lane that a private limit refused."""
    return f"{key} {shape_of(lane)}"


def shared_group(lane: str) -> str:
    """Return the group of a lane that another limit refused."""
    return ",".join(word for word in limits_of(shape_of(lane)) if not is_private(word))


def group_of(key: str, lane: str, alone: str | None) -> str:
    """Return the group of a lane by what ``parked`` says of it; "" where it is ready."""
    if alone is None:
        return ""
    return own_group(key, lane) if float(alone) else shared_group(lane)


def may_wait_at(group: str) -> list[str]:
    """Return the names of the limits at which a group may wait."""
    words = limits_of(group.partition(" ")[2]) if " " in group else group.split(",")
    return [word.rpartition("|")[0] for word in words if is_private(word) == (" " in group)]


def read_group(name: str) -> tuple[str, str]:
    """Return group and queue of ``GROUP QUEUE``; only a limit's word has a bar in it."""
    first, _, rest = name.partition(" ")
    if "|" in first:
        return first, rest
    lane, _, queue = rest.partition(" ")
    return f"{first} {lane}", queue


def read_shelf(name: str) -> tuple[str, str, str]:
    """Return key, group and queue of ``KEY GROUP QUEUE``."""
    key, _, rest = name.partition(" ")
    return (key, *read_group(rest))
