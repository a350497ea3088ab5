"""The failure of a task whose body has not run, as Celery stores it for a lost process.

The body did not fail: Celery does not call ``autoretry_for`` or ``on_failure``, and logs no
traceback. The result, errbacks, chords and the signal get the failure.
"""

from __future__ import annotations

from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals


def write_failure(task: Any, context: Any, error: Exception, *, store: bool) -> Any:
    """Store ``error`` as the result of a task, and notify errbacks, chords and the signal.

    ``store`` is whether the backend keeps the result.

    Returns:
        The error as Celery carries it between processes.
    """
    try:
        raise error
    except Exception:  # noqa: BLE001 - ExceptionInfo needs a raised error
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
