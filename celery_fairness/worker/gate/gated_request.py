"""The main process's view of an attempt: a mixin for the ``Request`` class of every task.

It names the attempt's lease and renews the lease while the pool has the task. It also sees the ends
that a pool child cannot report: SIGKILL, out of memory, a hard time limit, termination.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker.request import Request

from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.types import Lease
from celery_fairness.message.headers import COPY_HEADER, parse_copy
from celery_fairness.util.ids import new_lease_id
from celery_fairness.wiring import find
from celery_fairness.worker.gate.celery_counts import give_token_back
from celery_fairness.worker.gate.gate import ATTEMPT_KEY, COMES_BACK, NOT_BEGUN, Parked
from celery_fairness.worker.request_mixin import RequestMixin, failure_of

#: Linux's PID_MAX_LIMIT; other systems stay below it.
LARGEST_PROCESS_ID = 4_194_304

#: The pool's exceptions for a process that has ended or is about to end.
_CHILD_IS_LOST = (WorkerLostError, Terminated, TimeLimitExceeded)


def _ending(on_success: Any) -> Any:
    @functools.wraps(on_success)
    def on_success_and_end(self: GatedRequestMixin, *args: Any, **options: Any) -> Any:
        try:
            return on_success(self, *args, **options)
        finally:
            self._fair_end()

    return on_success_and_end


class GatedRequestMixin(RequestMixin):
    """Renews the lease of one attempt."""

    wrappers = {"on_success": _ending}
    _fair_lease: Lease | None = None

    def __init__(self, message: Any, *args: Any, **options: Any) -> None:
        super().__init__(message, *args, **options)
        fairness = find(self._app)
        task: Any = self._task
        if fairness is None or task.name.startswith("celery."):
            return
        request: dict[str, Any] = self._request_dict
        attribution = fairness.gate.attribution(
            task, request, request.get("args"), request.get("kwargs")
        )
        if attribution.keys:
            self._fair_lease = Lease(new_lease_id(fairness.worker), attribution.keys)
        request[ATTEMPT_KEY] = {
            "attribution": attribution,
            "lease": self._fair_lease.id if self._fair_lease else None,
        }
        self._fair_renewer = fairness.lease_renewer
        self._fair_promoter = fairness.promoter
        self._fair_wired = fairness

    def revoked(self) -> bool:
        """End the promotion of a task that was revoked before its body started."""
        if not super().revoked():
            return False
        copy = parse_copy(self._request_dict.get(COPY_HEADER))
        if self._fair_lease is not None and copy is not None and copy.serial:
            with contextlib.suppress(LimiterUnavailable):  # The promotion ends by itself.
                # The copy of a promoted task has the name of its lease as serial.
                self._fair_wired.limiter.release([Lease(copy.serial, self._fair_lease.key)])
        return True

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Start to renew the lease: the pool has the task."""
        if self._fair_lease is not None:
            # Green pools pass the id of a greenlet, which is larger than any process id.
            process_id = pid if pid <= LARGEST_PROCESS_ID else os.getpid()
            self._fair_renewer.accepted(self._fair_lease, process_id)
        super().on_accepted(pid, time_accepted)

    def on_success(self, result: Any, **options: Any) -> Any:
        """Stop renewing the lease: the pool reported success, and the body released it."""
        return super().on_success(result, **options)

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        """Stop renewing the lease; if the body did not report, release it.

        A rejection is no failure, so a method of the user's request class does not see it.
        """
        exception = failure_of(exc_info)
        see: Any = super().on_failure
        if isinstance(exception, COMES_BACK):
            see = functools.partial(Request.on_failure, self)
        try:
            return see(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        finally:
            consumer = self._fair_wired.consumer
            if isinstance(exception, NOT_BEGUN) and consumer is not None:
                give_token_back(consumer, self._task.name)
            if isinstance(exception, Parked):
                self._fair_promoter.ring()
            if return_ok:
                self._fair_end()
            else:
                self._fair_end(by_body=False, lost=isinstance(exception, _CHILD_IS_LOST))

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """Release the lease after a hard limit: green pools report nothing else."""
        try:
            return super().on_timeout(soft, timeout)
        finally:
            if not soft:
                self._fair_end(by_body=False)

    def _fair_end(self, *, by_body: bool = True, lost: bool = True) -> None:
        """Stop renewing the lease.

        Args:
            by_body: Whether the body's process has released the lease.
            lost: Whether the body's process has ended or is about to end.
        """
        lease, self._fair_lease = self._fair_lease, None
        if lease is None:
            return
        if by_body:
            self._fair_renewer.ended(lease)
        else:
            self._fair_renewer.lost(lease, process_is_gone=lost)
