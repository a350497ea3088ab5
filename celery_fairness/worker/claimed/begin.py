"""The begin of a claimed task's body: its process sends it to Redis before the first line.

The main process of a prefork worker learns of a begin later than the body runs. If the worker died
between, Redis would know nothing of the begin, and the task would begin again without a limit. So
the process that runs the body sends the begin, before it even decodes the message.

    attempt 1                            --> send, begin
    a later attempt, or a late hand-over --> send, wait for the answer, begin if the lease lives

Invariant: a call that is in the system's buffers outlives its process. So a task whose Redis knows
no begin has not begun, unless the connection was lost with the call. Later attempts wait, so each
lost call costs at most one more begin.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from billiard.einfo import ExceptionInfo
from celery import _state, current_app

from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.current_lease import running
from celery_fairness.limiter.redis import Limiter
from celery_fairness.scheduler.lease_table import Held
from celery_fairness.scheduler.types import Verdict
from celery_fairness.util.throttled_log import Notices
from celery_fairness.wiring import find
from celery_fairness.worker.attempt import NotBegun

logger = logging.getLogger("celery_fairness")

#: The key of a begin in the pool's request, until the pool has the task.
KEY = "_fairness_begin"
#: After this part of a lease since the hand-over to the pool, a begin waits for its answer.
LATE = 1 / 3
#: Pause before the next try if Redis does not answer, in seconds.
AGAIN_SECONDS = 0.5


class LeaseEnded(NotBegun):
    """Ends an attempt whose lease ended before its body began."""


class Begin(NamedTuple):
    """The begin of one attempt, on its way to the process that runs the body.

    Attributes:
        lease: The lease.
        epoch: The epoch of Redis that has the lease.
        acks_late: Whether the message is acknowledged after the body.
        is_first: Whether no attempt was claimed before this one.
        handed_at: The time of the hand-over to the pool. The clock is that of the host for all of
            its processes (monotonic seconds).
    """

    lease: str
    epoch: int
    acks_late: bool
    is_first: bool
    handed_at: float


class Begins:
    """Sends the begins of bodies that run in this process.

    Args:
        limiter: It stores the begins.
        stopping: Returns whether the worker is stopping.
    """

    def __init__(self, limiter: Limiter, stopping: Callable[[], bool], notices: Notices) -> None:
        self._limiter, self._stopping, self._notices = limiter, stopping, notices

    def may_begin(self, begin: Begin) -> bool:
        """Send a begin, and return whether the body may start."""
        limiter = self._limiter
        waited = time.monotonic() - begin.handed_at
        if begin.is_first and waited < limiter.lease_ms / 1000 * LATE:
            verdict = Verdict.BEGUN if begin.acks_late else Verdict.ACKED
            limiter.begin_soon(begin.lease, verdict, begin.epoch)
            return True
        verdict = Verdict.BEGUN if begin.acks_late else Verdict.TAKEN
        while True:
            try:
                return limiter.begin(begin.lease, verdict, begin.epoch)
            except LimiterUnavailable as error:
                # While no worker can renew, no lease ends. So the task may begin afterwards.
                self._notices.error("begin", "%s: a task begins when it answers again", error)
            if self._stopping():
                return False
            time.sleep(AGAIN_SECONDS)


def send_begins(pool: Any) -> None:
    """Let claimed tasks that ``pool`` gets from now on send their begin first.

    It stands before the pool and not before the tracer, because a task may have a tracer or a
    message that ends the process before the body.
    """
    apply_async = pool.apply_async
    if getattr(apply_async, "sends_begins", False):
        return

    def apply_begin(target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        request = args[2] if len(args) > 2 else None
        handed = request.pop(KEY, None) if isinstance(request, dict) else None
        if handed is None:
            return apply_async(target, args, kwargs, **options)
        held, acks_late = handed
        held.sends_begin = True
        begin = Begin(held.lease, held.epoch, acks_late, held.attempt == 1, time.monotonic())
        return apply_async(begin_and_trace, (begin, target, *args), kwargs, **options)

    apply_begin.sends_begins = True  # type: ignore[attr-defined]  # a mark for the next call
    pool.apply_async = apply_begin


def hand_over(request: dict[str, Any], held: Held, acks_late: bool) -> None:
    """Put a begin into a request that goes to the pool next."""
    request[KEY] = held, acks_late


def begin_and_trace(begin: Begin, trace: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Send the begin and call ``trace``, in the process that runs the body."""
    # A body may have made another app, which is the current one from then on.
    app: Any = vars(_state)["default_app"] or current_app
    fairness = find(app)
    if fairness is None or fairness.begins.may_begin(begin):
        with running(begin.lease):
            return trace(*args, **options)
    try:
        raise LeaseEnded
    except LeaseEnded:
        return 1, ExceptionInfo(internal=True), 0.0
