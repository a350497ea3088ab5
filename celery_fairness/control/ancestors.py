"""Tasks that called a task, directly or through others, among those that run.

If one of them waits for its result, as ``result.get()`` in a body does where Celery was told to
allow it, and holds the slot that it waits for, neither ever ends. Nobody can see whether it waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from celery_fairness.control.find_task import Told, read_message, running
from celery_fairness.control.scan import Reader
from celery_fairness.control.views import Blocker

#: Running tasks that are asked who called them.
RUNNING_AT_MOST = 10_000


def ancestors_of(reader: Reader, told: Told) -> set[str]:
    """Return the ids of what called a task, as far as its message and those that run say it."""
    found = {each for each in (told.parent_id, told.root_id) if each} - {told.task_id}
    if not found:
        return found
    places = islice(running(reader), RUNNING_AT_MOST)
    messages = (read_message(place.record) for place in places)
    callers = {each.task_id: each.parent_id for each in messages}
    caller = callers.get(told.parent_id)
    while caller and caller not in found | {told.task_id}:
        found.add(caller)
        caller = callers.get(caller)
    return found


def with_ancestors(blocked: Iterable[Blocker], ancestors: Iterable[str]) -> Iterator[Blocker]:
    """Yield limits with those of their holders that called the task."""
    known = set(ancestors)
    for each in blocked:
        its = tuple(lease.task_id for lease in each.holders if lease.task_id in known)
        yield replace(each, ancestors=its)
