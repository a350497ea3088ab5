"""Running tasks that called a task, directly or through others.

A body may wait for the result of a task that it called, if it allows ``result.get()``. If it also
holds the slot that this task needs, neither ever ends.

Weakness: Redis cannot show whether a body waits for a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from celery_fairness.config.tenants import id_part
from celery_fairness.control.find_task import MessageNames, find
from celery_fairness.control.scan import Reader
from celery_fairness.control.views import Blocker

#: Callers whose own callers are read.
CALLERS_AT_MOST = 100


def ancestors_of(reader: Reader, names: MessageNames) -> set[str]:
    """Return the ids of a task's callers: those in its message, and the callers of each."""
    found = {names.parent_id, names.root_id}
    caller = names.parent_id
    for _ in range(CALLERS_AT_MOST):
        places = find(reader, caller) if caller else []
        caller = places[0].names.parent_id if places else ""
        if caller in found:
            break
        found.add(caller)
    return found - {"", names.task_id}


def with_ancestors(blocked: Iterable[Blocker], ancestors: Iterable[str]) -> Iterator[Blocker]:
    """Yield blockers, each with the holders that called the task."""
    # A lease has the id of its task in the form that keys have.
    known = {id_part(each): each for each in ancestors}
    for each in blocked:
        its = tuple(known[lease.task_id] for lease in each.holders if lease.task_id in known)
        yield replace(each, ancestors=its)
