"""The limits of a task, each with its snapshot: whether it blocks the task, and until when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from celery_fairness.config.limit_spec import WHOLE, Limit, read_limits
from celery_fairness.config.queue_limits import QueueNumbers, read_row
from celery_fairness.config.settings import Enforcement
from celery_fairness.control.inspect import Inspector
from celery_fairness.control.installation import Installation
from celery_fairness.control.keys import Row, TaskHead
from celery_fairness.control.ojs_views import Inspection
from celery_fairness.control.views import Blocker, TaskLimit
from celery_fairness.scheduler.types import SYSTEM


class CheckedLimit(NamedTuple):
    """One limit of a task, and whether it blocks the task.

    Attributes:
        state: The state of its key, with the numbers of this limit.
        local: Tasks at once in one process. None is unlimited.
        full: The least number of slots that a process holds, if every process is at ``local``. None
            if a process may have a free slot.
    """

    state: Inspection
    local: int | None = None
    full: int | None = None

    @property
    def limit(self) -> Limit:
        """The limit, with the numbers that apply."""
        return self.state.numbers

    @property
    def blocked_by(self) -> str:
        """Why no task starts, as in ``reason`` of a :class:`Blocker`. "" if one may start."""
        return "rate" if self.state.blocked_by == "throttle" else self.state.blocked_by

    @property
    def shown(self) -> TaskLimit:
        """The public form of it."""
        limit = self.limit
        blocked_by = self.blocked_by or ("local" if self.full is not None else "")
        return TaskLimit(
            *(self.state.key, limit.concurrency, self.local, limit.rates, limit.throttle),
            *(limit.on_limit, self.state.held, blocked_by, self.state.in_force),
        )

    def blockers(self, starts_in: float | None, in_turn: float | None) -> Iterator[Blocker]:
        """Yield the blockers of this limit.

        Args:
            starts_in: Seconds until it would let the task start, or None if unknown.
            in_turn: Seconds until a process would have a slot for the task, or None if unknown.
        """
        state, holders = self.state, self.state.leases
        if self.blocked_by:
            numbers = (state.held, self.limit.concurrency)
            yield Blocker(
                *(state.key, self.blocked_by, *numbers, state.opens_in_seconds, holders),
                starts_in_seconds=starts_in,
                in_force=state.in_force,
            )
        if self.full is not None:
            yield Blocker(
                *(state.key, "local", self.full, self.local, None, holders),
                starts_in_seconds=in_turn if self.local else None,
            )


def limits_of(
    installation: Installation, task: TaskHead, running: Iterable[Row]
) -> Iterator[CheckedLimit]:
    """Check the limit of a task's tenant, those that it brings, and that of its whole queue.

    Args:
        installation: The installation.
        task: The task.
        running: Running tasks, or a sample of them.
    """
    inspector, reader = Inspector(installation), installation.reader
    enforced = installation.settings.enforcement is Enforcement.ON
    of_queue = [row for row in running if row.queue == task.queue]

    def checked(state: Inspection, local: int | None) -> CheckedLimit:
        if local is None or not enforced:
            return CheckedLimit(state)
        held = _fewest_held(of_queue, state.key) if local else 0
        return CheckedLimit(state, local, held if held is not None and held >= local else None)

    if task.key != SYSTEM:
        yield CheckedLimit(inspector.of_waiting(task.key, task.tenant))
    for each in map(inspector.of_limit, read_limits(task.limits)):
        yield checked(each, each.local_limit)
    text = reader.read("HGET", reader.keys.queue_limits, f"queue {task.queue}")
    if text:
        row = read_row(text)
        numbers = QueueNumbers() if row.parts else row.numbers
        state = inspector.of_limit(numbers.limit(row.key, WHOLE))
        yield checked(state, numbers.local)


def _fewest_held(rows: Iterable[Row], key: str) -> int | None:
    """Return the slots of a key in the process that holds the fewest; None if none runs a task.

    A process that runs no task of the queue cannot be seen here.
    """
    held: Counter[str] = Counter()
    for row in rows:
        held[row.owner] += key in row.keys
    return min(held.values(), default=None)
