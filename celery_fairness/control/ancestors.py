"""Running tasks that called a task, directly or through others.

A body may wait for the result of a task that it called, if it allows ``result.get()``. If it also
holds the slot that this task needs, neither ever ends.

Weakness: Redis cannot show whether a body waits for a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from celery_fairness.control.find_task import MessageNames, messages_of, read_message, running
from celery_fairness.control.scan import Reader, batches
from celery_fairness.control.views import Blocker

#: Running tasks whose callers are read.
RUNNING_AT_MOST = 10_000
#: Messages in one call.
BATCH = 20


def ancestors_of(reader: Reader, names: MessageNames) -> set[str]:
    """Return the ids of a task's callers, by its message and the messages of running tasks."""
    found = {each for each in (names.parent_id, names.root_id) if each} - {names.task_id}
    if not found:
        return found
    tags = (row.task.tag for row in islice(running(reader), RUNNING_AT_MOST))
    messages = (text for some in batches(tags, BATCH) for text in messages_of(reader, some))
    callers = {each.task_id: each.parent_id for each in map(read_message, messages)}
    caller = callers.get(names.parent_id)
    while caller and caller not in found | {names.task_id}:
        found.add(caller)
        caller = callers.get(caller)
    return found


def with_ancestors(blocked: Iterable[Blocker], ancestors: Iterable[str]) -> Iterator[Blocker]:
    """Yield blockers, each with the holders that called the task."""
    known = set(ancestors)
    for each in blocked:
        its = tuple(lease.task_id for lease in each.holders if lease.task_id in known)
        yield replace(each, ancestors=its)
