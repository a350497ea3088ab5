"""What becomes of each task, told one by one while somebody watches.

It has a stream of its own: a flood of tasks drives nothing out that people must see.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.model.happenings import Happenings
from tests.model.lanes import Task
from tests.model.rows import Running


class Watch:
    """The stream ``task_events``, and until when it is written.

    Attributes:
        until_ms: Server time until which tasks are told.
        happenings: What was told.
    """

    def __init__(self) -> None:
        self.until_ms = 0
        self.happenings = Happenings()

    def go_on(self, now_ms: int, wait_ms: int) -> int:
        """Somebody watches for so long; return until when somebody does."""
        was_on, self.until_ms = self.until_ms > now_ms, max(self.until_ms, now_ms + wait_ms)
        if not was_on:
            self.happenings.tell("task.watched", until=self.until_ms)
        return self.until_ms

    def put(self, now_ms: int, queue: str, task: Task, eta_ms: int) -> None:
        """A task was put that may start from a time on."""
        told = {"tier": task.tier, "cost": f"{task.cost:.17g}", "rank": task.rank, "eta": eta_ms}
        self._tell(now_ms, "task.put", queue, task, told)

    def started(self, now_ms: int, queue: str, task: Task, owner: str) -> None:
        """A task was claimed."""
        waited = _seconds(task.put_ms, now_ms)
        told = {"attempt": task.attempt, "owner": owner, "waited_seconds": waited}
        self._tell(now_ms, "task.started", queue, task, told)

    def ended(self, now_ms: int, logical: int, row: Running, outcome: str) -> None:
        """An attempt has ended."""
        told = {"attempt": row.task.attempt, "owner": row.owner, "outcome": outcome}
        ran = {"ran_seconds": _seconds(row.since, logical)}
        self._tell(now_ms, "task.ended", row.queue, row.task, told | ran)

    def _tell(
        self, now_ms: int, what: str, queue: str, task: Task, told: Mapping[str, object]
    ) -> None:
        if self.until_ms > now_ms:
            self.happenings.tell_of(what, queue, task, key=task.key, **told)


def _seconds(since_ms: int | None, now_ms: int) -> str:
    return "" if since_ms is None else f"{max(0, now_ms - since_ms) / 1000:.3f}"
