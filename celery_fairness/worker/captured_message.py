"""A task's message, captured when it arrives, and sent again as it was.

A signature made from a task's request lacks AMQP properties, representations and compression, and
the publish hooks of others would run again for it. So the message itself is sent again: at a gate's
rejection, by a promoter, and after a ``RateLimitExceeded``. It keeps its body, its headers and its
AMQP properties. ``docs/reference/message-headers.md`` has a table of the exceptions.

The request's properties, a dict, carry the rest of the message (:class:`Received`). Celery passes
them on to the pool and to ``task.request``, and sends them nowhere.

Weakness: kombu keeps a compressed body only as it was before the compression. So it is compressed
again, with the same method but not with the producer's level.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, Self

from celery.app.task import Context
from celery.utils.saferepr import saferepr
from kombu import serialization
from kombu.compression import compress
from kombu.message import Message
from kombu.transport.native_delayed_delivery import CELERY_DELAYED_DELIVERY_EXCHANGE
from kombu.utils.json import dumps, loads, object_hook

from celery_fairness.compat.celery_app import repr_levels
from celery_fairness.config.queue_policy import queue_of_route
from celery_fairness.message.headers import CLAIM_PROPERTY, ETA_HEADER
from celery_fairness.util.timestamps import expires_ms

#: Properties that are parts of the message elsewhere, or belong to one delivery. An SQS FIFO queue
#: drops a second message with the same ``MessageDeduplicationId``.
_NOT_SENT = frozenset(
    (
        *("application_headers", "content_type", "content_encoding", "body_encoding"),
        *("delivery_info", "delivery_tag", CLAIM_PROPERTY),
        *("MessageDeduplicationId", "DelaySeconds", "delay_seconds"),
    )
)
#: Headers that RabbitMQ writes, or by which it would put a copy into other queues too.
_OF_BROKER = frozenset(("x-death", "x-delivery-count", "CC", "BCC"))
_OF_DEATHS = ("x-first-death-", "x-last-death-")
#: Headers of one delivery on ``fairredis://``.
_OF_DELIVERY = frozenset((ETA_HEADER, "redelivered"))
#: AMQP properties that Celery's signature of a retry lacks. ``apply_async`` takes them as options.
_OPTIONS = (
    *("app_id", "cluster_id", "correlation_id", "delivery_mode", "message_id", "timestamp", "type"),
    "user_id",
)
#: Headers that Celery writes from the other options of a retry.
_OF_CELERY = frozenset(
    (
        *("lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries"),
        *("timelimit", "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin"),
        *("ignore_result", "replaced_task_nesting", "stamped_headers", "stamps", "compression"),
    )
)
#: In task protocol 1 these are in the body, or nowhere. With them as headers Celery reads both.
_NAMES = ("task", "id", "argsrepr", "kwargsrepr", "group", "group_index")


class Received(dict[str, Any]):
    """The properties of a received message, with its other parts as attributes.

    Attributes:
        body: The body as kombu has it: text, or bytes, without compression. In task protocol 1 it
            has ``args``, if need be an empty list.
        content_type: Its content type.
        content_encoding: Its encoding.
        headers: The message's headers.
        exchange: The exchange that delivered it.
        routing_key: Its routing key.
    """

    __slots__ = ("body", "content_encoding", "content_type", "exchange", "headers", "routing_key")

    def __init__(self, message: Any) -> None:
        super().__init__(message.properties or {})
        place = message.delivery_info or {}
        self.body = message.body
        self.content_type = message.content_type
        self.content_encoding = message.content_encoding
        self.headers = message.headers
        self.exchange = str(place.get("exchange") or "")
        self.routing_key = str(place.get("routing_key") or "")
        if "task" not in self.headers and _lacks_args(message.payload):
            # With headers and without ``args`` Celery reads it as task protocol 2.
            self._add_args(message.accept)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A class with slots cannot be pickled with the protocols 0 and 1.
        return super().__reduce_ex__(max(2, protocol))

    def _add_args(self, accept: Collection[str] | None) -> None:
        # Celery has changed the payload that the message keeps, so the body is read again.
        body = serialization.loads(self.body, self.content_type, self.content_encoding, accept)
        _, self.content_encoding, self.body = serialization.dumps(
            {**body, "args": []}, _registry().type_to_name[self.content_type]
        )


@dataclass(frozen=True, slots=True, repr=False)
class CapturedMessage:
    """A message that can be published without the task's code.

    Attributes:
        body: Its body as it was sent, in bytes.
        content_type: Its content type.
        content_encoding: Its encoding.
        headers: All its headers.
        properties: Its AMQP properties.
        exchange: Its exchange.
        routing_key: Its routing key, without the prefix of a delayed message. The topic exchange
            for delayed messages finds the queue without it.
    """

    body: bytes
    content_type: str | None
    content_encoding: str | None
    headers: dict[str, Any]
    properties: dict[str, Any]
    exchange: str
    routing_key: str

    @classmethod
    def of(cls, request: Context, changes: Mapping[str, Any]) -> Self:
        """Return the message of a request with other headers.

        Args:
            request: The request of a task.
            changes: Headers to add or to replace.

        Raises:
            LookupError: The request is not of a message that a worker received.
        """
        received = request.properties
        if not isinstance(received, Received):
            raise LookupError("expected a request of a received message, got: one without it")
        headers = dict(received.headers)
        if CLAIM_PROPERTY in received:
            headers = {n: value for n, value in headers.items() if n not in _OF_DELIVERY}
        if "task" not in headers:
            headers.update({name: request.get(name) for name in _NAMES}, eta=None)
        exchange, key = received.exchange, queue_of_route(received.routing_key)
        if key != received.routing_key:
            # The exchange of its last level does not find the queue without the prefix.
            exchange = CELERY_DELAYED_DELIVERY_EXCHANGE
        return cls(
            _encoded(received),
            received.content_type,
            received.content_encoding,
            {**headers, **changes},
            {name: value for name, value in received.items() if name not in _NOT_SENT},
            exchange,
            key,
        )

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the message of a parked task."""
        fields = loads_what_it_can(text)
        return cls(**{**fields, "body": base64.b64decode(fields["body"])})

    def to_text(self) -> str:
        """Return the message as JSON.

        Raises:
            TypeError: JSON cannot hold a header.
        """
        names = (name for name in self.__slots__ if name != "body")
        fields = {name: getattr(self, name) for name in names}
        return dumps({"body": base64.b64encode(self.body).decode(), **fields})

    def received(self, accept: Collection[str] | None) -> Message:
        """Return the message as a worker would receive it that accepts these content types."""
        body: Any = self.body
        return Message(
            body,
            content_type=self.content_type,
            content_encoding=self.content_encoding,
            delivery_info={"exchange": self.exchange, "routing_key": self.routing_key},
            properties=self.properties,
            headers=self.headers,
            accept=accept,
        )

    def with_headers(self, **changes: Any) -> Self:
        """Return the message with headers added or replaced."""
        return replace(self, headers={**self.headers, **changes})

    def after(self, seconds: float) -> Self:
        """Return the message with a countdown; 0 is none.

        The broker's expiry counts from the publication. With ``expires`` it is the time that is
        left, as a producer sets it.
        """
        now = datetime.now(UTC)
        eta = (now + timedelta(seconds=seconds)).isoformat() if seconds > 0 else None
        properties, expires = dict(self.properties), expires_ms(self.headers.get("expires"))
        if expires and "expiration" in properties:
            properties["expiration"] = str(max(0, expires - int(now.timestamp() * 1000)))
        return replace(self.with_headers(eta=eta), properties=properties)

    def publish(
        self,
        producer: Any,
        exchange: str | None = None,
        routing_key: str | None = None,
        **options: Any,
    ) -> None:
        """Publish the message, past the hooks of publications.

        Args:
            producer: A producer of kombu.
            exchange: Another exchange than its own; None for its own.
            routing_key: Another routing key; None for its own.
            options: Options of the channel's ``basic_publish``.
        """
        channel, connection = producer.channel, producer.connection
        properties = dict(self.properties)
        if _is_foreign(properties.get("user_id"), connection):
            properties.pop("user_id", None)
        message = channel.prepare_message(
            self._body_for(channel),
            properties.pop("priority", None),
            self.content_type,
            self.content_encoding,
            _sendable(self.headers, connection),
            properties,
        )
        channel.basic_publish(
            message,
            exchange=self.exchange if exchange is None else exchange,
            routing_key=self.routing_key if routing_key is None else routing_key,
            **options,
        )

    def _body_for(self, channel: Any) -> str | bytes:
        """Return the body in the type that a producer gives this channel."""
        encoding = getattr(channel, "body_encoding", "base64")
        if self.headers.get("compression") or (encoding and encoding.lower() != "utf-8"):
            return self.body
        # The channel encodes nothing, and its broker may hold no bytes, as JSON does not.
        try:
            return self.body.decode()
        except UnicodeDecodeError:
            return self.body


def retry_options(
    app: Any, request: Context, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the options of a task's message that Celery's signature of a retry lacks.

    Representations that the producer has chosen, as to hide secrets, stay if the retry has other
    arguments.

    Args:
        app: The Celery app.
        request: The request of the task that is retried.
        args: The positional arguments of the retry; None for those of the request.
        kwargs: The keyword arguments of the retry; None for those of the request.
    """
    received = request.properties
    if not isinstance(received, Received):
        return {}
    headers = received.headers
    options = {name: received[name] for name in _OPTIONS if name in received}
    connection = app.connection_for_write()
    if "user_id" in options and _is_foreign(options["user_id"], connection):
        del options["user_id"]
    expiration = received.get("expiration")
    if not headers.get("expires") and str(expiration).isdecimal():
        options["expiration"] = Fraction(int(str(expiration)), 1000)
    registry = _registry()
    same = args is None and kwargs is None
    # Other arguments may need the task's own serializer.
    if same and received.content_type in registry.type_to_name:
        options["serializer"] = registry.type_to_name[received.content_type]
    if headers.get("compression"):
        options["compression"] = headers["compression"]
    for name, old, new in (
        ("argsrepr", request.args, args),
        ("kwargsrepr", request.kwargs, kwargs),
    ):
        shown = headers.get(name)
        if isinstance(shown, str) and (new is None or new is old or not _shows(app, shown, old)):
            options[name] = shown
    of_delivery = _OF_DELIVERY if CLAIM_PROPERTY in received else frozenset[str]()
    options["headers"] = {
        # A tracing SDK adds to a header named ``headers``.
        name: dict(value) if isinstance(value, dict) else value
        for name, value in _sendable(headers, connection).items()
        if not (name in _OF_CELERY or name in of_delivery)
    }
    return options


def _shows(app: Any, shown: str, value: Any) -> bool:
    """Return whether a representation is Celery's own of these arguments.

    The kind of a bracket is not compared, because serializers turn tuples into lists.
    """
    size, levels = app.amqp.argsrepr_maxsize, repr_levels(app)
    forms = (value, tuple(value)) if isinstance(value, list) else (value,)
    return any(_square(shown) == _square(saferepr(form, size, maxlevels=levels)) for form in forms)


def _square(shown: str) -> str:
    return shown.replace("(", "[").replace(")", "]").replace(",]", "]")


def _lacks_args(payload: Any) -> bool:
    # A strategy of a user's own may make a request of any payload.
    return isinstance(payload, dict) and "task" in payload and "args" not in payload


def _registry() -> Any:
    return vars(serialization)["registry"]


def loads_what_it_can(text: str) -> Any:
    """Return a message; values of types without a decoder stay as they are written."""
    return loads(text, object_hook=_object)


def _object(found: dict[str, Any]) -> Any:
    try:
        return object_hook(found)
    except Exception:  # noqa: BLE001 - a user's decoder may raise anything
        return found


def _is_rabbitmq(connection: Any) -> bool:
    return bool(connection.get_transport_cls().driver_type == "amqp")


def _is_foreign(user_id: Any, connection: Any) -> bool:
    """Return whether RabbitMQ would close a channel that publishes under this user's name."""
    return _is_rabbitmq(connection) and user_id != (connection.userid or "guest")


def _sendable(headers: dict[str, Any], connection: Any) -> dict[str, Any]:
    """Return headers without those of RabbitMQ."""
    # On fairredis it must be the same object: a second try is recognized by it.
    if not (any(map(_is_of_broker, headers)) and _is_rabbitmq(connection)):
        return headers
    return {name: headers[name] for name in headers if not _is_of_broker(name)}


def _is_of_broker(name: str) -> bool:
    return name in _OF_BROKER or name.startswith(_OF_DEATHS)


def _encoded(received: Received) -> bytes:
    """Return a received body as its producer sent it."""
    body: Any = received.body
    if isinstance(body, str):
        # py-amqp decodes a body by its content encoding.
        body = body.encode(received.content_encoding or "utf-8")
    compression = received.headers.get("compression")
    if compression:
        body, _ = compress(body, compression)
    return body if isinstance(body, bytes) else bytes(body)
