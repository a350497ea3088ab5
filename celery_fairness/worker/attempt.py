"""One attempt of a task in the process that runs its body.

The slot is released when the body ends: before the next step of a chain is published, which would
otherwise meet its predecessor's slot. The end of the whole trace releases what is left, whatever
happened. Releasing twice is harmless.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.limiter.types import Lease


class Attempt:
    """An attempt that was let through.

    Args:
        task: The task instance that runs.
        lease: What it holds; None where it runs without a slot.
        limiter: Where the lease is released.
        error: Raised in place of the body (``redis_lost="closed"``).
        watched: Its end is to be told.
    """

    __slots__ = ("_begun", "_lease", "_limiter", "_watched", "error", "task")

    def __init__(
        self,
        task: Any,
        lease: Lease | None,
        limiter: Limiter,
        error: LimiterUnavailable | None = None,
        *,
        watched: bool = False,
    ) -> None:
        self.task = task
        self.error = error
        self._lease = lease
        self._limiter = limiter
        self._watched = watched
        self._begun = False

    def begin(self, task: Any) -> bool:
        """Say whether this call of ``task`` is the attempt's body: true once, for its own task."""
        if self._begun or self.task is not task:
            return False
        self._begun = True
        return True

    def end(self) -> None:
        """Release the slot. A limiter that is away frees it when the lease runs out."""
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                self._limiter.release_soon(lease, watched=self._watched)
            except LimiterUnavailable:
                pass


#: The attempt whose trace is running in this thread or greenlet.
current_attempt: ContextVar[Attempt | None] = ContextVar("current_attempt", default=None)
