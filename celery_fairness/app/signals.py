"""The handlers of Celery's signals; no other module connects one.

A signal belongs to the whole process, so handlers check that its sender is their own app.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from celery import signals
from kombu import Queue

from celery_fairness.app.task import follows, not_kept, parent_headers, retried_headers
from celery_fairness.message.headers import ACCEPTED_HEADER, COPY_HEADER, HEADER, first_copy
from celery_fairness.message.limits import FIELD
from celery_fairness.message.stamp import Message
from celery_fairness.message.task_options import misplaced
from celery_fairness.util.printable import make_logs_printable
from celery_fairness.util.threads import native_reentrant_lock
from celery_fairness.wiring import publishing

if TYPE_CHECKING:
    from celery_fairness.wiring import Parts


def connect(listener: Parts) -> Callable[[], None]:
    """Connect ``listener`` to Celery's signals; return a function that disconnects it."""

    def before_publish(
        sender: str | None = None,
        body: Any = None,
        headers: Any = None,
        routing_key: str | None = None,
        declare: Any = None,
        properties: Any = None,
        **_: Any,
    ) -> None:
        if isinstance(headers, dict) and sender is not None:
            declared = (each.name for each in declare or () if isinstance(each, Queue))
            queue = next(declared, routing_key)
            _stamp_message(listener, sender, body, headers, properties, queue)

    def worker_init(instance: Any = None, **_: Any) -> None:
        app = getattr(instance, "app", None)
        if app is None or app is listener.app:
            listener.on_worker_init()

    make_logs_printable()
    # Celery's own lock cannot be taken twice. A second SIGTERM may interrupt the handler of the
    # first one while it holds the lock, and the worker would never end.
    worker_shutting_down: Any = signals.worker_shutting_down
    worker_shutting_down.lock = native_reentrant_lock()
    return _connected(
        (signals.before_task_publish, before_publish),
        (signals.celeryd_init, worker_init),
        (worker_shutting_down, lambda **_: listener.on_worker_stopping()),
        (signals.worker_process_init, lambda **_: listener.on_pool_child()),
    )


def connect_runs(app: Any, run: Callable[[Any, Any, Any], None]) -> Callable[[], None]:
    """Call ``run`` with task and arguments before and after each body of ``app``.

    Returns:
        A function that disconnects it.
    """

    def ran(task: Any = None, args: Any = None, kwargs: Any = None, **_: Any) -> None:
        if task is not None and task.app is app:
            run(task, args, kwargs)

    return _connected((signals.task_prerun, ran), (signals.task_postrun, ran))


def _connected(*handlers: tuple[Any, Callable[..., None]]) -> Callable[[], None]:
    """Connect handlers to their signals; return a function that disconnects them."""
    for signal, handler in handlers:
        signal.connect(handler, weak=False)

    def disconnect() -> None:
        for signal, handler in handlers:
            signal.disconnect(handler)

    return disconnect


def _stamp_message(
    listener: Parts,
    name: str,
    body: Any,
    headers: dict[str, Any],
    properties: Any,
    queue: str | None,
) -> None:
    """Put the headers into a message that is about to be published.

    It must not raise: Celery's signal would log the error and publish the message all the same.
    """
    publisher = publishing.get()
    if publisher is not None and publisher is not listener:
        return
    headers.update(retried_headers(listener.app, name, headers))
    if follows(listener.app, name, headers, body):
        headers[ACCEPTED_HEADER] = True
    task = listener.app.tasks.get(name)
    args, kwargs = _arguments(body)
    # Celery turns an unknown option of send_task or of a plain task's apply_async into a property.
    called = properties.pop(FIELD, None) if isinstance(properties, dict) else None
    option = misplaced(properties or {}, headers.get("stamped_headers"), (FIELD,))
    if option is not None:
        listener.notices.warning(
            f"option:{name}",
            "task %s was sent with the option %r, which has no effect; did you mean 'limits'?",
            name,
            option,
        )
    parent = parent_headers(listener.app)
    message = Message(name, task, headers, args, kwargs, parent, properties or {})
    header = listener.stamp.of_message(message, queue, called)
    if header is not None:
        headers[HEADER] = header
    if listener.claims_fairly:
        return
    listener.puts.emit(name, task, headers, args, kwargs, queue)
    if header is not None:
        headers[COPY_HEADER] = first_copy()
        error = not_kept(task)
        if error is not None and isinstance(header, Mapping) and header.get(FIELD):
            listener.notices.error(f"kept:{name}", "task %s: %s", name, error)


def _arguments(body: Any) -> tuple[Any, Any]:
    """Return the arguments in a message's body, which is a mapping in task protocol 1."""
    if isinstance(body, Mapping):
        return body.get("args") or (), body.get("kwargs") or {}
    if isinstance(body, (list, tuple)) and len(body) >= 2:
        return body[0], body[1]
    return (), {}
