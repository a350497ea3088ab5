"""``fairness.queues``: queues, their waiting tasks, and their limits."""

from __future__ import annotations

from typing import Any

from celery_fairness.config.limit_spec import OnLimit
from celery_fairness.config.rates import RateLike
from celery_fairness.control.queue_limits import QueueLimits
from celery_fairness.control.stats_api import StatsApi
from celery_fairness.control.views import QueueLimit, QueueState, QueueStatus
from celery_fairness.errors import NotFound


class QueuesApi:
    """Queues by name.

    Every method raises ``LimiterUnavailable`` if Redis does not answer.

    Args:
        limits: Reads and writes the limits of queues.
        stats: Reads the waiting tasks.
    """

    def __init__(self, limits: QueueLimits, stats: StatsApi) -> None:
        self._limits = limits
        self._stats = stats

    def list(self) -> tuple[QueueState, ...]:
        """Return every known queue by name, with its tasks and its limit.

        If the broker does not claim fairly, waiting tasks are not in Redis. Then the list has only
        queues with a limit, and ``tasks`` is None.
        """
        rows = {row.queue: row for row in self._stats.status().queues}
        limits = {limit.queue: limit for limit in self._limits.all()}
        return tuple(
            _state(queue, rows.get(queue), limits.get(queue)) for queue in sorted({*rows, *limits})
        )

    def inspect(self, queue: str) -> QueueState:
        """Return one queue, with its tasks and its limit.

        Raises:
            NotFound: No task was in the queue and it has no limit.
            PolicyInvalid: The name is no text.
        """
        rows = {row.queue: row for row in self._stats.status().queues}
        limit = self._limits.find_limit(queue)
        if queue not in rows and limit is None:
            raise NotFound("queue", queue, "has no limit, and no task was in it")
        return _state(queue, rows.get(queue), limit)

    def set_limit(
        self,
        queue: str,
        *,
        global_limit: int | None = None,
        local_limit: int | None = None,
        rate: RateLike | None = None,
        throttle: RateLike | None = None,
        on_limit: OnLimit = "wait",
    ) -> QueueLimit:
        """Limit a queue, instead of what the settings declare, until the limit is cleared.

        The numbers hold from the next claim on; running tasks above them go on. If the settings
        partition the limit, the numbers hold for each partition. On a broker that does not claim
        fairly, they hold for the queues that the setting ``queues`` names.

        Args:
            queue: The name of the queue.
            global_limit: Tasks at once in all processes. None is unlimited and 0 pauses.
            local_limit: Tasks at once in one process. The smaller of the two holds.
            rate: Starts in any window of a period, as in
                :class:`~celery_fairness.RateLimitPolicy`. None is unlimited.
            throttle: The same, evenly spaced.
            on_limit: What happens to a task above the limit: ``wait``, ``reschedule`` or ``drop``.

        Raises:
            PolicyInvalid: A number is invalid, or the gates of this broker do not check the queue.
        """
        given: dict[str, Any] = {
            "global_limit": global_limit,
            "local_limit": local_limit,
            "rate": rate,
            "throttle": throttle,
            "on_limit": on_limit,
        }
        return self._limits.set(queue, given)

    def clear_limit(self, queue: str) -> bool:
        """End an operator's limit, so that the settings hold; return whether there was one."""
        return self._limits.clear(queue)


def _state(queue: str, row: QueueStatus | None, limit: QueueLimit | None) -> QueueState:
    return QueueState(queue=queue, tasks=row, limit=limit)
