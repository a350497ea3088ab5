"""``fairness.tasks``: one waiting, running or dead task by its id."""

from __future__ import annotations

from collections.abc import Callable

from celery_fairness.control.clearing import Clearing
from celery_fairness.control.inspect import Inspector
from celery_fairness.control.views import Cancelled, DeadLetter, Explanation, Requeued


class TasksApi:
    """Tasks by id.

    Args:
        clearing: Returns what finds and changes tasks.
        inspector: Inspects the limits of a task.
        expect_claims: Raises ValueError if the broker does not claim fairly.
    """

    def __init__(
        self,
        clearing: Callable[[], Clearing],
        inspector: Inspector,
        expect_claims: Callable[[], None],
    ) -> None:
        self._clearing = clearing
        self._inspector = inspector
        self._expect_claims = expect_claims

    def explain(self, task_id: str) -> Explanation:
        """Return where a task is, why it does not start, and which tasks hold its slots.

        To find the task, the messages of all waiting tasks are read.

        Raises:
            NotFound: No task of this id waits, runs or is a dead letter; at a gate: none is parked.
            LimiterUnavailable: Redis does not answer.
        """
        return self._clearing().explain(task_id, self._inspector)

    def cancel(self, task_id: str) -> Cancelled:
        """Cancel a task that waits: in its lane, at a limit, until its time, or parked by a gate.

        A worker stores the result ``REVOKED``, and fails its chord. To find the task, the messages
        of all waiting tasks are read.

        Returns:
            The state: cancelled; or running, and then the task is not stopped:
            ``app.control.revoke(task_id, terminate=True)`` does that.

        Raises:
            NotFound: No task of this id waits or runs; at a gate: none is parked.
            LimiterUnavailable: Redis does not answer.
        """
        return self._clearing().cancel(task_id)

    def dead_letters(self, queue: str | None = None) -> tuple[DeadLetter, ...]:
        """Return the dead letters of a queue, or of all, the newest of each queue first.

        Raises:
            ValueError: The broker does not claim fairly.
            LimiterUnavailable: Redis does not answer.
        """
        self._expect_claims()
        return tuple(self._clearing().dead_letters(queue))

    def requeue(self, task_id: str) -> Requeued:
        """Put a dead letter back, last in its lane; its deaths are counted from 0 again.

        Args:
            task_id: The task's id, or the name that ``dead_letters`` shows if it has none.

        Raises:
            NotFound: There is no such dead letter.
            ValueError: The broker does not claim fairly.
            LimiterUnavailable: Redis does not answer.
        """
        self._expect_claims()
        return self._clearing().requeue(task_id)
