"""The failure of a task whose body has not run, as Celery writes one of a process that is lost.

It is no failure of the body: neither ``autoretry_for`` nor ``on_failure`` is asked, and no
traceback is logged. Whoever waits for the result, errbacks, chords and the signal are told.
"""

from __future__ import annotations

from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals


def write_failure(task: Any, context: Any, error: Exception, *, store: bool) -> Any:
    """Store ``error`` as the result of a task and tell who waits for it.

    Args:
        task: The task.
        context: Its request, with its arguments.
        error: The result.
        store: Whether its result is kept.

    Returns:
        The error as Celery carries it between processes.
    """
    try:
        raise error
    except Exception:  # noqa: BLE001 - to have its traceback, as of any error
        info: Any = ExceptionInfo()
    task.backend.mark_as_failure(context.id, error, request=context, store_result=store)
    task.request_stack.push(context)
    try:
        signals.task_failure.send(
            sender=task,
            task_id=context.id,
            exception=error,
            args=context.args,
            kwargs=context.kwargs,
            traceback=info.traceback,
            einfo=info,
        )
    finally:
        task.request_stack.pop()
    return info
