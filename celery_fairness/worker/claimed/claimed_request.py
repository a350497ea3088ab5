"""The main process's view of a claimed task: a mixin for the ``Request`` class of every task.

The slot of a claimed task ends with its body, not with its ack. The pool's last callback marks that
end on every pool.

Celery's last decision settles the message: acknowledged or rejected. Without a decision the task
returns to its old place in the lane.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from billiard.exceptions import WorkerLostError
from celery.exceptions import TaskRevokedError
from celery.worker.state import revoked, task_ready

from celery_fairness.config.settings import Settings
from celery_fairness.scheduler.types import Verdict
from celery_fairness.util.log_fields import about
from celery_fairness.wiring import find
from celery_fairness.worker.attempt import outcome_of
from celery_fairness.worker.attempt_limits import log_undeclared_limits
from celery_fairness.worker.claimed.begin import KEY, LeaseEnded, hand_over
from celery_fairness.worker.claimed.message_guard import held_of, set_aside
from celery_fairness.worker.message_check import READ_ERRORS, expect_valid, reason_of
from celery_fairness.worker.rate_limited import is_unsent
from celery_fairness.worker.request_mixin import RequestMixin, failure_of

logger = logging.getLogger("celery_fairness")


def _ending(method: Any) -> Any:
    """Return ``method`` followed by the end of the lease, even if ``method`` raises."""

    @functools.wraps(method)
    def method_and_end(self: ClaimedRequestMixin, *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        except BaseException:
            # Without this mark the task would come back and raise again without a limit.
            if self._held is not None:
                self._held.died = True
            raise
        finally:
            self._end()

    return method_and_end


def _succeeding(on_success: Any) -> Any:
    """Return ``on_success``, before which a body that blocked the loop ends its lease."""

    @functools.wraps(on_success)
    def end_and_succeed(self: ClaimedRequestMixin, outcome: Any, **options: Any) -> Any:
        # If the body ends its process, the outcome is an exception.
        succeeded = isinstance(outcome, tuple) and not outcome[0]
        if not succeeded or self._held is None or not self._session.body_blocks_loop:
            return on_success(self, outcome, **options)
        try:
            # The result is stored. The ack and the end go with the next claim if there is one.
            if self.task.acks_late:
                self.acknowledge()
            self._end()
            self._channel.claim_next()
        finally:
            on_success(self, outcome, **options)

    return _ending(end_and_succeed)


def _entering(execute_using_pool: Any) -> Any:
    @functools.wraps(execute_using_pool)
    def execute_and_enter(self: ClaimedRequestMixin, *args: Any, **options: Any) -> Any:
        held = self._held
        if held is None:
            # Such a header is the message's own.
            self._request_dict.pop(KEY, None)
            return execute_using_pool(self, *args, **options)
        if self._session.is_lost(held):
            # The worker was frozen since the claim, and the lease ended.
            self._lease_table.drop(held)
            self.acknowledge()
        if held.ended:
            # The worker gave the task back, and another worker may run it by now.
            task_ready(self)
            raise TaskRevokedError(self.id)
        hand_over(self._request_dict, held, self.task.acks_late)
        try:
            # A revoked or expired task raises here, and is acknowledged without a pool.
            result = execute_using_pool(self, *args, **options)
        except READ_ERRORS as error:
            if held.begun:
                # The pool ran the body inside this call, and the tracer failed at the message.
                logger.error(
                    "the task of lease %s failed outside its body: %s",
                    held.lease,
                    reason_of(error),
                    extra=about(queue=held.queue),
                )
                task_ready(self)
                self._gone(None)
                return None
            if held.ended:
                raise
            set_aside(self._message, held, error)
            # Celery gives the place in the pool back after this error only.
            raise TaskRevokedError(self.id) from None
        finally:
            self._request_dict.pop(KEY, None)
        held.in_pool = True
        self._watch(result)
        return result

    return execute_and_enter


class ClaimedRequestMixin(RequestMixin):
    """Ends the lease of one claimed task."""

    wrappers = {"on_success": _succeeding, "execute_using_pool": _entering}
    _held: Any = None

    def __init__(self, message: Any, *args: Any, **options: Any) -> None:
        if held_of(message) is not None:
            expect_valid(options.get("headers") or message.headers)
        super().__init__(message, *args, **options)
        session = getattr(getattr(message, "channel", None), "session", None)
        if session is None:
            return
        self._session = session
        self._lease_table = session.lease_table
        self._held = session.lease_table.get(message.delivery_tag)
        if self._held is not None:
            self._held.attended = True
            fairness = find(self.app)
            if fairness is not None:
                log_undeclared_limits(fairness.notices, self.task, self._request_dict)
                _log_priority_order(fairness.settings, session, message.properties.get("priority"))
            self._channel = message.channel
            acknowledged = self._channel.acknowledged
            # An ack writes nothing to Redis, so the loop need not run it.
            self._on_ack = lambda *_: acknowledged(message)

    def maybe_expire(self) -> Any:
        """Return whether the task has expired by the time of Redis, by which waiting tasks do."""
        if self._held is None or not self.expires:
            return super().maybe_expire()
        if self.expires.timestamp() >= self._session.renewals.now():
            return False
        revoked.add(self.id)
        return True

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Mark that the body starts."""
        held = self._held
        if held is not None:
            held.begun = held.in_pool = True
            if self.task.acks_late:
                self._note_begin(Verdict.BEGUN)
        super().on_accepted(pid, time_accepted)
        if held is None:
            return
        if held.sends_begin:
            # The note is in case that the begin is lost: the next claim or renewal carries it.
            return
        if self._session.body_blocks_loop:
            # The body may kill its worker, so Redis stores the start before the body runs.
            self._session.flush()
        else:
            # Most bodies end before the thread sends the start.
            self._session.renewals.settle_soon()

    def _note_begin(self, verdict: Verdict) -> None:
        """Note that the body begins, in case that the begin of its own process is lost.

        A later attempt may not begin, and only that process can find out.
        """
        if self._held.attempt == 1 or not self._held.sends_begin:
            self._lease_table.note(self._held, verdict)

    def acknowledge(self) -> None:
        """Settle the message; the slot stays until the body ends."""
        before = self.acknowledged
        super().acknowledge()
        if self._held is not None and self.acknowledged and not before:
            self._decide(Verdict.DONE)
            if self._held.in_pool and self.task.acks_late:
                self._lease_table.note(self._held, Verdict.ACKED)
            elif self._held.in_pool:
                # The process may find that the lease has ended. Then the task waits for another.
                self._note_begin(Verdict.TAKEN if self._held.sends_begin else Verdict.ACKED)

    def reject(self, requeue: bool = False) -> None:
        """Settle the message as rejected, or put it back into the queue."""
        before = self.acknowledged
        super().reject(requeue=requeue)
        if self._held is not None and self.acknowledged and not before:
            again = Verdict.DIED if self._held.died else Verdict.TAIL
            self._decide(again if requeue else Verdict.DONE)

    def _decide(self, verdict: Verdict) -> None:
        self._held.verdict = verdict
        if not self._held.in_pool:
            # It was revoked, expired or rejected before the pool had it.
            self._lease_table.end(self._held, verdict, begun=False)

    def on_success(self, result: Any, **options: Any) -> Any:
        """End the lease: the pool reported success."""
        return super().on_success(result, **options)

    @_ending
    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        """End the lease: the pool reported a failure, or the death of the body's process."""
        exception = failure_of(exc_info)
        if self._held is not None and isinstance(exception, LeaseEnded):
            logger.warning(
                "task %s[%s] does not begin here: its lease has ended, and another worker may run "
                "it",
                self.name,
                self.id,
                extra=about(task_name=self.name, task_id=self.id, queue=self._held.queue),
            )
            self._lease_table.drop(self._held)
        if self._held is not None and is_unsent(exception):
            logger.warning(
                "task %s[%s] waits again, because the message of its retry could not be sent: %s",
                self.name,
                self.id,
                exception.reason,
                extra=about(task_name=self.name, task_id=self.id, queue=self._held.queue),
            )
            exception.requeue = True
            # Celery rejects no message that was acknowledged before the body, but Redis has it.
            self._held.verdict = Verdict.TAIL
        ended_by_us = self._already_cancelled or self._already_revoked
        if self._held is not None and not ended_by_us:
            self._held.died = isinstance(exception, (WorkerLostError, SystemExit))
            self._held.outcome = outcome_of(exception)
        return super().on_failure(
            exc_info, send_failed_event=send_failed_event, return_ok=return_ok
        )

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """End the lease after a hard limit: green pools report nothing else."""
        return super().on_timeout(soft, timeout) if soft else self._on_hard_limit(timeout)

    @_ending
    def _on_hard_limit(self, timeout: float) -> Any:
        if self._held is not None:
            self._held.died = True
        return super().on_timeout(False, timeout)

    def _end(self) -> None:
        held = self._held
        if held is not None:
            verdict = held.verdict or (Verdict.DIED if held.died else Verdict.HEAD)
            if verdict is Verdict.DONE:
                verdict = Verdict.FAILED if held.died else held.outcome
            self._lease_table.end(held, verdict)

    def _watch(self, result: Any) -> None:
        """Watch for an end without a callback: a tracer that raised, or a cancelled job."""
        if result is None:
            # The pool ran the body inside this call.
            return
        future = getattr(result, "f", None)
        if future is not None:
            future.add_done_callback(self._gone)
        elif hasattr(result, "link"):
            result.link(self._gone)

    def _gone(self, job: Any) -> None:
        if not self._held.ended:
            cancelled = getattr(job, "cancelled", None)
            self._held.died = cancelled is None or not cancelled()
            self._end()


def _log_priority_order(settings: Settings, session: Any, priority: Any) -> None:
    """Log which priority goes first, once in a process, if the user has not chosen an order.

    Messages and code that come from the stock transport expect the other order. If a producer gives
    no priority, kombu sets 0.
    """
    if not priority or session.order_logged:
        return
    session.order_logged = True
    if "priority_order" not in settings.model_fields_set:
        logger.warning(
            "a task has the priority %r: this worker starts the highest priority first, and the "
            "stock Redis transport the lowest; set priority_order to 'low_first' for that order, "
            "or to 'high_first' to keep this one",
            priority,
        )
