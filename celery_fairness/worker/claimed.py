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
from celery.utils.imports import symbol_by_name

from celery_fairness.scheduling.words import Verdict

if TYPE_CHECKING:
    _Request = Any
else:
    _Request = object


class ClaimedRequestMixin(_Request):  # type: ignore[misc]  # it stands before any request class
    """Ends the lease of one claimed task."""

    _held: Any = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        shadow = cls.__dict__.get("on_success")
        if shadow is not None:
            cls.on_success = _ending(shadow)  # type: ignore[method-assign]
        shadow = cls.__dict__.get("execute_using_pool")
        if shadow is not None:
            cls.execute_using_pool = _entering(shadow)

    def __init__(self, message: Any, *args: Any, **options: Any) -> None:
        super().__init__(message, *args, **options)
        home = getattr(getattr(message, "channel", None), "home", None)
        if home is None:
            return
        self._book = home.book
        self._held = home.book.get(message.delivery_tag)
        if self._held is not None:
            self._held.attended = True

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """The body begins."""
        held = self._held
        if held is not None:
            held.in_pool = True
            if self.task.acks_late:
                self._book.note(held, Verdict.BEGUN)
        super().on_accepted(pid, time_accepted)

    def acknowledge(self) -> None:
        """The message is done; the slot goes with the body."""
        held = self._held
        if held is not None and not self.acknowledged:
            held.verdict = Verdict.DONE
            if held.in_pool:
                self._book.note(held, Verdict.ACKED)
            else:
                self._book.end(held, Verdict.DONE)
        super().acknowledge()

    def reject(self, requeue: bool = False) -> None:
        """The message waits again, or is done."""
        held = self._held
        if held is not None and not self.acknowledged:
            held.verdict = Verdict.DONE
            if requeue:
                held.verdict = Verdict.DIED if held.died else Verdict.TAIL
            if not held.in_pool:
                self._book.end(held, held.verdict)
        super().reject(requeue=requeue)

    def on_success(self, result: Any, **options: Any) -> Any:
        """The pool reported an end."""
        try:
            return super().on_success(result, **options)
        finally:
            self._end()

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        """The pool reported a failure, or that the body's process is gone."""
        if self._held is not None:
            exception = exc_info.exception
            exception = getattr(exception, "exc", None) or exception
            self._held.died = isinstance(exception, (WorkerLostError, SystemExit))
        try:
            return super().on_failure(
                exc_info, send_failed_event=send_failed_event, return_ok=return_ok
            )
        finally:
            self._end()

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """After a hard limit green pools say nothing else."""
        if self._held is not None and not soft:
            self._held.died = True
        try:
            return super().on_timeout(soft, timeout)
        finally:
            if not soft:
                self._end()

    def _end(self) -> None:
        held = self._held
        if held is not None:
            self._book.end(held, held.verdict or Verdict.HEAD)


def _ending(on_success: Any) -> Any:
    @functools.wraps(on_success)
    def on_success_and_end(self: ClaimedRequestMixin, *args: Any, **options: Any) -> Any:
        try:
            return on_success(self, *args, **options)
        finally:
            self._end()

    return on_success_and_end


def _entering(execute_using_pool: Any) -> Any:
    @functools.wraps(execute_using_pool)
    def execute_and_enter(self: ClaimedRequestMixin, *args: Any, **options: Any) -> Any:
        # A revoked or expired task raises: it is acknowledged without having been in the pool.
        result = execute_using_pool(self, *args, **options)
        if self._held is not None:
            self._held.in_pool = True
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
