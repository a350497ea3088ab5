"""The message headers of this package: ``fairness``, ``fairness_copy``, ``fairness_accepted``.

``fairness`` has the message's tenant and limits. It decides, whichever program made the message::

    {"v": 1, "tenant": "42", "tier": "pro", "service": "analysis", "scheduled": false, "cost": 1,
     "limits": [{"key": "api.stripe.com", "concurrency": 5, "on_limit": "wait"}]}

Every field except ``v`` may be missing. Unknown fields are kept and ignored. ``fairness_copy``
identifies the copy of a message (:class:`Copy`). ``fairness_accepted`` marks a message whose task
was accepted before. ``docs/reference/message-headers.md`` has them all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from celery_fairness.config.fields import TRUTH
from celery_fairness.config.limit_spec import Limit
from celery_fairness.config.numbers import COST
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.config.tenants import KEY_CHARACTERS, KEY_PATTERN, normalise
from celery_fairness.config.tiers import NAME
from celery_fairness.errors import HeaderInvalid, TenantInvalid, got, misspelled
from celery_fairness.message.limits import parse_limits
from celery_fairness.message.unique import Unique, parse_unique
from celery_fairness.util.ids import new_id
from celery_fairness.util.throttled_log import Notices

HEADER = "fairness"
COPY_HEADER = "fairness_copy"
ACCEPTED_HEADER = "fairness_accepted"
#: The header for the eta of a task that has waited in Redis.
ETA_HEADER = "fairness_eta"
#: The property for the wait of a claimed task. It belongs to one attempt, so no retry sends it.
CLAIM_PROPERTY = "fairness_claim"
#: The header that Celery's beat sets on each message.
BEAT_HEADER = "celery_beat_task"

#: The headers that this package reads.
_READ = (HEADER, COPY_HEADER, ACCEPTED_HEADER, BEAT_HEADER)

#: Headers of Celery, and one of ours, that mark a task that was accepted before.
_ACCEPTED = ("retries", "replaced_task_nesting", ACCEPTED_HEADER)

VERSION = 1
#: Largest header, in bytes of JSON.
HEADER_BYTES = 16_384

#: The fields of ``partition``.
_PARTITION = ("queue", "key")
_MESSAGE = re.compile(r"[0-9A-Za-z]{1,64}")
#: A promoter's copy has the name of a lease, which begins with the message and has dots.
_SERIAL = re.compile(r"[0-9A-Za-z.]{0,128}")
_FIELDS = frozenset(("v", "tenant", "tier", "service", "scheduled", "cost"))
_HEADERS: tuple[str, ...] = (HEADER,)


@dataclass(frozen=True, slots=True)
class Copy:
    """Identifies a copy of a task's message.

    A rejected task is published again with the same ``message`` and a new ``serial``. A cut
    connection may leave several copies of one message on a broker. Only one of them runs.

    Attributes:
        message: The same for all copies, new for each retry.
        serial: "" for the first copy, random for each copy that a rejection published, the name of
            the promotion's lease for each copy that a promoter published.
    """

    message: str
    serial: str = ""

    def to_wire(self) -> dict[str, str]:
        """Return the header as a message carries it."""
        return {"message": self.message, "serial": self.serial}


@dataclass(frozen=True, slots=True)
class Header:
    """A ``fairness`` header.

    Attributes:
        tenant: None for a system task.
        tier: The tenant's tier when the message was sent. It applies if the worker has no newer
            one.
        service: The service between whose queues the task may move.
        scheduled: Beat sent the task, or it is declared as scheduled.
        cost: The units that the task costs its tenant, above 0.
        invalid: Why the producer found no valid tenant. "" if it did.
        limits: The limits without the tenant's tier, one for each key.
        partition: A queue, and the key of the task's partition in it. None if it has none.
        unique: The unique key of the task. None if it has none.
    """

    tenant: str | None = None
    tier: str | None = None
    service: str | None = None
    scheduled: bool = False
    cost: float = 1
    invalid: str = ""
    limits: tuple[Limit, ...] = ()
    partition: tuple[str, str] | None = None
    unique: Unique | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the header as a message carries it, without limits."""
        named = {"tenant": self.tenant, "tier": self.tier, "service": self.service}
        present = {name: value for name, value in named.items() if value is not None}
        wire = {"v": VERSION, **present, "scheduled": self.scheduled, "cost": self.cost}
        return {**wire, "invalid": self.invalid} if self.invalid else wire


class MadeHeader(dict[str, Any]):
    """A header that this publish has made, beside its values, so that no step parses it again.

    A user's code may change it before the message is put. Then it has no values, and the next step
    parses it as any other.
    """

    __slots__ = ("_made", "_values")

    def __init__(self, wire: Mapping[str, Any], values: Header) -> None:
        super().__init__(wire)
        self._values = values
        self._made = dict(wire)

    @classmethod
    def of(cls, values: Header) -> MadeHeader:
        """Return the header of these values, without limits."""
        return cls(values.to_wire(), values)

    @property
    def values_if_unchanged(self) -> Header | None:
        """Its values without those of :func:`extended`. None if the header was changed."""
        return self._values if self == self._made else None


#: The names that a field may misspell; `v` is too short to be misspelled.
_NAMES = tuple(each.name for each in fields(Header))


def headers_of(request: Any) -> dict[str, Any]:
    """Return the headers that this package reads, as the message of a task's request has them.

    ``request.headers`` is not enough. If a message has a header with the name ``headers``, as
    tracing SDKs send it (celery#4875), Celery returns that header there. But each header is an
    attribute of the request. Only in the protocol 1 and in eager calls it is none.
    """
    attributes = vars(request)
    within = attributes.get("headers")
    places = (within, attributes) if isinstance(within, Mapping) else (attributes,)
    return {name: place[name] for place in places for name in _READ if name in place}


def was_accepted(headers: Mapping[str, Any]) -> bool:
    """Return whether a message belongs to a task that was accepted before.

    It is a retry, the replacement of a task, or a message that Celery sends at a task's end.
    ``max_waiting`` does not reject it, and its limits' numbers do not replace those of its keys.
    """
    return any(map(headers.get, _ACCEPTED))


def parse_header(value: Any) -> Header:
    """Read a ``fairness`` header from the wire.

    Raises:
        HeaderInvalid: It is no object, has a field of the wrong type, or an unknown version.
    """
    if not isinstance(value, Mapping):
        raise HeaderInvalid(f"expected an object, got: {type(value).__name__}")
    version = value.get("v")
    if type(version) is not int or version != VERSION:
        raise HeaderInvalid(f"v: expected {VERSION}, got: {got(version)}")
    if not _FIELDS.issuperset(value):
        check_size(value)
    try:
        tenant = normalise(value.get("tenant"))
    except TenantInvalid as error:
        raise HeaderInvalid(f"tenant: {error.problem}") from None
    tier, service = value.get("tier"), value.get("service")
    if tier is not None and not NAME.accepts(tier):
        raise HeaderInvalid(NAME.problem("tier", tier))
    if service is not None and not NAME.accepts(service):
        raise HeaderInvalid(NAME.problem("service", service))
    scheduled = value.get("scheduled", False)
    if not isinstance(scheduled, bool):
        raise HeaderInvalid(TRUTH.problem("scheduled", scheduled))
    cost = value.get("cost", 1)
    if not COST.accepts(cost):
        raise HeaderInvalid(COST.problem("cost", cost))
    invalid = value.get("invalid", "")
    if not isinstance(invalid, str):
        raise HeaderInvalid(f"invalid: expected text, got: {got(invalid)}")
    limits = parse_limits(value["limits"]) if "limits" in value else ()
    partition = _partition(value["partition"]) if "partition" in value else None
    unique = parse_unique(value["unique"]) if "unique" in value else None
    return Header(tenant, tier, service, scheduled, cost, invalid, limits, partition, unique)


def values_of(value: Any) -> Header:
    """Return the values of a header without those of :func:`extended`. A made one needs no parse.

    Raises:
        HeaderInvalid: As for :func:`parse_header`.
    """
    made = value.values_if_unchanged if isinstance(value, MadeHeader) else None
    return parse_header(value) if made is None else made


def extended(wire: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a header with ``limits``, ``partition`` or ``unique``."""
    made = wire.values_if_unchanged if isinstance(wire, MadeHeader) else None
    return {**wire, **fields} if made is None else MadeHeader({**wire, **fields}, made)


def log_misspelling(notices: Notices, task: Any, headers: Mapping[str, Any]) -> None:
    """Log a misspelled name of ours in a message's headers, which is ignored."""
    if HEADER not in headers:
        # A message has some twenty other headers. The check of the first letter skips them cheaply.
        within, known = "", _HEADERS
        names: Any = [name for name in headers if str(name)[:1] in "fF"]
    else:
        within, names, known = f"{HEADER}.", headers[HEADER], _NAMES
        if not isinstance(names, Mapping) or _FIELDS.issuperset(names):
            return
    for name in names:
        if near := misspelled(name, known):
            notices.warning(
                f"misspelled:{task}",
                "task %s: its headers have a name that is ignored: %s, did you mean %s?",
                task,
                f"{within}{name}",
                f"{within}{near}",
            )
            return


def readable_partition(value: Any) -> tuple[str, str] | None:
    """Return the partition of an invalid header; None if it has no valid one."""
    try:
        return _partition(value["partition"])
    except (HeaderInvalid, TypeError, KeyError):
        return None


def _partition(value: Any) -> tuple[str, str]:
    queue, key = (value.get(each) if isinstance(value, Mapping) else None for each in _PARTITION)
    if not (isinstance(queue, str) and isinstance(key, str) and _is_partition(queue, key)):
        raise HeaderInvalid(
            f"partition: expected a queue and a key queue:QUEUE:PARTITION of it, got: {got(value)}"
        )
    return queue, key


def _is_partition(queue: str, key: str) -> bool:
    try:
        whole = queue_key(queue)
    except UnicodeEncodeError:
        return False
    fits = len(key) <= KEY_CHARACTERS and KEY_PATTERN.fullmatch(key)
    return bool(fits) and key.startswith(f"{whole}:")


def check_size(value: Mapping[str, Any]) -> None:
    """Check that a header can be written as JSON, and its size.

    Raises:
        HeaderInvalid: JSON cannot represent a field, or the text is longer than 16 KiB.
    """
    try:
        size = len(json.dumps(dict(value)).encode())
    except (TypeError, ValueError, RecursionError):
        raise HeaderInvalid("expected fields that JSON can hold") from None
    if size > HEADER_BYTES:
        raise HeaderInvalid(f"expected at most {HEADER_BYTES} bytes of JSON, got: {size}")


def first_copy() -> dict[str, str]:
    """Return the ``fairness_copy`` header of a message that is published for the first time."""
    return Copy(new_id(8)).to_wire()


def new_serial() -> str:
    """Return the serial of one more copy of a message."""
    return new_id(4)


def parse_copy(value: Any) -> Copy | None:
    """Read a ``fairness_copy`` header; None if it is absent or invalid.

    Then the message is not protected against double delivery. Otherwise nothing differs.
    """
    if not isinstance(value, Mapping):
        return None
    message, serial = value.get("message"), value.get("serial")
    if not (isinstance(message, str) and isinstance(serial, str)):
        return None
    if not (_MESSAGE.fullmatch(message) and _SERIAL.fullmatch(serial)):
        return None
    return Copy(message, serial)
