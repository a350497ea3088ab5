"""What the claims of each minute started and found at its tier's limit, by tier and queue.

The functions forget a minute after some hours; the model keeps them all.
"""

from __future__ import annotations

from collections import defaultdict

from celery_fairness.control.minutes import MINUTE_MS, NOISY, QUIET
from tests.model.lanes import Task

#: Of more fields of a minute the others are counted as those of one queue.
FIELDS_AT_MOST = 1000
OTHER_QUEUES = "_other"
#: How a start is counted that is not the first of its task, or whose wait is unknown, as at a gate.
STARTED = "started"


class Minutes:
    """Counts by minute, and by what happened, tier and queue."""

    def __init__(self) -> None:
        self.counts: defaultdict[int, dict[str, int]] = defaultdict(dict)

    def note_start(self, now_ms: int, task: Task, tier: str, queue: str) -> None:
        """Count a task that starts, by the bits of the milliseconds that it has waited."""
        what = STARTED
        if task.put_ms is not None and task.attempt == 1:
            waited_ms = max(0, now_ms - task.put_ms)
            what = f"{NOISY if task.is_noisy else QUIET}:{waited_ms.bit_length()}"
        self.note(now_ms, what, tier, queue)

    def note(self, now_ms: int, what: str, tier: str, queue: str) -> None:
        """Count one."""
        minute, field = self.counts[now_ms // MINUTE_MS], f"{what} {tier} {queue}"
        if field not in minute and len(minute) >= FIELDS_AT_MOST:
            field = f"{what} {tier} {OTHER_QUEUES}"
        minute[field] = minute.get(field, 0) + 1
