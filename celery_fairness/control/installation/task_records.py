"""The texts in the keys that the modules of ``control`` read.

The library in ``store/lua`` defines them. A text that cannot be read is None here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from celery_fairness.config.queue_limits import PARKED_QUEUES
from celery_fairness.scheduler.types import SYSTEM

#: Characters before the tag of a scheduled task.
ORDER_LENGTH = 17

_WORD = "([^ ]*)"
#: SEQ ATTEMPTS DEATHS COST RANK TENANT SERVICE TIER NAME LIMITS PUT BLOCKED ID QUEUE [ROUTE]
_HEAD = re.compile(
    rf"(\d+) (\d+) (\d+) [^ ]+ \d {_WORD} {_WORD} {_WORD} {_WORD} {_WORD} [^ ]* {_WORD} "
    rf"{_WORD} (.*)",
    re.DOTALL,
)
_ROW = re.compile(
    r"(\d+\.\w+) (\S+) ([a-z]+)(?:@(\d+)(?:~(\d+))?)? (\S+) (\S*) \S* \S* .*", re.DOTALL
)


class TaskHead(NamedTuple):
    """The head of a task's record.

    Attributes:
        tag: Its delivery tag.
        seq: Its sequence number among all tasks.
        attempts: How often it was claimed before.
        deaths: How often its process died after its body began.
        tenant: The charged tenant, in its form in keys; "" is a system task.
        service: Its service, if services count apart.
        tier: Its tenant's tier as the message has it.
        name: The task's name, in its form in keys.
        limits: Its limits without the tier's, as one text.
        rejected_by: The limit of its last event ``rate_limit.exceeded``, as ``STRATEGY|KEY``. It is
            ``-`` if the task has started since, and "" without such an event. It is
            ``STATE|OWNER`` if the task is a dead letter, or has ended in another way in which no
            worker could write its result.
        task_id: Its id, in its form in keys. "" if its message has none.
        queue: Its queue, or the queue of the parked tasks of its broker.
        route: The routing key with which a parked task is published again. "" for other tasks.
    """

    tag: str
    seq: int
    attempts: int
    deaths: int
    tenant: str
    service: str
    tier: str
    name: str
    limits: str
    rejected_by: str
    task_id: str
    queue: str
    route: str

    @property
    def key(self) -> str:
        """Key of its tenant's tier limit, or ``_system``."""
        if not self.tenant:
            return SYSTEM
        return f"tenant:{self.tenant}" + (f":{self.service}" if self.service else "")

    @property
    def is_parked(self) -> bool:
        """Whether a gate has parked it."""
        return self.queue.startswith(PARKED_QUEUES)

    @property
    def shown_queue(self) -> str:
        """Its queue; the one to which a parked task goes back."""
        return self.route if self.is_parked else self.queue


class Row(NamedTuple):
    """One claimed task.

    Attributes:
        owner: Process that holds it.
        task: The head of its record.
        keys: The keys in which its lease counts, the tenant's first.
        since: Logical time of its claim, or None if no process holds the task.
        mean_ms: Recent mean run time of tasks of its name, or None if unknown.
    """

    owner: str
    task: TaskHead
    keys: tuple[str, ...]
    since: int | None = None
    mean_ms: int | None = None

    @property
    def queue(self) -> str:
        """Queue of the task."""
        return self.task.queue


def read_head(tag: str, text: str | None) -> TaskHead | None:
    """Return the head of a task's record."""
    match = _HEAD.fullmatch(text or "")
    if match is None:
        return None
    seq, attempts, deaths, *words, queue = match.groups()
    is_parked = queue.startswith(PARKED_QUEUES)
    place = queue.partition(" ")[::2] if is_parked else (queue, "")
    return TaskHead(tag, int(seq), int(attempts), int(deaths), *words, *place)


def is_tenants(key: str) -> bool:
    """Return whether a key belongs to a tenant's tier, or to tasks without a tenant."""
    return key == SYSTEM or key.startswith("tenant:")


def read_row(tag: str, text: str | None, head: str | None) -> Row | None:
    """Return a claimed task from its row of ``running`` and its head. No promoted task runs."""
    match, task = _ROW.fullmatch(text or ""), read_head(tag, head)
    if match is None or task is None or task.is_parked:
        return None
    _, owner, _, since, mean, keys, _ = match.groups()
    times = [None if each is None else int(each) for each in (since, mean)]
    return Row(owner, task, tuple(keys.split(",")), *times)


def keys_of_row(text: str) -> tuple[str, ...]:
    """Return the keys in which the lease of a row of ``running`` counts."""
    match = _ROW.fullmatch(text)
    # Behind a star are the slots or units that the task takes of the key.
    return () if match is None else tuple(key.partition("*")[0] for key in match[6].split(","))
