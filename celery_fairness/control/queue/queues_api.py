"""``fairness.queues``: queues, their waiting tasks, and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_fairness.config.limit_spec import OnLimit
from celery_fairness.config.numbers import PARTITION, shown_numbers
from celery_fairness.config.queue_limits import CLEARED, SET, QueueRow
from celery_fairness.config.queue_policy import QUEUE_NAME, QueueNumbers, queue_key, read_queue
from celery_fairness.control.installation.installation import Installation
from celery_fairness.control.key.queue_keys import QueueKeys
from celery_fairness.control.queue.queue_status import all_queues, one_queue
from celery_fairness.control.queue.views import (
    PartitionLimit,
    QueueLimit,
    QueueState,
    QueueStatus,
)
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
        partition: Mapping[str, Any] | None = None,
        on_limit: OnLimit = "wait",
        **numbers: Any,
    ) -> QueueLimit:
        """Set the limit of a queue. It replaces that of the settings until it is cleared.

        The numbers hold from the next claim on; running tasks above them go on. On a broker that
        does not claim fairly, they hold for the queues that the setting ``queues`` names.

        The whole queue and each partition have a limit each. A call with numbers of one of them
        leaves the other as the settings declare it. A call without any number lifts the limit of
        the whole queue.

        Args:
            queue: The name of the queue.
            numbers: Numbers of the whole queue: ``global_limit`` and ``local_limit``, tasks at once
                in all processes and in one (the smaller of the two holds), ``rate`` and
                ``throttle``, as in :class:`~celery_fairness.RateLimitPolicy`. None is unlimited,
                and 0 pauses.
            partition: Numbers that each partition has for itself, as in the setting ``queues``.
            on_limit: What happens to a task above the limit: ``wait``, ``reschedule`` or ``drop``.

        Raises:
            PolicyInvalid: A number is invalid, the gates of this broker do not check the queue,
                its tasks have no partitions, or a number cannot be had with several partitions of
                the installation.
        """
        given = read_queue({**numbers, PARTITION: partition, "on_limit": on_limit})
        self._keys.expect_checked(_named(queue))
        whole, part = given.chosen
        self._expect_shared(given)
        if part is not None:
            self._keys.expect_partitioned(queue)
        row = self._limiter.limit_queue(SET, queue, whole, part)
        return self._limit(queue, row or QueueRow(queue_key(queue), None, None, whole, part))

    def clear_limit(self, queue: str) -> bool:
        """End an operator's limit, so that the settings hold; return whether there was one."""
        row = self._limiter.queue_rows().get(_named(queue))
        self._limiter.limit_queue(CLEARED, queue)
        return row is not None and row.chosen != (None, None)

    def _expect_shared(self, given: QueueNumbers) -> None:
        """Raise ``PolicyInvalid`` if numbers would hold in each of several partitions alone."""
        problem = given.problem_of_partitions(self._limiter.partitions.count)
        if problem:
            raise PolicyInvalid(problem)

    def _state(
        self, queue: str, tasks: Mapping[str, QueueStatus], rows: Mapping[str, QueueRow]
    ) -> QueueState:
        limit = self._limit(queue, rows[queue]) if queue in rows else None
        return QueueState(queue=queue, tasks=tasks.get(queue), limit=limit)

    def _limit(self, queue: str, row: QueueRow) -> QueueLimit:
        limit, part = row.limit, row.part_limit
        return QueueLimit(
            queue=queue,
            key=row.key,
            source="people" if row.by_operator else "settings" if row.declared else "",
            partition=part
            and PartitionLimit(
                source="people" if row.part_by_operator else "settings",
                on_limit=part.on_limit,
                **shown_numbers(PARTITION, dict(part.numbers)),
            ),
            on_limit=limit.on_limit,
            held=self._limiter.leases_of(row.key).held,
            **shown_numbers("queue", dict(limit.numbers)),
        )


def _named(queue: Any) -> str:
    if not QUEUE_NAME.accepts(queue):
        raise PolicyInvalid(QUEUE_NAME.problem("queue", queue))
    return str(queue)
