"""The position of a channel's scan over tenants while its claims skip tasks.

One scan covers all tenants, in as many claims as it needs. After a scan without a task, the next
scan pauses after every few claims. A crowd of tasks for other workers therefore costs little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from celery_fairness.scheduler.lease_table import LeaseTable
from celery_fairness.scheduler.types import Claim, SkippedTasks
from celery_fairness.transport.queue_shares import QueueShares
from celery_fairness.transport.task_filter import NOTHING, TaskFilter

#: After a scan without a task, the next scan pauses for LOOK_SECONDS after this number of claims.
LOOKS_AT_ONCE = 8
LOOK_SECONDS = 0.5


class ScanCursor:
    """The position of one channel."""

    def __init__(self, task_filter: TaskFilter) -> None:
        self._task_filter = task_filter
        #: For each queue, the tenants that the last claim skipped, and the position of the next
        #: claim.
        self.skipped_tenants: Mapping[str, int] = {}
        self._places: Mapping[str, int] = {}
        #: Whether the last complete scan found no task, or only tasks with a rate limit; and the
        #: number of claims since the current scan paused.
        self.found_nothing = False
        self._claims = 0
        self._last_skip = NOTHING

    def next_skip(
        self, lease_table: LeaseTable, queue_shares: QueueShares, is_strict: bool, spare: int = 0
    ) -> SkippedTasks:
        """Return the tasks that the next claim skips.

        ``is_strict`` is whether the claim serves its queues one after the other, and ``spare`` how
        many places it does not lend.
        """
        skipped, held, left = (
            self._task_filter.skipped(self._places),
            lease_table.slots_by_queue_key(),
            queue_shares.left(),
        )
        if skipped is self._last_skip is NOTHING and not (
            held or left or self._places or is_strict or spare
        ):
            return NOTHING
        # If a task name may be taken again, the scan starts at the front.
        available = set(self._last_skip.never).difference(skipped.never)
        places = {} if available else self._places
        self._last_skip = replace(
            skipped,
            places=places,
            held=held,
            rooms=left,
            lends=queue_shares.lends,
            strict=is_strict,
            spare=spare,
        )
        return self._last_skip

    def read_answer(self, claim: Claim) -> float:
        """Read a claim's answer; return the seconds to sleep, or 0 for a claim at once."""
        seconds = claim.sleep_ms / 1000
        self.skipped_tenants = claim.passed
        if seconds:
            self.found_nothing, self._places, self._claims = bool(claim.passed), {}, 0
        elif claim.tasks:
            self._places = self._places if self.found_nothing else {}
        elif any(at > self._places.get(queue, 0) for queue, at in claim.passed.items()):
            # The scan continues in the next claim.
            self._places = claim.passed
            self._claims += 1
            if self.found_nothing and self._claims >= LOOKS_AT_ONCE:
                self._claims, seconds = 0, LOOK_SECONDS
        return (
            min(seconds, self._task_filter.available_in(self._last_skip))
            if claim.passed
            else seconds
        )

    def count_taken(self, task_name: str) -> None:
        """Count a taken task; without a rate limit on its name, the scan is worth its cost."""
        if not self._task_filter.is_limited(task_name):
            self.found_nothing, self._places = False, {}
