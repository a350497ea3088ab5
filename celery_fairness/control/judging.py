"""The limits of a task, each with its snapshot: whether it blocks the task, and until when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from celery_fairness.config.limit_spec import WHOLE, Limit
from celery_fairness.config.queue_limits import QueueNumbers, read_row
from celery_fairness.config.settings import Enforcement
from celery_fairness.control.inspect import Inspector
from celery_fairness.control.installation import Installation
from celery_fairness.control.keys import Row
from celery_fairness.control.ojs_views import Inspection
from celery_fairness.control.views import Blocker, TaskLimit


class Judged(NamedTuple):
    """One limit of a task, and whether it blocks the task.

    Attributes:
        state: The state of its key, with the numbers of this limit.
        closed: Why no task starts: ``concurrency``, ``rate``, ``paused``, ``cool-down``, or "" if
            the limit is available.
        local: Tasks at once in one process. None is unlimited.
        full: The least number of slots that a process holds, if every process is at ``local``. None
            if a process may have a free slot.
    """

    state: Inspection
    closed: str = ""
    local: int | None = None
    full: int | None = None

    @property
    def limit(self) -> Limit:
        """The limit, with the numbers that apply."""
        return self.state.numbers

    @property
    def shown(self) -> TaskLimit:
        """The public form of it."""
        limit, closed = self.limit, self.closed or ("local" if self.full is not None else "")
        return TaskLimit(
            *(self.state.key, limit.concurrency, self.local, limit.rates, limit.throttle),
            *(limit.on_limit, self.state.held, closed, self.state.in_force),
        )

    def blockers(self, starts_in: float | None, in_turn: float | None) -> Iterator[Blocker]:
        """Yield the blockers of this limit.

        Args:
            starts_in: Seconds until it would let the task start, or None if unknown.
            in_turn: Seconds until a process would have a slot for the task, or None if unknown.
        """
        state, holders = self.state, self.state.leases
        if self.closed:
            numbers = (state.held, self.limit.concurrency)
            yield Blocker(
                *(state.key, self.closed, *numbers, state.opens_in_seconds, holders),
                starts_in_seconds=starts_in,
                in_force=state.in_force,
            )
        if self.full is not None:
            yield Blocker(
                *(state.key, "local", self.full, self.local, None, holders),
                starts_in_seconds=in_turn if self.local else None,
            )


class Judge:
    """Checks the limits of a task.

    Args:
        installation: The installation.
        queue: Queue of the task, or of parked tasks.
        rows: Running tasks.
    """

    def __init__(self, installation: Installation, queue: str, rows: Sequence[Row]) -> None:
        self._installation = installation
        self._inspector = Inspector(installation)
        self._queue = queue
        self._rows = rows

    def of_tenant(self, key: str, written: str) -> Judged:
        """Check the limit of a tenant's tier; see ``Inspector.of_waiting``."""
        return _judged(self._inspector.of_waiting(key, written))

    def of_task(self, limits: Iterable[Limit]) -> Iterator[Judged]:
        """Check the limits that a task brings."""
        for each in limits:
            found = self._inspector.of_limit(each)
            yield self._with_local(_judged(found), found.local_limit)

    def of_queue(self) -> Iterator[Judged]:
        """Check the limit of the whole queue, if it has one."""
        reader = self._installation.reader
        text = reader.read("HGET", reader.keys.queue_limits, self._queue)
        if text:
            row = read_row(text)
            numbers = QueueNumbers() if row.parts else row.numbers
            found = self._inspector.of_limit(numbers.limit(row.key, WHOLE))
            yield self._with_local(_judged(found), numbers.local)

    def _with_local(self, judged: Judged, local: int | None) -> Judged:
        if local is None or self._installation.settings.enforcement is not Enforcement.ON:
            return judged
        held = self._fewest_held(judged.limit.key) if local else 0
        return judged._replace(
            local=local, full=held if held is not None and held >= local else None
        )

    def _fewest_held(self, key: str) -> int | None:
        """Return the slots of a key in the process that holds the fewest; None if none runs a task.

        A process that runs no task of the queue cannot be seen here.
        """
        held: Counter[str] = Counter()
        for row in self._rows:
            if row.queue == self._queue:
                held[row.owner] += key in row.keys
        return min(held.values(), default=None)


def _judged(state: Inspection) -> Judged:
    return Judged(state, "rate" if state.blocked_by == "throttle" else state.blocked_by)
