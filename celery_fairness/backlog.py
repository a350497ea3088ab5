"""How much may wait: the bounds of a tier and of a queue.

A bound is judged where a task is put, and nowhere else: nothing that was accepted is rejected
later. So what comes back may pass it: a retry, a dead worker's tasks, an eta whose time has come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_fairness.errors import got

#: Largest number of waiting tasks that may be a bound.
MAX_WAITING = 1_000_000_000


@dataclass(frozen=True, slots=True)
class QueueBound:
    """What the settings say of one queue.

    Attributes:
        max_waiting: Tasks that may wait in it, 1 to 1,000,000,000; None is any number.
    """

    max_waiting: int | None = None


def waiting_problems(value: Any) -> list[str]:
    """Return what is wrong with a bound, one sentence; empty where nothing is."""
    if value is None or (type(value) is int and 1 <= value <= MAX_WAITING):
        return []
    takes = f"a whole number from 1 to {MAX_WAITING}, or None (any number)"
    return [f"max_waiting: expected {takes}, got: {got(value)}"]


def read_queues(queues: Mapping[Any, Any]) -> tuple[dict[str, QueueBound], list[str]]:
    """Return the bounds of queues by name, and what is wrong, one sentence each.

    Args:
        queues: ``{name: {"max_waiting": number}}`` or ``{name: QueueBound}``.
    """
    found: dict[str, QueueBound] = {}
    problems: list[str] = []
    for name, fields in queues.items():
        if not isinstance(name, str) or not name:
            problems.append(f"queue name: expected text, got: {got(name)}")
            continue
        if isinstance(fields, QueueBound):
            fields = {"max_waiting": fields.max_waiting}
        if not isinstance(fields, Mapping):
            problems.append(f"{name}: expected a mapping of fields, got: {got(fields)}")
        elif unknown := sorted(set(map(str, fields)) - {"max_waiting"}):
            problems.append(f"{name}: expected the field max_waiting, got: {unknown[0]!r}")
        elif wrong := waiting_problems(fields.get("max_waiting")):
            problems += [f"{name}: {problem}" for problem in wrong]
        else:
            found[name] = QueueBound(fields.get("max_waiting"))
    return found, problems
