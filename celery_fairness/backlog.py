"""How much may wait: the bounds of a tier and of a queue.

A bound is judged where a task is put, and nowhere else: nothing that was accepted is rejected
later. So what comes back may pass it: a retry, a dead worker's tasks, an eta whose time has come.
"""

from __future__ import annotations

from typing import Any

from celery_fairness.errors import got

#: Largest number of waiting tasks that may be a bound.
MAX_WAITING = 1_000_000_000


def waiting_problems(value: Any) -> list[str]:
    """Return what is wrong with a bound, one sentence; empty where nothing is."""
    if value is None or (type(value) is int and 1 <= value <= MAX_WAITING):
        return []
    takes = f"a whole number from 1 to {MAX_WAITING}, or None (any number)"
    return [f"max_waiting: expected {takes}, got: {got(value)}"]
