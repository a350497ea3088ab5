"""What the package reads from a Celery app, in the form of Celery 5.7."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import celery
from celery.app import amqp
from celery.app.utils import Settings

_VERSION: tuple[int, int] = celery.VERSION[:2]
_MISSING = object()
#: How deep Celery before 5.7 shows arguments in a message.
REPR_LEVELS = 3

#: Set while Celery itself sends the successors of a task that has ended.
_FOLLOWING: ContextVar[bool] = (
    ContextVar("following", default=False)
    if _VERSION < (5, 7)
    else getattr(amqp, "_callback_publish_retry")  # noqa: B009 - no stub has it
)


def is_set(app: Any, name: str) -> bool:
    """Return whether the user has given a setting of Celery, also under an old name."""
    conf = app.conf
    if _VERSION >= (5, 7):
        return bool(conf.value_set_for(name))
    conf.finalize()
    return Settings({}, conf.maps[:-1], conf._keys, conf.prefix).get(name, _MISSING) is not _MISSING


def repr_levels(app: Any) -> int:
    """Return how deep Celery shows arguments in a message."""
    return int(app.conf.get("task_repr_maxlevels", REPR_LEVELS))


def is_following(app: Any) -> bool:
    """Return whether Celery is sending a successor of a task: a link, a chain, a chord's body."""
    if _FOLLOWING.get():
        return True
    task = app.current_worker_task if _VERSION < (5, 7) else None
    return task is not None and task.name == "celery.chord_unlock"


def mark_successors(app: Any) -> None:
    """Make :func:`is_following` see the successors that ``app`` sends. Celery 5.7 does it itself.

    Only Celery gives ``parent_id``, and it gives it to every successor but the body of a chord.
    The backend sends that one.
    """
    if _VERSION >= (5, 7) or "_get_backend" in vars(app):
        return
    send_task, get_backend = app.send_task, app._get_backend

    def send(*args: Any, **options: Any) -> Any:
        with _following(options.get("parent_id")):
            return send_task(*args, **options)

    def marked_backend() -> Any:
        backend = get_backend()
        part_returned = backend.on_chord_part_return

        def on_chord_part_return(*args: Any, **options: Any) -> Any:
            with _following(True):
                return part_returned(*args, **options)

        backend.on_chord_part_return = on_chord_part_return
        return backend

    app.send_task, app._get_backend = send, marked_backend


@contextmanager
def _following(is_successor: object) -> Iterator[None]:
    before = _FOLLOWING.set(bool(is_successor) or _FOLLOWING.get())
    try:
        yield
    finally:
        _FOLLOWING.reset(before)
