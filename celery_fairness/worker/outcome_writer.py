"""The result of a task that ended for good while nobody was there to write one.

Redis ends some tasks alone: an acknowledged one whose worker is gone, one whose process died too
often, one whose message a worker could not read, one that a limit dropped, one that somebody
cancelled, and one that expired while it waited. Of each it leaves an outcome with the message;
from that, a worker writes what Celery writes for a task whose process is lost: the result, the
parts of chords and chains, errbacks, signal and event.

Invariant: written twice it says the same, and an end that the task itself had stored stays.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from billiard.exceptions import WorkerLostError
from celery import Task, signals, states
from celery.exceptions import TaskRevokedError
from celery.worker.request import Request
from celery.worker.strategy import hybrid_to_proto2  # type: ignore[attr-defined]  # no stub
from kombu.serialization import prepare_accept_content
from kombu.transport import virtual
from kombu.utils.encoding import safe_repr
from kombu.utils.json import loads

from celery_fairness.errors import (
    DeliveriesExhausted,
    HeaderInvalid,
    MessageUnreadable,
    RateLimitDropped,
    TenantInvalid,
)
from celery_fairness.message.headers import HEADER, parse_header
from celery_fairness.scheduler.types import Outcome
from celery_fairness.worker.failure import write_failure

if TYPE_CHECKING:
    _Request = Any
else:
    _Request = Request

logger = logging.getLogger("celery_fairness")

#: Backends that cannot be asked: none is kept, or it lies with whoever waits for it.
_BLIND = ("disabled://", "rpc://")
#: What is written here.
_OURS = (WorkerLostError, DeliveriesExhausted, MessageUnreadable, RateLimitDropped)


class LostRequest(_Request):  # type: ignore[misc]  # its stub lacks what is used here
    """A task that ended while nobody was there, as the worker that ran it had it."""

    def stored_end(self, error: Exception) -> str:
        """Return the state in which the task ended by itself, "" where it did not.

        Its worker may have died after that. What an earlier try of ours has stored is no end of its
        own, or it is of ``error``'s type: the chord may not know of it yet.
        """
        backend = self.task.backend
        if not self.store_errors or backend.as_uri() in _BLIND:
            return ""
        meta = backend.get_task_meta(self.id, cache=False)
        ours = isinstance(meta["result"], (*_OURS, type(error)))
        return "" if ours or meta["status"] not in states.READY_STATES else str(meta["status"])

    def revoke(self, error: TaskRevokedError, expired: bool) -> None:
        """Do what Celery does with a task that was revoked, or expired, before it ran."""
        told = {"terminated": False, "signum": None, "expired": expired}
        context: Any = self._context
        self.task.backend.mark_as_revoked(
            self.id, str(error), request=context, store_result=self.store_errors
        )
        signals.task_revoked.send(sender=self.task, request=context, **told)
        self.send_event("task-revoked", **told)

    def fail(self, error: Exception) -> None:
        """Do what Celery does with a task whose process is lost."""
        info = write_failure(self.task, self._context, error, store=self.store_errors)
        self.send_event(
            "task-failed",
            exception=safe_repr(error),
            traceback=info.traceback,
        )


class EventsOfLoop:
    """The worker's events, sent from its loop where there is one: they are not for threads."""

    def __init__(self, consumer: Any) -> None:
        self._hub = consumer.hub
        self._events = consumer.event_dispatcher

    @property
    def enabled(self) -> bool:
        """Whether events are sent at all."""
        return self._events is not None and self._events.enabled

    def send(self, name: str, **fields: Any) -> None:
        """Send one."""
        send = partial(self._events.send, name, **fields)
        if self._hub is None:
            send()
        else:
            self._hub.call_soon(send)


class Ended(NamedTuple):
    """What is written and said of tasks that ended in one way.

    Attributes:
        error: Makes their result, of the task's name and id and of the outcome.
        level: Of the log line.
        text: The line: of the task's name and id, who was charged, and ``told``.
        told: Fields of the outcome.
    """

    error: Callable[[str, str, Outcome], Exception]
    level: int
    text: str
    told: tuple[str, ...]


#: By the state of an outcome.
ENDS = {
    "acked": Ended(
        lambda _name, _id, its: WorkerLostError(
            f"Worker exited prematurely: the lease of {its.owner} ended"
        ),
        logging.ERROR,
        "task %s[%s] of %s was lost with its worker %s: acknowledged, it is not run again",
        ("owner",),
    ),
    "dead": Ended(
        lambda name, task_id, its: DeliveriesExhausted(name, task_id, its.deaths, its.queue),
        logging.ERROR,
        "task %s[%s] of %s is a dead letter of queue %s: its process died %d times",
        ("queue", "deaths"),
    ),
    "unreadable": Ended(
        lambda name, task_id, its: MessageUnreadable(name, task_id, its.queue),
        logging.ERROR,
        "task %s[%s] of %s is a dead letter of queue %s: worker %s could not read its message",
        ("queue", "owner"),
    ),
    # It was asked for: no error of the installation.
    "dropped": Ended(
        lambda name, task_id, its: RateLimitDropped(name, task_id, its.owner),
        logging.INFO,
        "task %s[%s] of %s was dropped by the limit %s: it has not run",
        ("owner",),
    ),
    "cancelled": Ended(
        lambda _name, _id, _its: TaskRevokedError("cancelled"),
        logging.INFO,
        "task %s[%s] of %s was cancelled: it has not run",
        (),
    ),
    "expired": Ended(
        lambda _name, _id, _its: TaskRevokedError("expired"),
        logging.INFO,
        "task %s[%s] of %s expired in queue %s: it has not run",
        ("queue",),
    ),
}


class _Decoder:
    """What reading a message needs of a channel."""

    codecs = virtual.Channel.codecs

    def decode_body(self, body: Any, encoding: str | None = None) -> Any:
        """Decode; what cannot be is no body of any content type, and found when it is loaded."""
        reader: Any = self
        try:
            return virtual.Channel.decode_body(reader, body, encoding)
        except Exception:  # noqa: BLE001 - a producer may have written anything
            return b"\xff"


def request_of(outcome: Outcome, consumer: Any) -> LostRequest:
    """Return the request that a worker would have made of the message.

    A body that this worker cannot read is left out: what is in it, errbacks and the chord, is not
    told then. Nor need it know the task: a result is kept by the app's settings.
    """
    decoder: Any = _Decoder()
    accept = prepare_accept_content(consumer.app.conf.accept_content)
    message: Any = virtual.Message(_loads(outcome.message), channel=decoder, accept=accept)
    eventer = EventsOfLoop(consumer)
    return request_of_message(message, consumer.app, hostname=consumer.hostname, eventer=eventer)


def request_of_message(message: Any, app: Any, **options: Any) -> LostRequest:
    """Return the same of a message that was read.

    Args:
        message: It accepts what the app accepts.
        app: Of the task.
        options: Of the request.
    """
    body, headers = message.body, message.headers
    decoded = False
    try:
        if isinstance(message.payload, dict):
            body, headers, decoded, _ = hybrid_to_proto2(message, message.payload)
    except Exception as error:  # noqa: BLE001 - a codec of the user's may raise anything
        logger.error(
            "task %s[%s]: errbacks and chord are not told, its body cannot be read: %s",
            headers["task"],
            headers["id"],
            error or type(error).__name__,
        )
        body, decoded = ((), {}, {}), True
    return LostRequest(
        message,
        app=app,
        task=app.tasks.get(headers["task"]) or stranger(app, headers["task"]),
        body=body,
        headers=headers,
        decoded=decoded,
        **options,
    )


def _loads(text: str) -> Any:
    """Return a message; with values of types that this worker does not know as they are written."""
    try:
        return loads(text)
    except Exception:  # noqa: BLE001 - a type's decoder is a user's
        return json.loads(text)


def stranger(app: Any, name: str) -> Any:
    """Return a stand-in for a task that this worker does not know."""
    cls: Any = type("Stranger", (Task,), {"name": name})
    cls.bind(app)
    return cls()


def write(outcome: Outcome, consumer: Any) -> None:
    """Write the result of a task, or log why there is none to write."""
    try:
        request = request_of(outcome, consumer)
    except Exception as error:  # noqa: BLE001 - it would never be read
        logger.error(
            "a lost task of queue %s has no result, its message cannot be read: %s",
            outcome.queue,
            error or type(error).__name__,
        )
        return
    name, task_id = request.name, request.id
    ended = ENDS.get(outcome.state, ENDS["acked"])
    result = ended.error(name, task_id, outcome)
    end = request.stored_end(result)
    if end:
        logger.info("task %s[%s] had ended before its worker was lost: %s", name, task_id, end)
        return
    who = tenant_of(outcome, request.request_dict)
    if isinstance(result, TaskRevokedError):
        request.revoke(result, expired=outcome.state == "expired")
    else:
        request.fail(result)
    told = (getattr(outcome, field) for field in ended.told)
    logger.log(ended.level, ended.text, name, task_id, who, *told)


def tenant_of(outcome: Outcome, headers: Mapping[str, Any]) -> str:
    """Return who was charged, for people."""
    if not outcome.tenant:
        return "no tenant"
    try:
        tenant = parse_header(headers.get(HEADER)).tenant
    except (HeaderInvalid, TenantInvalid):
        tenant = None
    return f"tenant {tenant or outcome.tenant!r}"
