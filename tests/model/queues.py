"""The limits of queues as the model keeps them."""

from __future__ import annotations

from collections.abc import Sequence

from celery_fairness.config.limit_spec import (
    OF_QUEUE,
    WHOLE,
    Limit,
    read_limits,
    write_limits,
)
from celery_fairness.config.queue_limits import (
    QueueNumbers,
    QueueRow,
)


class QueueLimits:
    """The rows of an installation."""

    def __init__(self) -> None:
        self.rows: dict[str, QueueRow] = {}
        self.version = 0

    def queue_of(self, key: str) -> str | None:
        """Return the queue whose own key this is, or whose partition's."""
        whole = ":".join(key.split(":")[:2])
        return next((queue for queue, row in self.rows.items() if row.key == whole), None)

    def version_of(self, limit: Limit) -> int:
        """Return by which version of a queue's numbers a limit is judged; 0: by its own."""
        queue = self.queue_of(limit.key) if limit.of == OF_QUEUE else None
        return 0 if queue is None else self.rows[queue].version

    def judged(self, limit: Limit) -> Limit:
        """Return a limit of a task with its queue's numbers, where it says that it has those."""
        if limit.of != OF_QUEUE:
            return limit
        queue = self.queue_of(limit.key)
        numbers = self.rows[queue].numbers if queue is not None else QueueNumbers()
        return numbers.limit(limit.key, limit.of)

    def local_of(self, limit: Limit) -> int | None:
        """Return how many slots of a queue's limit one process may hold; None is unlimited."""
        queue = self.queue_of(limit.key)
        row = self.rows.get(queue) if queue is not None else None
        if row is None or row.parts != (limit.of == OF_QUEUE):
            return None
        return row.numbers.local

    def in_partition(self, queue: str, limits: str, part: str = "") -> str:
        """Return the limits of a task that begins to wait in ``queue``.

        Args:
            queue: Where; where it is partitioned each task has one partition of it.
            limits: The task's.
            part: The key of its partition where they name none; else that of tasks that say none.
        """
        row = self.rows.get(queue)
        if row is None or not row.parts:
            return limits
        whole = f"{row.key}:"
        named = read_limits(limits)
        if any(limit.of == OF_QUEUE and limit.key.startswith(whole) for limit in named):
            return limits
        key = part if part.startswith(whole) else whole
        return write_limits((*named, Limit(key, of=OF_QUEUE)))

    def are_local(self, queues: Sequence[str]) -> bool:
        """Say whether one of some queues says how many one process may hold."""
        rows = (self.rows[queue] for queue in queues if queue in self.rows)
        return any(row.numbers.local is not None for row in rows)

    def whole(self, queue: str) -> Limit | None:
        """Return the limit of a queue as a whole; None where it has none."""
        row = self.rows.get(queue)
        if row is None:
            return None
        numbers = QueueNumbers() if row.parts else row.numbers
        return numbers.limit(row.key, WHOLE)
