"""Sends a rejected task back to the broker, without losing or doubling it.

The resender publishes the message as it came (:mod:`.captured_message`), on its own connection,
and waits for the broker's confirmation. A publish that failed may have arrived. So the next try is
another copy with another serial, which the limiter stores first, and the limiter lets one of the
copies start. Without an answer from the limiter the same serial is published again, because a
second delivery is better than none.

The attempt keeps its pool slot until the broker has the message. It tries again after 0.1 s, and
doubles the pause up to 5 s. At shutdown it tries once more, and logs the whole task if that fails.

A broker may confirm a message that it routed to no queue, and then drop it. So every message is
published as mandatory, and RabbitMQ returns it. Then the resender declares the queue, as a producer
of Celery does, and publishes once more. A message that the broker still rejects raises
:class:`NotAccepted`, and its task fails after some tries.

Weakness: the task's hard time limit goes on. The main process kills the pool's process at it, but
not while it has lost the broker itself. So giving up before the limit would lose more tasks: when
the broker is there again, most are sent back first.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple

from billiard.exceptions import SoftTimeLimitExceeded
from celery.app.task import Context
from celery.utils.quorum_queues import detect_quorum_queues
from kombu import Connection, Queue
from kombu.exceptions import OperationalError
from kombu.transport.native_delayed_delivery import (
    CELERY_DELAYED_DELIVERY_EXCHANGE,
    MAX_LEVEL,
    bind_queue_to_native_delayed_delivery_exchange,
    calculate_routing_key,
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)

from celery_fairness.config.queue_policy import queue_of_route
from celery_fairness.errors import LimiterUnavailable
from celery_fairness.limiter.redis import Limiter
from celery_fairness.limiter.types import Promoted
from celery_fairness.message.headers import (
    ACCEPTED_HEADER,
    COPY_HEADER,
    Copy,
    first_copy,
    headers_of,
    new_serial,
)
from celery_fairness.message.priority import rank_of
from celery_fairness.util.log_fields import about
from celery_fairness.worker.captured_message import CapturedMessage

logger = logging.getLogger("celery_fairness")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
#: Longest wait for a connection to the broker, in seconds.
CONNECT_SECONDS = 5
#: Longest wait for the broker's confirmation of one message, in seconds.
CONFIRM_SECONDS = 10.0
#: Idle connections that one process keeps for this.
IDLE_CONNECTIONS = 10
#: How often a message is published before a broker that rejects it makes its task fail.
NOT_ACCEPTED_AT_MOST = 8
#: RabbitMQ's codes for a message without a queue and for a missing exchange.
_NO_ROUTE = (312, 404)

_CONFIRMED: Mapping[str, Any] = {"mandatory": True, "confirm_timeout": CONFIRM_SECONDS}


class _Place(NamedTuple):
    """A place to which a message is published.

    Attributes:
        exchange: The exchange; "" for the default exchange.
        routing_key: The routing key.
        queue: The queue that a producer would declare. None if the app does not have it.
    """

    exchange: str
    routing_key: str
    queue: Queue | None


def _place_of(queue: Queue) -> _Place:
    if queue.exchange.type == "direct":
        # Celery also publishes by the queue's name here.
        return _Place("", queue.name, queue)
    return _Place(queue.exchange.name, queue.routing_key, queue)


class NotAccepted(Exception):
    """The broker answers, and rejects this message."""


class Resender:
    """Publishes rejected tasks again.

    Args:
        limiter: Stores each new copy before it is published.
        queue_again: ``(task, current queue, headers) -> queue``: the queue for the tenant's current
            tier, or None for no change.
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
        self, task: Any, request: Context, rejected: Copy, serial: str, countdown_seconds: float
    ) -> bool:
        """Publish the message of ``request`` again.

        Args:
            task: The task.
            request: Its request, as the trace would see it.
            rejected: The copy that was rejected.
            serial: The serial of the copy to publish, as the limiter stores it.
            countdown_seconds: The message's countdown.

        Returns:
            False if the worker is stopping and the last publish failed.

        Raises:
            LookupError: The request is not of a message that a worker received.
            NotAccepted: The broker rejected it in :data:`NOT_ACCEPTED_AT_MOST` tries.
        """
        pause, not_accepted = FIRST_PAUSE_SECONDS, 0
        copy = Copy(rejected.message, serial)
        message = CapturedMessage.of(request, headers_of(request))
        while True:
            last_try = self._shutting_down()
            try:
                self._publish(message, copy, countdown_seconds)
                return True
            except Exception as error:
                if last_try:
                    return False
                not_accepted += isinstance(error, NotAccepted)
                if not_accepted == NOT_ACCEPTED_AT_MOST:
                    raise
                logger.warning(
                    "task %s[%s] is rejected and the broker does not accept it (%r): "
                    "trying again in %.1f s",
                    task.name,
                    request.id,
                    error,
                    pause,
                    extra=about(task_name=task.name, task_id=request.id),
                )
            self._wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            try:
                another = new_serial()
                if not self._limiter.supersede(rejected, another):
                    return True
                copy = Copy(rejected.message, another)
            except (LimiterUnavailable, SoftTimeLimitExceeded):
                pass

    def _wait(self, pause_seconds: float) -> None:
        """Wait, but no longer than until the worker begins to stop."""
        ends_at = time.monotonic() + pause_seconds
        try:
            while (left := ends_at - time.monotonic()) > 0 and not self._shutting_down():
                time.sleep(min(left, 0.1))
        except SoftTimeLimitExceeded:
            pass  # It is the body's limit, but the body has not started: keep the message.

    def _publish(self, message: CapturedMessage, copy: Copy, countdown_seconds: float) -> None:
        if self._delays_whole_seconds:
            countdown_seconds = math.ceil(countdown_seconds)
        sent = message.with_headers(**{COPY_HEADER: copy.to_wire()}).after(countdown_seconds)
        place = self._place(sent, countdown_seconds)

        def send(producer: Any) -> None:
            sent.publish(producer, place.exchange, place.routing_key, **_CONFIRMED)

        self._deliver(send, place.queue, delayed=self._delays_whole_seconds)

    def send_as_retry(
        self, request: Context, countdown_seconds: float, headers: Mapping[str, Any]
    ) -> None:
        """Publish the message of a running task again, as Celery publishes a retry.

        The message is a new one, of a task that was accepted before.

        Args:
            request: The request of the task.
            countdown_seconds: The message's countdown.
            headers: The headers of this package, with the tenant's current tier.

        Raises:
            LookupError: The request is not of a message that a worker received.
            Exception: Nothing was sent, as with ``apply_async``.
        """
        if self._delays_whole_seconds:
            countdown_seconds = math.ceil(countdown_seconds)
        own = {**headers, ACCEPTED_HEADER: True}
        if COPY_HEADER in own:
            own[COPY_HEADER] = first_copy()
        message = CapturedMessage.of(request, own).after(countdown_seconds)
        place, conf = self._place(message, countdown_seconds), self._app.conf
        with self._app.producer_or_acquire() as producer:

            def once() -> None:
                if place.queue is not None:
                    producer.maybe_declare(place.queue)
                message.publish(producer, place.exchange, place.routing_key)

            send = once
            if conf.task_publish_retry:
                policy = dict(conf.task_publish_retry_policy or {})
                send = producer.connection.ensure(producer, once, **policy)
            with producer.connection._reraise_as_library_errors():  # noqa: SLF001 - as send_task
                send()

    def _deliver(
        self, send: Callable[[Any], None], queue: Queue | None, *, delayed: bool = False
    ) -> None:
        """Publish with ``send``, and once more if the message had no queue.

        Args:
            send: Publishes with the producer that it gets.
            queue: The queue of the message, or None if the app does not have it.
            delayed: Whether the broker delays the message. It looks for the queue only later, so
                the queue is declared first.

        Raises:
            NotAccepted: The broker answers, and rejects the message.
        """
        try:
            try:
                with self._producer() as producer:
                    if delayed:
                        self._declare(producer, queue)
                    elif queue is not None and self._driver != "amqp":
                        # Only RabbitMQ reports that a message has no queue.
                        producer.maybe_declare(queue)
                    send(producer)
            except Exception as error:
                if getattr(error, "reply_code", None) not in _NO_ROUTE or queue is None:
                    raise
                with self._producer() as producer:
                    if delayed:
                        kind = self._app.conf.broker_native_delayed_delivery_queue_type
                        declare_native_delayed_delivery_exchanges_and_queues(
                            producer.connection, kind
                        )
                    self._declare(producer, queue)
                    send(producer)
        except self._temporary_errors:
            raise
        except Exception as error:
            raise NotAccepted(f"{type(error).__name__}: {error}") from error

    def _declare(self, producer: Any, queue: Queue | None) -> None:
        """Declare a queue, even if this connection has declared it before."""
        if queue is None:
            return
        queue(producer.channel).declare()
        if self._delays_whole_seconds and queue.exchange.type != "direct":
            bind_queue_to_native_delayed_delivery_exchange(producer.connection, queue)

    def _queue_at(self, exchange: str, routing_key: str) -> Queue | None:
        """Return the queue of a message, as a producer would declare it."""
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
            return None  # The user declares all queues, but not this one.

    @cached_property
    def _temporary_errors(self) -> tuple[type[Exception], ...]:
        """Errors of a broker that does not answer, or accepts no message at the moment."""
        connection = self._app.connection_for_write()
        errors = connection.connection_errors + connection.recoverable_connection_errors
        if self._driver != "amqp":
            # Other brokers do not reject single messages.
            errors += connection.channel_errors
        return (*errors, OperationalError, SoftTimeLimitExceeded)

    def take(self, request: Context, copy: Copy) -> CapturedMessage:
        """Return the message that a promoter publishes later; publish nothing.

        Raises:
            LookupError: The request is not of a message that a worker received.
        """
        wire = {**headers_of(request), COPY_HEADER: copy.to_wire()}
        taken = CapturedMessage.of(request, wire).after(0)
        # The broker reports no task that it expires, so a promotion would keep its slots.
        kept = {name: value for name, value in taken.properties.items() if name != "expiration"}
        return replace(taken, properties=kept)

    def rank_of(self, message: CapturedMessage) -> int:
        """Return the rank of a captured message."""
        return rank_of(message.properties.get("priority"), high_first=self._driver != "redis")

    def promote(self, promoted: Promoted) -> None:
        """Publish a captured message, and wait for the broker's confirmation.

        Raises:
            NotAccepted: The broker answers, and rejects the message.
        """
        message, copy = CapturedMessage.from_text(promoted.message), promoted.copy
        waits = {"waited_ms": promoted.waited_ms, "limit": promoted.limit}
        message = message.with_headers(**{COPY_HEADER: {**copy.to_wire(), **waits}})
        place = self._place(message)

        def send(producer: Any) -> None:
            message.publish(producer, place.exchange, place.routing_key, **_CONFIRMED)

        self._deliver(send, place.queue)

    def _place(self, message: CapturedMessage, countdown_seconds: float = 0) -> _Place:
        """Return where a message goes: its queue follows its tenant's tier."""
        exchange, current = message.exchange, message.routing_key
        name = str(message.headers.get("task"))
        task = self._app.tasks.get(name) or SimpleNamespace(name=name)
        place = _Place(exchange, current, self._queue_at(exchange, current))
        moved = self._queue_again(task, current, message.headers)
        if moved is not None and moved != current:
            # The user may declare all queues, but not this one.
            with contextlib.suppress(KeyError):
                place = _place_of(self._app.amqp.queues[moved])
        queue = place.queue
        if not (countdown_seconds and self._delays_whole_seconds) or queue is None:
            return place
        if queue.exchange.type == "direct":
            return place  # The worker keeps it until its time, as Celery's own tasks.
        key = calculate_routing_key(int(countdown_seconds), queue.routing_key)
        return _Place(level_name(MAX_LEVEL), key, queue)

    @contextlib.contextmanager
    def _producer(self) -> Iterator[Any]:
        """Yield a producer on an idle connection; close the connection if the block fails."""
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
        """Whether the broker itself delays messages, as it does with quorum queues."""
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
    """Return all data for sending a task again by hand, as one line of JSON.

    It is a line of Python if JSON cannot hold the arguments.
    """
    custom = request.headers
    facts = {
        "task": task.name,
        "id": request.id,
        "args": request.args,
        "kwargs": request.kwargs,
        "retries": request.retries,
        "expires": request.expires,
        "headers": {**(custom if isinstance(custom, Mapping) else {}), **headers_of(request)},
        "delivery_info": request.delivery_info,
        "chain": request.chain,
        "chord": request.chord,
        "group": request.group,
        "link": request.callbacks,
        "link_error": request.errbacks,
    }
    try:
        return json.dumps(facts, default=repr)
    except (TypeError, ValueError):
        return repr(facts)  # A mapping has keys that JSON lacks, or an argument contains itself.
