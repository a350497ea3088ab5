"""``fairness.queues``: queues, their waiting tasks, and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_fairness.config.limit_spec import OnLimit
from celery_fairness.config.numbers import shown_numbers
from celery_fairness.config.queue_limits import CLEARED, SET, QueueRow
from celery_fairness.config.queue_policy import QUEUE_NAME, queue_key, read_queue
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.key.queue_keys import QueueKeys
from celery_fairness.control.queue.queue_status import all_queues, one_queue
from celery_fairness.control.queue.views import QueueLimit, QueueState, QueueStatus
from celery_fairness.errors import NotFound, PolicyInvalid


class QueuesApi:
    """Queues by name.

    Every method raises ``LimiterUnavailable`` if Redis does not answer.
    """

    def __init__(self, installation: Installation) -> None:
        self._installation, self._limiter = installation, installation.limiter
        self._keys = QueueKeys(installation)

    def list(self) -> tuple[QueueState, ...]:
        """Return every known queue by name, with its tasks and its limit.

        If the broker does not claim fairly, waiting tasks are not in Redis. Then the list has only
        queues with a limit, and ``tasks`` is None.
        """
        tasks = {row.queue: row for row in all_queues(self._installation)}
        rows = self._limiter.queue_rows()
        return tuple(self._state(queue, tasks, rows) for queue in sorted({*tasks, *rows}))

    def inspect(self, queue: str) -> QueueState:
        """Return one queue, with its tasks, why they wait, and its limit.

        Raises:
            NotFound: No task was in the queue and it has no limit.
            PolicyInvalid: The name is no text.
        """
        rows = self._limiter.queue_rows()
        found = one_queue(self._installation, _named(queue))
        if found is None and queue not in rows:
            raise NotFound("queue", queue, "has no limit, and no task was in it")
        return self._state(queue, {queue: found} if found else {}, rows)

    def set_limit(
        self,
        queue: str,
        *,
        on_limit: OnLimit = "wait",
        **numbers: Any,
    ) -> QueueLimit:
        """Set the limit of a queue. It replaces that of the settings until it is cleared.

        The numbers hold from the next claim on; running tasks above them go on. If the settings
        partition the limit, the numbers hold for each partition. On a broker that does not claim
        fairly, they hold for the queues that the setting ``queues`` names.

        Args:
            queue: The name of the queue.
            numbers: ``global_limit`` and ``local_limit``, tasks at once in all processes and in one
                (the smaller of the two holds), ``rate`` and ``throttle``, as in
                :class:`~celery_fairness.RateLimitPolicy`. None is unlimited, and 0 pauses.
            on_limit: What happens to a task above the limit: ``wait``, ``reschedule`` or ``drop``.

        Raises:
            PolicyInvalid: A number is invalid, or the gates of this broker do not check the queue.
        """
        policy = read_queue({**numbers, "on_limit": on_limit})
        self._keys.expect_checked(_named(queue))
        row = self._limiter.limit_queue(SET, queue, policy.limit)
        return self._limit(queue, row or QueueRow(queue_key(queue), by_operator=policy.limit))

    def clear_limit(self, queue: str) -> bool:
        """End an operator's limit, so that the settings hold; return whether there was one."""
        row = self._limiter.queue_rows().get(_named(queue))
        self._limiter.limit_queue(CLEARED, queue)
        return row is not None and row.by_operator is not None

    def _state(
        self, queue: str, tasks: Mapping[str, QueueStatus], rows: Mapping[str, QueueRow]
    ) -> QueueState:
        limit = self._limit(queue, rows[queue]) if queue in rows else None
        return QueueState(queue=queue, tasks=tasks.get(queue), limit=limit)

    def _limit(self, queue: str, row: QueueRow) -> QueueLimit:
        limit = row.limit
        source = "people" if row.by_operator else "settings" if row.declared else ""
        return QueueLimit(
            queue=queue,
            key=row.key,
            source=source,
            partitioned=row.parts,
            on_limit=limit.on_limit,
            held=self._limiter.leases_of(row.key).held,
            **shown_numbers("queue", dict(limit.numbers)),
        )


def _named(queue: Any) -> str:
    if not QUEUE_NAME.accepts(queue):
        raise PolicyInvalid(QUEUE_NAME.problem("queue", queue))
    return str(queue)
