"""Warns of a task that waits for a limit while its own parent holds the limit's slot.

If the parent waits for the task's result (``result.get()`` in a body), neither task ends. A worker
cannot see whether the parent waits, so it logs the risk.

Weakness: the check reads at most a hundred leases of a key, and it checks parents, not
grandparents. In a flood of rejections, the task that it checks may be one without the risk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from celery_fairness.config.limit_spec import read_limits
from celery_fairness.config.tenants import id_part
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Reason, Rejected
from celery_fairness.message.attribution import Attribution
from celery_fairness.util.log_fields import about
from celery_fairness.util.throttled_log import Notices

#: The shortest time between two checks of tasks of one name, in seconds.
CHECK_SECONDS = 1.0


class DeadlockWarning:
    """Logs that the parent of a rejected task holds a slot that the task waits for.

    The line comes at most once a minute for each task name. A check reads leases in Redis, so there
    is at most one a second for each name.
    """

    def __init__(
        self,
        notices: Notices,
        limiter: Limiter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notices, self._limiter, self._clock = notices, limiter, clock
        self._checked_at: dict[str, float] = {}

    def check(self, task: Any, request: Any, attribution: Attribution, rejected: Rejected) -> None:
        """Check a rejected task."""
        parent = request.parent_id
        # The parent of a retry is the same task, and nothing waits for itself.
        if parent in (None, "", request.id) or rejected.reason in (
            Reason.SUPERSEDED,
            Reason.LIMITER_UNAVAILABLE,
        ):
            return
        now = self._clock()
        if now - self._checked_at.get(task.name, float("-inf")) < CHECK_SECONDS:
            return
        self._checked_at[task.name] = now
        try:
            key = next(_held_by(parent, self._limiter, attribution, rejected), None)
        except LimiterUnavailable:
            return
        if key is not None:
            self._notices.error(
                f"parent:{task.name}",
                "task %s[%s] waits for the limit %s, and its parent %s holds a slot of it: if the "
                "parent waits for its result, neither ends",
                task.name,
                request.id,
                key,
                parent,
                extra=about(
                    task_name=task.name, task_id=request.id, tenant=attribution.tenant, key=key
                ),
            )


def _held_by(
    parent: str, limiter: Limiter, attribution: Attribution, rejected: Rejected
) -> Iterator[str]:
    """Yield the keys that block a task and that its parent holds.

    A key counts if it rejected the task, or if it would reject the task next.
    """
    # A message carries the numbers of its own limits. For the tier and for the key that rejected
    # the task, the limiter's answer has them.
    full_from = {limit.key: limit["concurrency"] for limit in read_limits(attribution.limits_text)}
    if rejected.key:
        by_lease = rejected.reason is Reason.AT_CONCURRENCY_LIMIT
        full_from = {rejected.key: 0 if by_lease else None} | {
            key: held for key, held in full_from.items() if key != rejected.key
        }
    if rejected.limit and rejected.held >= rejected.limit:
        full_from[attribution.key] = 0
    for key, held in full_from.items():
        if held is None:
            continue
        leases = limiter.leases_of(key)
        if leases.held >= held and any(each.task_id == id_part(parent) for each in leases.first):
            yield key
