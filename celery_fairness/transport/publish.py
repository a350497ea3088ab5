"""Publishes a message on a fair channel: the task waits in the lane of its tenant.

The first put of a publish carries the bindings that the channel has read. If they have changed,
Redis rejects the put. So a publish takes one round trip, and never uses old bindings.

If too many tasks wait, Redis rejects the put, and the publish raises. A batch puts its other
messages, and raises after it was sent.

A publish without a bound queue raises, because the task was not sent. Redis may have lost its
memory with the bindings, so the channel first restores the bindings of this connection.

A publish that failed may have put its message. A second publish of the same message, as in kombu's
retry, uses the same delivery tag, so the task waits once.
"""

from __future__ import annotations

import threading
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import ResponseError

from celery_fairness.compat.redis_transport import PublishBatch
from celery_fairness.config.queue_policy import QUEUE_NAME
from celery_fairness.errors import BacklogFull, TaskExists, Unroutable
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Existing, Full, Put, Waiting
from celery_fairness.store.library import is_missing, library
from celery_fairness.transport.envelope import placed, waiting_of
from celery_fairness.util.ids import new_id

if TYPE_CHECKING:
    _Channel = Any
else:
    _Channel = object


#: With several partitions, the age up to which a channel uses bindings it has read, in seconds.
TABLE_SECONDS = 1.0


class BindingsChanged(Exception):
    """The bindings of an exchange have changed since this channel read them."""


class _UncertainPut(NamedTuple):
    """A message whose put may have succeeded."""

    headers: Any
    body: Any
    exchange: str
    routing_key: str
    tag: str

    def is_again(self, message: dict[str, Any], exchange: str, routing_key: str) -> bool:
        """Return whether a publish repeats this one, with the same object and content."""
        same = message["headers"] is self.headers and message["body"] == self.body
        return same and (exchange, routing_key) == (self.exchange, self.routing_key)


#: This thread's or greenlet's last publish, if it failed. A retry has another channel.
_last = threading.local()


class FairBatch(PublishBatch):
    """A batch of publishes that raises for a rejected put."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rejected: list[BacklogFull | TaskExists] = []
        self._execute = self.pipeline.execute
        self.pipeline.execute = self._execute_and_read

    def put(self, waiting: Waiting, partition: int) -> None:
        """Add a put of ``waiting`` in its partition."""
        prefix = self.channel.session.partitions.prefix(partition)
        args = calls.put_args(waiting)
        # The function's name is not a key, so kombu's client adds no prefix to it.
        self.add("execute_command", "FCALL", library().function(calls.PUT), 1, prefix, *args)

    def _execute_and_read(self) -> list[Any]:
        sent = [args for args, _ in self.pipeline.command_stack]
        answers = self._answers()
        session = self.channel.session
        for index, answer in enumerate(answers):
            if isinstance(answer, ResponseError) and is_missing(answer):
                # Redis ran the other puts, so only this one is sent again.
                prefix, args = sent[index][3], list(sent[index][4:])
                answers[index] = session.call(calls.PUT, args, session.partitions.of_prefix(prefix))
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        for index, answer in enumerate(answers):
            if session.partitions.are_several and calls.rings_bell(answer):
                prefix, queue = sent[index][3:5]
                session.ring_bell(session.partitions.of_prefix(prefix), [queue])
        # An accepted put returns a number.
        for each in [calls.read_put(each) for each in answers if isinstance(each, list)]:
            if isinstance(each, Full):
                self._rejected.append(BacklogFull(*each))
            elif isinstance(each, Existing):
                self._rejected.append(TaskExists(each.task_id))
        return answers

    def _answers(self) -> list[Any]:
        """Execute the commands, each put at the server of its partition."""
        session, stack = self.channel.session, self.pipeline.command_stack
        if not session.servers.are_several:
            answers: list[Any] = self._execute(raise_on_error=False)
            return answers
        puts = [args[3:] for args, _ in stack if args[0] == "FCALL"]
        self.pipeline.command_stack = [each for each in stack if each[0][0] != "FCALL"]
        # Without a command it does nothing.
        others = iter(self._execute(raise_on_error=False))
        put = iter(session.put_together([(prefix, args) for prefix, *args in puts]))
        return [next(put if args[0] == "FCALL" else others) for args, _ in stack]

    def flush(self) -> None:
        """Send the batch.

        Raises:
            BacklogFull: For the first rejected put. The other tasks wait.
            TaskExists: For the first put whose unique key another task has.
        """
        super().flush()
        rejected, self._rejected = self._rejected, []
        if rejected:
            raise rejected[0]


class PublishMixin(_Channel):
    """The part of a fair channel that puts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._tables: dict[str, Any] = {}
        #: When each of them was read, if there are several partitions (monotonic seconds).
        self._read_at: dict[str, float] = {}
        #: Bindings of the open publish: the exchange, and each binding as Redis has it.
        self._unchecked: tuple[str, list[str]] | None = None
        self._tag = ""
        #: Whether the open publish has found a queue.
        self._routed = False
        super().__init__(*args, **kwargs)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> Any:
        self._routed = True
        if not self.is_fair(queue):
            return super()._put(queue, message, **kwargs)
        QUEUE_NAME.read("queue", queue)
        waiting = waiting_of(queue, message, self.session.settings)
        partition, waiting = placed(waiting, self.session.partitions)
        batch = kwargs.get("_publish_batch")
        self._use([queue])
        if batch is None:
            self._put_checked(waiting, partition)
            return None
        batch.put(waiting, partition)
        return None

    def get_table(self, exchange: str) -> Any:
        """Return the bindings of an exchange, as this channel last read them.

        The first put of a publish carries them, and Redis rejects it if they have changed.
        """
        known = self._tables.get(exchange) or super().get_table(exchange)
        if self.session.partitions.are_several:
            # The bindings are not in the partition, so no put can compare them.
            return self._recent_table(exchange, known)
        # A put of the stock transport cannot report a change.
        if all(self.is_fair(bound[-1]) for bound in known):
            self._tables[exchange] = known
            self._unchecked = exchange, [self.sep.join(each) for each in known]
        return known

    def _recent_table(self, exchange: str, known: Any) -> Any:
        """Return the bindings as this channel read them at most :data:`TABLE_SECONDS` ago."""
        now = monotonic()
        if now - self._read_at.get(exchange, -TABLE_SECONDS) >= TABLE_SECONDS:
            known, self._read_at[exchange] = super().get_table(exchange), now
        self._tables[exchange] = known
        return known

    def _put_checked(self, waiting: Waiting, partition: int) -> None:
        (exchange, bound), self._unchecked = self._unchecked or ("", []), None
        key = self.global_keyprefix + self.keyprefix_queue % exchange if exchange else ""
        args = calls.put_args(waiting, bindings=key, bound=bound)
        given = self.session.call(calls.PUT, args, partition)
        if self.session.partitions.are_several and calls.rings_bell(given):
            self.session.ring_bell(partition, [waiting.queue])
        answer = calls.read_put(given)
        if isinstance(answer, Full):
            raise BacklogFull(*answer)
        if isinstance(answer, Existing):
            raise TaskExists(answer.task_id)
        if answer is Put.BINDINGS_CHANGED:
            raise BindingsChanged(exchange)

    def create_publish_batch(self, max_size: int) -> FairBatch:
        """Begin a batch."""
        return FairBatch(self, max_size)

    def basic_publish(self, message: Any, exchange: str, routing_key: str, **kwargs: Any) -> Any:
        """Publish; if the bindings have changed, read them and publish again."""
        body = message["body"]
        uncertain: _UncertainPut | None = getattr(_last, "uncertain", None)
        again = uncertain is not None and uncertain.is_again(message, exchange, routing_key)
        self._tag = uncertain.tag if uncertain is not None and again else new_id(16)
        _last.uncertain = None
        try:
            return self._publish(message, exchange, routing_key, **kwargs)
        except (BacklogFull, TaskExists, Unroutable):
            raise
        except BaseException:
            # Without headers, two messages with the same content look the same.
            if message["headers"]:
                made = _UncertainPut(message["headers"], body, exchange, routing_key, self._tag)
                _last.uncertain = made
            raise

    def _publish(self, message: Any, exchange: str, routing_key: str, **kwargs: Any) -> Any:
        body = message["body"]
        if self._tables and "_publish_batch" in kwargs:
            # A batch has no answer that could report a change.
            self._tables.clear()
        bound_again = False
        while True:
            self._unchecked, was_known = None, exchange in self._tables
            self._routed = not exchange
            try:
                published = super().basic_publish(message, exchange, routing_key, **kwargs)
            except BindingsChanged:
                pass
            else:
                if self._routed or not self._is_task(message, exchange):
                    if self._unchecked is None or not was_known:
                        return published
                elif bound_again or not self.restore_bindings(exchange):
                    raise Unroutable(exchange, routing_key)
                else:
                    bound_again = True
                # No put reached Redis, so the known bindings may be old.
            self._tables.pop(exchange, None)
            # The failed try has encoded it in place.
            message["body"] = body

    def _is_task(self, message: Any, exchange: str) -> bool:
        # Events and replies to remote control have no queue if no process reads them.
        return "task" in message["headers"] and self.typeof(exchange).type != "fanout"

    def _next_delivery_tag(self) -> str:
        return self._tag or new_id(16)

    def _queue_bind(self, exchange: str, *args: Any) -> None:
        self._tables.pop(exchange, None)
        bind, bound = partial(super()._queue_bind, exchange, *args), self.session.bound
        if (exchange, *args) in bound:
            # kombu binds anew on each connection.
            self.at_home(bind)
        else:
            bind()
            bound.add((exchange, *args))

    def _delete(self, queue: str, exchange: str, *args: Any, **kwargs: Any) -> Any:
        self._tables.pop(exchange, None)
        self.session.bound.discard((exchange, *args[:2], queue))
        return super()._delete(queue, exchange, *args, **kwargs)
