"""Stores the result of a task that ended while no worker was running it.

Redis ends a task alone in these cases. For each, Redis keeps an outcome with the message. From it,
a worker writes what Celery writes for a lost process: the result, the parts of chords and chains,
errbacks, signal and event.

- Its worker died after the ack, or its process died too often.
- A worker could not read its message.
- A limit dropped it, a person cancelled it, or it expired while it waited.
- Another task has its unique key.
- Its broker rejected it after a gate had parked it.

Invariant: a second write stores the same result, and never replaces an end that the task stored.
"""

from __future__ import annotations

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

from celery_fairness.config.queue_limits import PARKED_QUEUES
from celery_fairness.errors import (
    DeliveriesExhausted,
    DuplicateTask,
    HeaderInvalid,
    MessageUnreadable,
    PublishFailed,
    RateLimitDropped,
    TenantInvalid,
)
from celery_fairness.message.headers import HEADER, parse_header
from celery_fairness.message.unique import readable_unique
from celery_fairness.scheduler.types import Outcome
from celery_fairness.util.log_fields import about
from celery_fairness.worker.captured_message import CapturedMessage, loads_what_it_can
from celery_fairness.worker.message_check import READ_ERRORS, reason_of
from celery_fairness.worker.unrun_failure import write_failure

if TYPE_CHECKING:
    _Request = Any
else:
    _Request = Request

logger = logging.getLogger("celery_fairness")

#: Backends without a readable result: they store none, or only the caller can read it.
_NO_RESULTS = ("disabled://", "rpc://")
#: The types of errors that this module stores.
_WRITTEN_HERE = (
    WorkerLostError,
    DeliveriesExhausted,
    DuplicateTask,
    MessageUnreadable,
    PublishFailed,
    RateLimitDropped,
)


class LostRequest(_Request):
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
        error: Makes the result from the request and the outcome.
        level: The level of the log line.
        text: The log line, with the task's name and id, its tenant, and ``shown``.
        shown: Fields of the outcome in the log line.
    """

    error: Callable[[LostRequest, Outcome], Exception]
    level: int
    text: str
    shown: tuple[str, ...]


#: The keys are the states of an outcome.
ENDS = {
    "acked": Ended(
        lambda _, its: WorkerLostError(
            f"Worker exited prematurely: the lease of {its.owner} ended"
        ),
        logging.ERROR,
        "task %s[%s] of %s was lost with its worker %s: acknowledged, it is not run again",
        ("owner",),
    ),
    "dead": Ended(
        lambda of, its: DeliveriesExhausted(of.name, of.id, its.deaths, its.queue),
        logging.ERROR,
        "task %s[%s] of %s is a dead letter of queue %s: its process died %d times",
        ("queue", "deaths"),
    ),
    "unreadable": Ended(
        lambda of, its: MessageUnreadable(of.name, of.id, its.queue),
        logging.ERROR,
        "task %s[%s] of %s is a dead letter of queue %s: worker %s could not read its message",
        ("queue", "owner"),
    ),
    # The user has configured it, so it is not an error.
    "dropped": Ended(
        lambda of, its: RateLimitDropped(of.name, of.id, its.owner),
        logging.INFO,
        "task %s[%s] of %s was dropped by the limit %s: it has not run",
        ("owner",),
    ),
    "duplicate": Ended(
        lambda of, its: DuplicateTask(of.name, of.id, _unique_key_of(of), its.owner, "dropped"),
        logging.INFO,
        "task %s[%s] of %s was dropped: task %s has its unique key",
        ("owner",),
    ),
    "replaced": Ended(
        lambda of, its: DuplicateTask(of.name, of.id, _unique_key_of(of), its.owner, "replaced"),
        logging.INFO,
        "task %s[%s] of %s was replaced by task %s, which has its unique key",
        ("owner",),
    ),
    "cancelled": Ended(
        lambda _request, _its: TaskRevokedError("cancelled"),
        logging.INFO,
        "task %s[%s] of %s was cancelled: it has not run",
        (),
    ),
    "expired": Ended(
        lambda _request, _its: TaskRevokedError("expired"),
        logging.INFO,
        "task %s[%s] of %s expired in queue %s: it has not run",
        ("queue",),
    ),
    "unpublished": Ended(
        lambda of, its: PublishFailed(
            *(of.name, of.id, of.delivery_info["exchange"], its.queue, "the log has its answers")
        ),
        logging.ERROR,
        "task %s[%s] of %s has not run: a limit rejected it, and its broker does not take it back "
        "to queue %s",
        ("queue",),
    ),
}


def _unique_key_of(request: LostRequest) -> str:
    unique = readable_unique(request.request_dict.get(HEADER))
    return unique.key if unique else ""


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
    app = consumer.app
    accept = prepare_accept_content(app.conf.accept_content)
    message: Any
    if outcome.queue.startswith(PARKED_QUEUES):
        message = CapturedMessage.from_text(outcome.message).received(accept)
    else:
        decoder: Any = _Decoder()
        envelope = loads_what_it_can(outcome.message)
        message = virtual.Message(envelope, channel=decoder, accept=accept)
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
            reason_of(error),
            extra=about(task_name=headers["task"], task_id=headers["id"], queue=outcome.queue),
        )
        body, decoded = ((), {}, {}), True
    return LostRequest(
        message,
        app=app,
        hostname=consumer.hostname,
        eventer=LoopEvents(consumer),
        task=app.tasks.get(headers["task"]) or unknown_task(app, headers["task"]),
        body=body,
        headers=headers,
        decoded=decoded,
    )


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
        _log_unreadable(outcome, error)
        return
    try:
        _write(request, outcome)
    except READ_ERRORS as error:
        # A backend that is away raises others. A later try would fail too, and delay other results.
        _log_unreadable(outcome, error)


def _log_unreadable(outcome: Outcome, error: Exception) -> None:
    logger.error(
        "a lost task of queue %s has no result, its message cannot be read: %s",
        outcome.queue,
        reason_of(error),
        extra=about(queue=outcome.queue),
    )


def _write(request: LostRequest, outcome: Outcome) -> None:
    name, task_id = request.name, request.id
    if outcome.queue.startswith(PARKED_QUEUES):
        outcome = outcome._replace(queue=str(request.delivery_info["routing_key"]))
    ended = ENDS.get(outcome.state, ENDS["acked"])
    result = ended.error(request, outcome)
    end = request.stored_end(result)
    if end:
        logger.info(
            "task %s[%s] had ended before its worker was lost: %s",
            name,
            task_id,
            end,
            extra=about(task_name=name, task_id=task_id, queue=outcome.queue),
        )
        return
    tenant = tenant_of(outcome, request.request_dict)
    who = f"tenant {tenant!r}" if tenant else "no tenant"
    if isinstance(result, TaskRevokedError):
        request.revoke(result, expired=outcome.state == "expired")
    else:
        request.fail(result)
    shown = (getattr(outcome, field) for field in ended.shown)
    fields = about(
        task_name=name,
        task_id=task_id,
        tenant=tenant,
        queue=outcome.queue,
        key=outcome.owner if outcome.state == "dropped" else "",
    )
    logger.log(ended.level, ended.text, name, task_id, who, *shown, extra=fields)


def tenant_of(outcome: Outcome, headers: Mapping[str, Any]) -> str:
    """Return the tenant as its producer names it; "" for a system task."""
    if not outcome.tenant:
        return ""
    try:
        tenant = parse_header(headers.get(HEADER)).tenant
    except (HeaderInvalid, TenantInvalid):
        tenant = None
    return tenant or outcome.tenant
