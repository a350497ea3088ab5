"""The keys of the dispatch path and the texts that lie in them, as the scripts write them.

``store/lua/dispatch`` is what decides; a text that cannot be read is None here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from celery_fairness.scheduling.words import SYSTEM

#: Ranks, and so lanes of one tenant in one queue beside those of what came back.
RANKS = "9876543210"
#: What stands before a record that waits for its time, in characters.
ORDER_LENGTH = 17

_RECORD = re.compile(r"\d+ (\S+) \d+ \d+ \S+ \d (\S*) (\S*) \S* (\S*)\n")
_ROW = re.compile(r"(\S+) ([a-z]+) (\d+) ")


class TaskName(NamedTuple):
    """Which task, who is charged, and what it is."""

    tag: str
    key: str
    kind: str


class Row(NamedTuple):
    """One claimed task as ``running`` keeps it."""

    owner: str
    state: str
    queue: str
    task: TaskName


class Keys:
    """Key names of one installation's dispatch path.

    Args:
        prefix: What every key begins with.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.closed = prefix + "closed"
        self.ends = prefix + "ends"
        self.known = prefix + "known"
        self.news = prefix + "news"
        self.returned = prefix + "returned"
        self.running = prefix + "running"
        self.sequence = prefix + "sequence"
        self.virtual = prefix + "virtual"
        self.waiting = prefix + "waiting"

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
    tag, tenant, service, kind = match.groups()
    if not tenant:
        return TaskName(tag, SYSTEM, kind)
    key = f"tenant:{tenant}:{service}" if service else f"tenant:{tenant}"
    return TaskName(tag, key, kind)


def read_row(text: str) -> Row | None:
    """Return a row of ``running``; the queue's length there is in bytes."""
    match = _ROW.match(text)
    if match is None:
        return None
    owner, state, size = match.group(1), match.group(2), int(match.group(3))
    start = match.end()
    queue = text[start : start + size].encode()[:size].decode(errors="replace")
    task = read_record(text[start + len(queue) :])
    return None if task is None else Row(owner, state, queue, task)


def lane_parts(kind: str, name: str) -> tuple[str, str]:
    """Return key and queue of ``KEY RANK QUEUE`` or ``KEY RANK KIND QUEUE``, "" what is missing."""
    parts = name.split(" ", 3 if kind == "back" else 2)
    return parts[0], parts[-1] if len(parts) > 2 else ""


def is_back(lane: str) -> bool:
    """Say whether a lane, as ``ready`` names it, holds what came back."""
    return lane[1:3] == "b "


def lane_key(keys: Keys, key: str, lane: str, queue: str) -> str:
    """Return the key of a lane that is named as in ``ready``: ``RANK`` or ``RANKb KIND``."""
    if is_back(lane):
        return keys.of("back", f"{key} {lane[0]} {lane[3:]} {queue}")
    return keys.of("lane", f"{key} {lane} {queue}")


def lane_length(keys: Keys, key: str, lane: str, queue: str) -> tuple[str, str]:
    """Return the command that asks for the length of a lane."""
    return "ZCARD" if is_back(lane) else "LLEN", lane_key(keys, key, lane, queue)
