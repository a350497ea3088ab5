"""Sending a refused task back to the broker, so that nothing is lost and nothing doubled.

The message keeps its id, arguments, headers, retries, expiry, time limits, links and canvas. It is
published on a connection of our own that waits for the broker's confirmation. A publish that failed
may have arrived all the same: the next try is another copy with another serial, and the limiter,
which is told before, lets one of them start. Where the limiter cannot be told, the same serial is
published again: rather twice than never.

The attempt keeps its pool slot until the broker has the message: it tries again after 0.1 s,
doubling to 5 s. At shutdown it tries once more; what then is on no broker is logged whole.

A broker may confirm a message that it routed to no queue, and forget it. So every message is
published as mandatory: RabbitMQ returns it then. Its queue is declared, as a producer of Celery
declares it, and it is published once more. What the broker still does not take is
:class:`NotTaken`, which no waiting mends: the task fails after some tries.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery.app.task import Context
from celery.utils.quorum_queues import detect_quorum_queues
from kombu import Connection, Queue, serialization
from kombu.exceptions import EncodeError, OperationalError
from kombu.transport.native_delayed_delivery import (
    CELERY_DELAYED_DELIVERY_EXCHANGE,
    bind_queue_to_native_delayed_delivery_exchange,
    declare_native_delayed_delivery_exchanges_and_queues,
)

from celery_fairness.config.queue_policy import queue_of_route
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.limiter.types import Promoted
from celery_fairness.message.headers import COPY_HEADER, Copy, new_serial
from celery_fairness.worker.parked_message import Taken, publish

logger = logging.getLogger("celery_fairness")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
#: Longest wait for a connection to the broker, in seconds.
CONNECT_SECONDS = 5
#: Longest wait for the broker's confirmation of one message, in seconds.
CONFIRM_SECONDS = 10.0
#: Idle connections that one process keeps for this.
IDLE_CONNECTIONS = 10
#: How often a message is published that the broker does not take, before its task fails.
NOT_TAKEN_AT_MOST = 8
#: What RabbitMQ answers where a message has no queue, or no exchange, to go to.
_NOWHERE = (312, 404)

#: The copy header of the message being sent again in this thread or greenlet; None elsewhere.
resending: ContextVar[Mapping[str, str] | None] = ContextVar("resending", default=None)


class NotTaken(Exception):
    """The broker answers, and does not take this message."""


class Resender:
    """Publishes refused tasks again.

    Args:
        app: The Celery app.
        limiter: Is told before a copy is published once more.
        shutting_down: Says whether the worker is stopping.
        queue_again: ``(task, current queue, headers) -> queue``: where a tenant's new tier moves
            the task; None where it stays.
    """

    def __init__(
        self,
        app: Any,
        limiter: Limiter,
        shutting_down: Callable[[], bool],
        queue_again: Callable[[Any, str | None, Mapping[str, Any]], str | None],
    ) -> None:
        self._app = app
        self._limiter = limiter
        self._shutting_down = shutting_down
        self._queue_again = queue_again
        self._idle: list[Connection] = []

    def send(
        self,
        task: Any,
        request: Context,
        refused: Copy,
        serial: str,
        countdown_seconds: float,
        content_type: str | None,
    ) -> bool:
        """Publish the task of ``request`` again.

        Args:
            task: The task.
            request: Its request, as the trace would see it.
            refused: The copy that was refused.
            serial: Of the copy to publish, as the limiter knows it.
            countdown_seconds: When it is due again.
            content_type: Of the message as it came; it goes back as the same.

        Returns:
            False where the worker is stopping and the broker would not take it.

        Raises:
            NotTaken: The broker did not take it in :data:`NOT_TAKEN_AT_MOST` tries.
        """
        pause, not_taken = FIRST_PAUSE_SECONDS, 0
        copy = Copy(refused.message, serial)
        while True:
            last_try = self._shutting_down()
            try:
                self._publish(task, request, copy, countdown_seconds, content_type)
                return True
            except EncodeError:
                raise  # No broker would take it. A dead connection raises whatever it likes.
            except Exception as error:
                if last_try:
                    return False
                not_taken += isinstance(error, NotTaken)
                if not_taken == NOT_TAKEN_AT_MOST:
                    raise
                logger.warning(
                    "task %s[%s] is refused and the broker does not take it back (%r): "
                    "trying again in %.1f s",
                    task.name,
                    request.id,
                    error,
                    pause,
                )
            self._wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            try:
                another = new_serial()
                if not self._limiter.supersede(refused, another):
                    return True
                copy = Copy(refused.message, another)
            except (LimiterUnavailable, SoftTimeLimitExceeded):
                pass

    def _wait(self, pause_seconds: float) -> None:
        """Wait, but not past the moment when the worker begins to stop."""
        ends_at = time.monotonic() + pause_seconds
        try:
            while (left := ends_at - time.monotonic()) > 0 and not self._shutting_down():
                time.sleep(min(left, 0.1))
        except SoftTimeLimitExceeded:
            pass  # The limit is the body's, which has not begun: the message is still kept.

    def _publish(
        self,
        task: Any,
        request: Context,
        copy: Copy,
        countdown_seconds: float,
        content_type: str | None,
    ) -> None:
        if self._delays_whole_seconds:
            countdown_seconds = math.ceil(countdown_seconds)

        def send(producer: Any) -> None:
            self._send(
                *(task, request, copy, content_type, producer),
                countdown=countdown_seconds,
            )

        place = request.delivery_info or {}
        queue = self._queue_at(place.get("exchange") or "", place.get("routing_key") or "")
        self._deliver(send, queue, delayed=self._delays_whole_seconds)

    def _deliver(
        self, send: Callable[[Any], None], queue: Queue | None, *, delayed: bool = False
    ) -> None:
        """Publish with ``send``, and once more where the message had no queue to go to.

        Args:
            send: Publishes with the producer that it is given.
            queue: The queue that the message is for; None: nobody here knows it.
            delayed: The broker delays the message, and only later looks for its queue: that is
                declared before.

        Raises:
            NotTaken: The broker answers, and does not take the message.
        """
        try:
            try:
                with self._producer() as producer:
                    if delayed:
                        self._declare(producer, queue)
                    send(producer)
            except Exception as error:
                if getattr(error, "reply_code", None) not in _NOWHERE or queue is None:
                    raise
                with self._producer() as producer:
                    if delayed:
                        kind = self._app.conf.broker_native_delayed_delivery_queue_type
                        declare_native_delayed_delivery_exchanges_and_queues(
                            producer.connection, kind
                        )
                    self._declare(producer, queue)
                    send(producer)
        except EncodeError:
            raise
        except self._passing:
            raise
        except Exception as error:
            raise NotTaken(f"{type(error).__name__}: {error}") from error

    def _declare(self, producer: Any, queue: Queue | None) -> None:
        """Declare a queue, whatever this connection has declared before."""
        if queue is None:
            return
        queue(producer.channel).declare()
        if self._delays_whole_seconds and queue.exchange.type != "direct":
            bind_queue_to_native_delayed_delivery_exchange(producer.connection, queue)

    def _queue_at(self, exchange: str, routing_key: str) -> Queue | None:
        """Return the queue that a message came through, as a producer would declare it."""
        queues: Mapping[str, Queue] = self._app.amqp.queues
        name = queue_of_route(routing_key)
        for queue in tuple(queues.values()):
            if (queue.exchange.name, queue.routing_key) == (exchange, name):
                return queue
        if exchange not in ("", CELERY_DELAYED_DELIVERY_EXCHANGE):
            return None
        try:
            return queues[name]
        except KeyError:
            return None  # The user declares all queues, and this one not.

    @cached_property
    def _passing(self) -> tuple[type[Exception], ...]:
        """Errors of a broker that is away, or takes nothing at the moment."""
        connection = self._app.connection_for_write()
        errors = connection.connection_errors + connection.recoverable_connection_errors
        if self._driver != "amqp":
            # Those brokers do not judge a single message.
            errors += connection.channel_errors
        return (*errors, OperationalError, SoftTimeLimitExceeded)

    def take(
        self, task: Any, request: Context, copy: Copy, content_type: str | None
    ) -> Mapping[str, Any]:
        """Return the message that would be published, to be due at once; publish nothing.

        Raises:
            EncodeError: No broker would take it.
        """
        producer = Taken(self._app.connection_for_write())
        self._send(task, request, copy, content_type, producer)
        return producer.message or {}

    def promote(self, promoted: Promoted) -> None:
        """Publish a message that was taken, and wait until the broker has it.

        Raises:
            NotTaken: The broker answers, and does not take the message.
        """
        message = json.loads(promoted.message)
        options = {"mandatory": True, "confirm_timeout": CONFIRM_SECONDS}

        def send(producer: Any) -> None:
            publish(producer, promoted, self._moved, **options)

        self._deliver(send, self._queue_at(message["exchange"], message["routing_key"]))

    def _moved(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return where a tenant's new tier moves a parked message; nothing where it stays."""
        current, headers = message["routing_key"], message["headers"]
        name = str(headers.get("task"))
        task = self._app.tasks.get(name) or SimpleNamespace(name=name)
        queue = self._queue_again(task, current, headers)
        if queue is None or queue == current:
            return {}
        try:
            to = self._app.amqp.queues[queue]
        except KeyError:
            return {}  # The user declares all queues, and this one not.
        if to.exchange.type == "direct":
            # As Celery publishes by a queue's name.
            return {"exchange": "", "routing_key": queue, "declare": [to]}
        return {"exchange": to.exchange.name, "routing_key": to.routing_key, "declare": [to]}

    def _send(
        self,
        task: Any,
        request: Context,
        copy: Copy,
        content_type: str | None,
        producer: Any,
        **due: float,
    ) -> None:
        current = (request.delivery_info or {}).get("routing_key")
        queue = self._queue_again(task, current, request.headers or {})
        signature = task.signature_from_request(
            request, queue=queue, retries=request.retries, **due
        )
        options = dict(signature.options)
        registry: Any = vars(serialization)["registry"]
        names: Mapping[str | None, str] = registry.type_to_name
        if content_type in names:
            options["serializer"] = names[content_type]
        wire = {"message": copy.message, "serial": copy.serial}
        options["headers"] = {**(options.get("headers") or {}), COPY_HEADER: wire}
        token = resending.set(wire)
        try:
            # Not through apply_async: users override it, and it checks arguments that the worker
            # has to report on when the task's turn comes.
            self._app.send_task(
                task.name,
                signature.args,
                signature.kwargs,
                producer=producer,
                retry=False,
                confirm_timeout=CONFIRM_SECONDS,
                mandatory=True,
                task_type=task,
                add_to_parent=False,
                **options,
            )
        finally:
            resending.reset(token)

    @contextlib.contextmanager
    def _producer(self) -> Iterator[Any]:
        """Yield a producer on an idle connection, which is closed where it fails."""
        connection = self._connection()
        try:
            with self._app.amqp.Producer(connection, auto_declare=False) as producer:
                yield producer
        except BaseException:
            with contextlib.suppress(Exception):
                connection.release()
            raise
        if len(self._idle) < IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.release()

    @cached_property
    def _driver(self) -> str:
        return str(self._app.connection_for_write().get_transport_cls().driver_type)

    @cached_property
    def _delays_whole_seconds(self) -> bool:
        """Whether the broker itself delays, as it does with quorum queues."""
        return bool(detect_quorum_queues(self._app, self._driver)[0])

    def _connection(self) -> Connection:
        try:
            return self._idle.pop()
        except IndexError:
            pass
        connection: Connection = self._app.connection_for_write(heartbeat=0)
        if self._driver == "amqp":
            options = connection.transport_options or {}
            connection.transport_options = {**options, "confirm_publish": True}
        connection.ensure_connection(max_retries=1, timeout=CONNECT_SECONDS)
        return connection

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop().release()

    def forget_connections(self) -> None:
        """Drop idle connections without closing them: they belong to the process that forked."""
        self._idle = []


def whole_message(task: Any, request: Context) -> str:
    """Return everything that an operator needs to send a task again, as one line of JSON."""
    facts = {
        "task": task.name,
        "id": request.id,
        "args": request.args,
        "kwargs": request.kwargs,
        "retries": request.retries,
        "expires": request.expires,
        "headers": request.headers,
        "delivery_info": request.delivery_info,
        "chain": request.chain,
        "chord": request.chord,
        "group": request.group,
        "link": request.callbacks,
        "link_error": request.errbacks,
    }
    return json.dumps(facts, default=repr)
