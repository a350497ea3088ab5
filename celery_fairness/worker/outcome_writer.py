"""Stores the result of a task that ended while no worker was running it.

Redis ends a task alone in six cases. Its worker died after the ack. Its process died too often. A
worker could not read its message. A limit dropped it. A person cancelled it. It expired while it
waited. For each, Redis keeps an outcome with the message. From that, a worker writes what Celery
writes for a lost process: the result, the parts of chords and chains, errbacks, signal and event.
It writes the same for a parked task that its broker does not accept.

Invariant: a second write stores the same result, and never replaces an end that the task stored.
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
from kombu.message import Message
from kombu.serialization import prepare_accept_content
from kombu.transport import virtual
from kombu.utils.encoding import safe_repr
from kombu.utils.json import loads

from celery_fairness.errors import (
    DeliveriesExhausted,
    HeaderInvalid,
    MessageUnreadable,
    PublishFailed,
    RateLimitDropped,
    TenantInvalid,
)
from celery_fairness.limiter.types import Promoted
from celery_fairness.message.headers import HEADER, parse_header
from celery_fairness.scheduler.types import Outcome
from celery_fairness.worker.failure import write_failure
from celery_fairness.worker.parked_message import body_of

if TYPE_CHECKING:
    _Request = Any
else:
    _Request = Request

logger = logging.getLogger("celery_fairness")

#: Backends without a readable result: they store none, or only the caller can read it.
_NO_RESULTS = ("disabled://", "rpc://")
#: The types of errors that this module stores.
_WRITTEN_HERE = (WorkerLostError, DeliveriesExhausted, MessageUnreadable, RateLimitDropped)


class LostRequest(_Request):  # type: ignore[misc]  # its stub lacks what is used here
    """The request of a task that ended while no worker was running it."""

    def stored_end(self, error: Exception) -> str:
        """Return the state that the task itself has stored, "" if it has stored none.

        Its worker may have died after that. A result of this module, or of ``error``'s type, does
        not count, because an earlier write may have failed before it reached the chord.
        """
        backend = self.task.backend
        if not self.store_errors or backend.as_uri() in _NO_RESULTS:
            return ""
        meta = backend.get_task_meta(self.id, cache=False)
        ours = isinstance(meta["result"], (*_WRITTEN_HERE, type(error)))
        return "" if ours or meta["status"] not in states.READY_STATES else str(meta["status"])

    def revoke(self, error: TaskRevokedError, expired: bool) -> None:
        """Do what Celery does with a task that was revoked or expired before it ran."""
        event_fields = {"terminated": False, "signum": None, "expired": expired}
        context: Any = self._context
        self.task.backend.mark_as_revoked(
            self.id, str(error), request=context, store_result=self.store_errors
        )
        signals.task_revoked.send(sender=self.task, request=context, **event_fields)
        self.send_event("task-revoked", **event_fields)

    def fail(self, error: Exception) -> None:
        """Do what Celery does with a task whose process is lost."""
        info = write_failure(self.task, self._context, error, store=self.store_errors)
        self.send_event(
            "task-failed",
            exception=safe_repr(error),
            traceback=info.traceback,
        )


class LoopEvents:
    """The worker's events, sent from its loop if it has one, because they are not thread-safe."""

    def __init__(self, consumer: Any) -> None:
        self._hub = consumer.hub
        self._events = consumer.event_dispatcher

    @property
    def enabled(self) -> bool:
        """Whether the worker sends events."""
        return self._events is not None and self._events.enabled

    def send(self, name: str, **fields: Any) -> None:
        """Send one event."""
        send = partial(self._events.send, name, **fields)
        if self._hub is None:
            send()
        else:
            self._hub.call_soon(send)


class Ended(NamedTuple):
    """The result and the log line of tasks that ended in one way.

    Attributes:
        error: Makes the result from the task's name, its id, and the outcome.
        level: The level of the log line.
        text: The log line, with the task's name and id, its tenant, and ``shown``.
        shown: Fields of the outcome in the log line.
    """

    error: Callable[[str, str, Outcome], Exception]
    level: int
    text: str
    shown: tuple[str, ...]


#: The keys are the states of an outcome.
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
    # The user has configured it, so it is not an error.
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
    """The part of a channel that reading a message needs."""

    codecs = virtual.Channel.codecs

    def decode_body(self, body: Any, encoding: str | None = None) -> Any:
        """Decode a body. A body that cannot be decoded becomes invalid for every content type."""
        reader: Any = self
        try:
            return virtual.Channel.decode_body(reader, body, encoding)
        except Exception:  # noqa: BLE001 - a producer may have written anything
            return b"\xff"


def request_of(outcome: Outcome, consumer: Any) -> LostRequest:
    """Return the request that a worker would have made from the message.

    Without a readable body the request has no errbacks and no chord. The worker need not have the
    task, because the app's settings decide whether a result is stored.
    """
    decoder: Any = _Decoder()
    accept = prepare_accept_content(consumer.app.conf.accept_content)
    message: Any = virtual.Message(_loads(outcome.message), channel=decoder, accept=accept)
    eventer = LoopEvents(consumer)
    return request_of_message(message, consumer.app, hostname=consumer.hostname, eventer=eventer)


def request_of_message(message: Any, app: Any, **options: Any) -> LostRequest:
    """Return the request of a decoded message.

    Args:
        message: The message, which accepts the app's content types.
        app: The task's app.
        options: More arguments for the request.
    """
    body, headers = message.body, message.headers
    decoded = False
    try:
        if isinstance(message.payload, dict):
            body, headers, decoded, _ = hybrid_to_proto2(message, message.payload)
    except Exception as error:  # noqa: BLE001 - a user's codec may raise anything
        logger.error(
            "task %s[%s]: errbacks and chord are not called, its body cannot be read: %s",
            headers["task"],
            headers["id"],
            error or type(error).__name__,
        )
        body, decoded = ((), {}, {}), True
    return LostRequest(
        message,
        app=app,
        task=app.tasks.get(headers["task"]) or unknown_task(app, headers["task"]),
        body=body,
        headers=headers,
        decoded=decoded,
        **options,
    )


def _loads(text: str) -> Any:
    """Return a message; values of types without a decoder stay as they are written."""
    try:
        return loads(text)
    except Exception:  # noqa: BLE001 - a user's decoder may raise anything
        return json.loads(text)


def unknown_task(app: Any, name: str) -> Any:
    """Return a stand-in for a task that this worker does not have."""
    cls: Any = type("Stranger", (Task,), {"name": name})
    cls.bind(app)
    return cls()


def write(outcome: Outcome, consumer: Any) -> None:
    """Store the result of a task, or log why there is none."""
    try:
        request = request_of(outcome, consumer)
    except Exception as error:  # noqa: BLE001 - no later try could read it
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
    shown = (getattr(outcome, field) for field in ended.shown)
    logger.log(ended.level, ended.text, name, task_id, who, *shown)


def write_unpublished(app: Any, promoted: Promoted, problem: Exception) -> None:
    """Store that a parked task has failed; revoke it if it was cancelled or has expired.

    Args:
        app: The task's app.
        promoted: The message that could not be published.
        problem: The reason.
    """
    taken = json.loads(promoted.message)
    accept = prepare_accept_content(app.conf.accept_content)
    facts = {name: taken[name] for name in ("content_type", "content_encoding", "headers")}
    properties = taken["properties"]
    message: Any = Message(body_of(taken), properties=properties, accept=accept, **facts)
    request = request_of_message(message, app)
    place = taken["exchange"], taken["routing_key"]
    error = PublishFailed(str(request.name), str(request.id), *place, str(problem))
    if not request.stored_end(error):
        if promoted.ended:
            request.revoke(TaskRevokedError("expired"), expired=True)
        else:
            request.fail(error)
    logger.error("%s", error)


def tenant_of(outcome: Outcome, headers: Mapping[str, Any]) -> str:
    """Return the tenant as text for the log."""
    if not outcome.tenant:
        return "no tenant"
    try:
        tenant = parse_header(headers.get(HEADER)).tenant
    except (HeaderInvalid, TenantInvalid):
        tenant = None
    return f"tenant {tenant or outcome.tenant!r}"
