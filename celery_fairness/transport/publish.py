"""What a channel does with a message that is published: it waits in the lane of its tenant.

The first put of a publish says which bindings of its exchange the channel has read, and Redis
refuses it where they are others: one round trip, and no table that is out of date.

Where too many wait a put is refused, and the publish raises. Of a batch the others are put all the
same, and it raises when it has been sent.

A task that no queue is bound for was not sent, and the publish raises: Redis may have lost its
memory, and the bindings with it. What this connection has bound is bound again before.

A publish that failed may have put its message all the same. Who publishes the same again, as kombu
does where it retries, publishes it under the same delivery tag, so that it waits once.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.transport.redis import PublishBatch  # type: ignore[attr-defined]  # no stub
from redis.exceptions import ResponseError

from celery_fairness.errors import BacklogFull, Unroutable
from celery_fairness.scheduler import calls
from celery_fairness.scheduler.types import Full, Put, Waiting
from celery_fairness.store.library import is_missing, library
from celery_fairness.transport.envelope import waiting_of
from celery_fairness.util.ids import new_id

if TYPE_CHECKING:
    _Channel = Any
else:
    _Channel = object


class BindingsChanged(Exception):
    """An exchange has other bindings than this channel has read."""


class _Unsure(NamedTuple):
    """A message of which nobody knows whether it was put."""

    headers: Any
    body: Any
    exchange: str
    routing_key: str
    tag: str

    def is_again(self, message: dict[str, Any], exchange: str, routing_key: str) -> bool:
        """Say whether a publish is another try of it: of the same object, with all that it says."""
        same = message["headers"] is self.headers and message["body"] == self.body
        return same and (exchange, routing_key) == (self.exchange, self.routing_key)


#: The last publish of this thread or greenlet, where it failed: a retry has another channel.
_last = threading.local()


class FairBatch(PublishBatch):  # type: ignore[misc]  # kombu is untyped
    """A batch of publishes that says when one of its puts was refused."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._refused: list[Full] = []
        self._execute = self.pipeline.execute
        self.pipeline.execute = self._execute_and_read

    def put(self, waiting: Waiting) -> None:
        """Add a put of ``waiting``."""
        home = self.channel.home
        args = calls.put_args(waiting)
        # The name of a command is no key, so kombu's client sends it as it is.
        self.add("execute_command", "FCALL", library().function(calls.PUT), 1, home.prefix, *args)

    def _execute_and_read(self) -> list[Any]:
        sent = [args for args, _ in self.pipeline.command_stack]
        answers: list[Any] = self._execute(raise_on_error=False)
        for index, answer in enumerate(answers):
            if isinstance(answer, ResponseError) and is_missing(answer):
                # The others were put: only this one is sent again.
                answers[index] = self.channel.home.call(calls.PUT, list(sent[index][4:]))
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        # A put that was not refused says a number.
        refused = (calls.read_put(each) for each in answers if isinstance(each, list))
        self._refused += [each for each in refused if isinstance(each, Full)]
        return answers

    def flush(self) -> None:
        """Send what is pending.

        Raises:
            BacklogFull: Of the first that was refused; the others wait.
        """
        super().flush()
        refused, self._refused = self._refused, []
        if refused:
            raise BacklogFull(*refused[0])


class PublishMixin(_Channel):  # type: ignore[misc]  # it stands before a class of kombu's
    """The part of a fair channel that puts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._tables: dict[str, Any] = {}
        #: Bindings that were looked up for a publish: exchange, and each as it lies in Redis.
        self._unchecked: tuple[str, list[str]] | None = None
        self._tag = ""
        #: The open publish has met a queue.
        self._routed = False
        super().__init__(*args, **kwargs)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> Any:
        self._routed = True
        if not self.is_fair(queue):
            return super()._put(queue, message, **kwargs)
        waiting = waiting_of(queue, message, self.home.options)
        batch = kwargs.get("_publish_batch")
        self._use([queue])
        if batch is None:
            self._put_checked(waiting)
            return None
        batch.put(waiting)
        return None

    def get_table(self, exchange: str) -> Any:
        """Return the bindings of an exchange, as they were when last read.

        The first put of a publish says which they were; Redis refuses it where they are others.
        """
        known = self._tables.get(exchange) or super().get_table(exchange)
        # A put of the stock transport cannot say that they have changed.
        if all(self.is_fair(bound[-1]) for bound in known):
            self._tables[exchange] = known
            self._unchecked = exchange, [self.sep.join(each) for each in known]
        return known

    def _put_checked(self, waiting: Waiting) -> None:
        (exchange, bound), self._unchecked = self._unchecked or ("", []), None
        key = self.global_keyprefix + self.keyprefix_queue % exchange if exchange else ""
        answer = self.home.put(waiting, key, bound)
        if isinstance(answer, Full):
            raise BacklogFull(*answer)
        if answer is Put.BINDINGS_CHANGED:
            raise BindingsChanged(exchange)

    def create_publish_batch(self, max_size: int) -> FairBatch:
        """Begin a batch."""
        return FairBatch(self, max_size)

    def basic_publish(self, message: Any, exchange: str, routing_key: str, **kwargs: Any) -> Any:
        """Publish; bindings are read again where they have changed."""
        body = message["body"]
        unsure: _Unsure | None = getattr(_last, "unsure", None)
        again = unsure is not None and unsure.is_again(message, exchange, routing_key)
        self._tag = unsure.tag if unsure is not None and again else new_id(16)
        _last.unsure = None
        try:
            return self._publish(message, exchange, routing_key, **kwargs)
        except (BacklogFull, Unroutable):
            raise
        except BaseException:
            # Without headers two messages of one content cannot be told apart.
            if message["headers"]:
                made = _Unsure(message["headers"], body, exchange, routing_key, self._tag)
                _last.unsure = made
            raise

    def _publish(self, message: Any, exchange: str, routing_key: str, **kwargs: Any) -> Any:
        body = message["body"]
        if self._tables and "_publish_batch" in kwargs:
            # A batch has no answer that could say so.
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
                elif bound_again or not self.bind_again(exchange):
                    raise Unroutable(exchange, routing_key)
                else:
                    bound_again = True
                # No queue was found, so nobody has said whether the bindings are those.
            self._tables.pop(exchange, None)
            # It was encoded in place.
            message["body"] = body

    def _is_task(self, message: Any, exchange: str) -> bool:
        # Events, and replies to remote control, go to nobody where nobody listens.
        return "task" in message["headers"] and self.typeof(exchange).type != "fanout"

    def _next_delivery_tag(self) -> str:
        return self._tag or new_id(16)

    def _queue_bind(self, exchange: str, *args: Any) -> Any:
        self._tables.pop(exchange, None)
        return super()._queue_bind(exchange, *args)

    def _delete(self, queue: str, exchange: str, *args: Any, **kwargs: Any) -> Any:
        self._tables.pop(exchange, None)
        return super()._delete(queue, exchange, *args, **kwargs)
