"""One attempt of a task in the process that runs its body.

The slot ends with the body, before Celery publishes the next step of a chain. A later release would
make that step compete with its predecessor's slot. The end of the trace releases a lease that the
body's end did not. Releasing twice changes nothing.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from celery.exceptions import Ignore, Reject, Retry

from celery_fairness.errors import LimiterUnavailable, RateLimitExceeded
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Lease
from celery_fairness.scheduler.types import Verdict


class NotBegun(Ignore):
    """Ends an attempt whose body has not started; the main process reads it."""


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

    @property
    def has_lease(self) -> bool:
        """Whether it holds a slot that has not ended."""
        return self._lease is not None

    def begin(self, task: Any) -> bool:
        """Return whether this call of ``task`` is the attempt's body.

        It returns True once, and only for the attempt's own task.
        """
        if self._begun or self.task is not task:
            return False
        self._begun = True
        return True

    def end(self, outcome: Verdict = Verdict.DONE) -> None:
        """Release the slot. If the limiter does not answer, the slot ends with its lease.

        ``outcome`` is how the body ended: DONE, FAILED or RETRIED.
        """
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                self._limiter.release_soon(lease, outcome)
            except LimiterUnavailable:
                pass


def outcome_of(error: BaseException | None, task: Any = None) -> Verdict:
    """Return how a body ended.

    Args:
        error: What it raised, or None.
        task: Its task, if ``autoretry_for`` has not seen the error yet. None: it has.
    """
    if error is None or isinstance(error, (Ignore, Reject)):
        return Verdict.DONE
    if isinstance(error, (Retry, RateLimitExceeded)) or _is_retried(error, task):
        return Verdict.RETRIED
    return Verdict.FAILED


def _is_retried(error: BaseException, task: Any) -> bool:
    """Return whether Celery retries an error by the options of its task."""
    retried = tuple(getattr(task, "autoretry_for", ()) or ())
    if not isinstance(error, retried):
        return False
    if isinstance(error, tuple(getattr(task, "dont_autoretry_for", ()) or ())):
        return False
    return task.max_retries is None or task.request.retries < task.max_retries


#: The attempt whose trace is running in this thread or greenlet.
current_attempt: ContextVar[Attempt | None] = ContextVar("current_attempt", default=None)
