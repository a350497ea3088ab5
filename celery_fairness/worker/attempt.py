"""One attempt of a task in the process that runs its body.

The slot ends with the body, before Celery publishes the next step of a chain. A later release would
make that step compete with its predecessor's slot. The end of the trace releases a lease that the
body's end did not. Releasing twice changes nothing.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.limiter.types import Lease


class Attempt:
    """One attempt that the gate admitted, with a lease or without a slot.

    ``error`` is raised in place of the body (``redis_lost="closed"``).
    """

    __slots__ = ("_begun", "_lease", "_limiter", "error", "task")

    def __init__(
        self,
        task: Any,
        lease: Lease | None,
        limiter: Limiter,
        error: LimiterUnavailable | None = None,
    ) -> None:
        self.task = task
        self.error = error
        self._lease = lease
        self._limiter = limiter
        self._begun = False

    def begin(self, task: Any) -> bool:
        """Return whether this call of ``task`` is the attempt's body.

        It returns True once, and only for the attempt's own task.
        """
        if self._begun or self.task is not task:
            return False
        self._begun = True
        return True

    def end(self) -> None:
        """Release the slot. If the limiter does not answer, the slot ends with its lease."""
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                self._limiter.release_soon(lease)
            except LimiterUnavailable:
                pass


#: The attempt whose trace is running in this thread or greenlet.
current_attempt: ContextVar[Attempt | None] = ContextVar("current_attempt", default=None)
