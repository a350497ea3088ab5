"""The main process's view of a claimed task: a mixin for the ``Request`` class of every task.

The slot of a claimed task ends with its body, not with its ack. The mixin sees every end on every
pool: the pool's last callback. Celery shadows ``on_success`` and ``execute_using_pool`` in a class
that it makes for each task, so the mixin wraps them there.

What the message becomes is what Celery said of it until then: acknowledged, rejected, or nothing,
and then it waits again in its place.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from billiard.exceptions import WorkerLostError
from celery.exceptions import TaskRevokedError
from celery.utils.imports import symbol_by_name
from celery.worker.state import task_ready

from celery_fairness.scheduler.types import Verdict
from celery_fairness.wiring import find
from celery_fairness.worker.order import tell_of_order
from celery_fairness.worker.unsaid import tell_of_unsaid

if TYPE_CHECKING:
    _Request = Any
else:
    _Request = object


def _ending(method: Any) -> Any:
    """Let the body have ended after ``method``, whatever Celery thinks of it."""

    @functools.wraps(method)
    def method_and_end(self: ClaimedRequestMixin, *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        except BaseException:
            # Nobody said what becomes of the message, and it would end so for ever.
            if self._held is not None:
                self._held.died = True
            raise
        finally:
            self._end()

    return method_and_end


class ClaimedRequestMixin(_Request):  # type: ignore[misc]  # it stands before any request class
    """Ends the lease of one claimed task."""

    _held: Any = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        shadow = cls.__dict__.get("on_success")
        if shadow is not None:
            cls.on_success = _ending(shadow)  # type: ignore[method-assign]  # Celery's own
        shadow = cls.__dict__.get("execute_using_pool")
        if shadow is not None:
            cls.execute_using_pool = _entering(shadow)

    def __init__(self, message: Any, *args: Any, **options: Any) -> None:
        super().__init__(message, *args, **options)
        home = getattr(getattr(message, "channel", None), "home", None)
        if home is None:
            return
        self._home = home
        self._book = home.book
        self._held = home.book.get(message.delivery_tag)
        if self._held is not None:
            self._held.attended = True
            fairness = find(self.app)
            if fairness is not None:
                tell_of_unsaid(fairness.notices, self.task, self._request_dict)
                tell_of_order(fairness.settings, home, message.properties.get("priority"))
            acknowledged = message.channel.acknowledged
            # Nothing is written for an ack, so it needs no turn of the loop.
            self._on_ack = lambda *_: acknowledged(message)

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """The body begins."""
        held = self._held
        if held is not None:
            held.begun = held.in_pool = True
            if self.task.acks_late:
                self._book.note(held, Verdict.BEGUN)
        super().on_accepted(pid, time_accepted)
        if held is not None and self._home.body_blocks_loop:
            if self.task.acks_late or held.attempt > 1:
                # It may be what kills its workers: that it began is known before it does.
                self._home.flush()
            else:
                # Most bodies are over before the thread tells.
                self._home.tell_soon()

    def acknowledge(self) -> None:
        """The message is done; the slot goes with the body."""
        before = self.acknowledged
        super().acknowledge()
        if self._held is not None and self.acknowledged and not before:
            self._decide(Verdict.DONE)
            if self._held.in_pool:
                self._book.note(self._held, Verdict.ACKED)

    def reject(self, requeue: bool = False) -> None:
        """The message waits again, or is done."""
        before = self.acknowledged
        super().reject(requeue=requeue)
        if self._held is not None and self.acknowledged and not before:
            again = Verdict.DIED if self._held.died else Verdict.TAIL
            self._decide(again if requeue else Verdict.DONE)

    def _decide(self, verdict: Verdict) -> None:
        self._held.verdict = verdict
        if not self._held.in_pool:
            # It was revoked, has expired, or was rejected before a pool had it.
            self._book.end(self._held, verdict, begun=False)

    @_ending
    def on_success(self, result: Any, **options: Any) -> Any:
        """The pool reported an end."""
        return super().on_success(result, **options)

    @_ending
    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        """The pool reported a failure, or that the body's process is gone."""
        exception = exc_info.exception
        exception = getattr(exception, "exc", None) or exception
        ended_by_us = self._already_cancelled or self._already_revoked
        if self._held is not None and not ended_by_us:
            self._held.died = isinstance(exception, (WorkerLostError, SystemExit))
        return super().on_failure(
            exc_info, send_failed_event=send_failed_event, return_ok=return_ok
        )

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """After a hard limit green pools say nothing else."""
        return super().on_timeout(soft, timeout) if soft else self._on_hard_limit(timeout)

    @_ending
    def _on_hard_limit(self, timeout: float) -> Any:
        if self._held is not None:
            self._held.died = True
        return super().on_timeout(False, timeout)

    def _end(self) -> None:
        held = self._held
        if held is not None:
            again = Verdict.DIED if held.died else Verdict.HEAD
            self._book.end(held, held.verdict or again)

    def _watch(self, result: Any) -> None:
        """Hear of an end that the pool reports to nobody: a tracer that raised, a cancelled job."""
        if result is None:
            # The pool ran it at once.
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


def _entering(execute_using_pool: Any) -> Any:
    @functools.wraps(execute_using_pool)
    def execute_and_enter(self: ClaimedRequestMixin, *args: Any, **options: Any) -> Any:
        held = self._held
        if held is None:
            return execute_using_pool(self, *args, **options)
        if self._home.is_lost(held):
            # The worker was frozen between the claim and this moment.
            self._book.drop(held)
            self.acknowledge()
        if held.ended:
            # It was given back, and may run elsewhere by now: here nobody waits for it.
            task_ready(self)
            raise TaskRevokedError(self.id)
        # A revoked or expired task raises: it is acknowledged without having been in the pool.
        result = execute_using_pool(self, *args, **options)
        held.in_pool = True
        self._watch(result)
        return result

    return execute_and_enter


@functools.cache
def claimed_request(request: Any) -> type:
    """Return the class ``request``, or the class of that name, with the mixin before it."""
    cls: type = symbol_by_name(request)
    if issubclass(cls, ClaimedRequestMixin):
        return cls
    return type(
        f"Claimed{cls.__name__}", (ClaimedRequestMixin, cls), {"__module__": cls.__module__}
    )
