"""The message headers of this package: ``fairness``, ``fairness_copy``, ``fairness_accepted``.

``fairness`` says who is charged and is what counts, whoever produced the message::

    {"v": 1, "tenant": "42", "tier": "pro", "service": "analysis", "scheduled": false, "cost": 1,
     "limits": [{"key": "api.stripe.com", "concurrency": 5, "on_limit": "wait"}]}

Every field but ``v`` may be missing; unknown fields are kept and ignored. ``fairness_copy`` says
which copy of a message this is (:class:`Copy`), ``fairness_accepted`` that it belongs to what was
accepted before. All are described in ``docs/wire-format.md``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_fairness.config.key_templates import KEY_CHARACTERS
from celery_fairness.config.policy import Limit
from celery_fairness.config.queue_policy import queue_key
from celery_fairness.config.tenants import KEY_PATTERN, normalise
from celery_fairness.config.tiers import SERVICE_EXPECTED, is_service_name
from celery_fairness.errors import HeaderInvalid, TenantInvalid, got, misspelled
from celery_fairness.message.limits import parse_limits
from celery_fairness.util.ids import new_id

HEADER = "fairness"
COPY_HEADER = "fairness_copy"
ACCEPTED_HEADER = "fairness_accepted"

#: Headers, of Celery and ours, of what was accepted before.
_ACCEPTED = ("retries", "replaced_task_nesting", ACCEPTED_HEADER)

VERSION = 1
#: Largest header, in bytes of JSON.
HEADER_BYTES = 16_384
MAX_COST = 1_000_000

#: The fields of ``partition``.
_PARTITION = ("queue", "key")
_COPY_PART = re.compile(r"[0-9A-Za-z]{1,64}")
_FIELDS = frozenset(("v", "tenant", "tier", "service", "scheduled", "cost"))
_HEADERS: tuple[str, ...] = (HEADER,)
#: All fields; `v` is too short to be misspelled.
_NAMES: tuple[str, ...] = (
    "tenant",
    "tier",
    "service",
    "scheduled",
    "cost",
    "limits",
    "partition",
    "invalid",
)


@dataclass(frozen=True, slots=True)
class Copy:
    """Which copy of a task's message this is.

    A deferred task is published again under the same ``message``, with a new ``serial``. Of all
    copies of one message that a cut connection may leave on a broker, one runs.

    Attributes:
        message: The same for all copies, new for each retry.
        serial: "" for the first, a random one for each copy that a refusal published.
    """

    message: str
    serial: str = ""


@dataclass(frozen=True, slots=True)
class Header:
    """Who a message is charged to, as its producer knew it.

    Attributes:
        tenant: None is a system task.
        tier: The tenant's tier when the message was sent; counts while nothing better is known.
        service: The service whose queues the task may move between.
        scheduled: Submitted by beat, or declared so.
        cost: Units that the task is charged, above 0.
        invalid: Why the producer could not tell the tenant, "" where it could.
        limits: Those beside the tenant's tier, one for each key.
        partition: A queue and the key of the task's partition of its limit; None: it names none.
    """

    tenant: str | None = None
    tier: str | None = None
    service: str | None = None
    scheduled: bool = False
    cost: float = 1
    invalid: str = ""
    limits: tuple[Limit, ...] = ()
    partition: tuple[str, str] | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the header as it is put into a message, without limits."""
        wire: dict[str, Any] = {"v": VERSION}
        if self.tenant is not None:
            wire["tenant"] = self.tenant
        if self.tier is not None:
            wire["tier"] = self.tier
        if self.service is not None:
            wire["service"] = self.service
        wire["scheduled"] = self.scheduled
        wire["cost"] = self.cost
        if self.invalid:
            wire["invalid"] = self.invalid
        return wire


def was_accepted(headers: Mapping[str, Any]) -> bool:
    """Say whether a message is of a task that was accepted before, or follows one.

    It is a retry, a task that another has put in its own place, or what Celery sends when a task
    has ended. No bound rejects it, and its numbers are not the newest of their keys.
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
    tier = value.get("tier")
    if tier is not None and not is_service_name(tier):
        raise HeaderInvalid(f"tier: {SERVICE_EXPECTED}, got: {got(tier)}")
    service = value.get("service")
    if service is not None and not is_service_name(service):
        raise HeaderInvalid(f"service: {SERVICE_EXPECTED}, got: {got(service)}")
    scheduled = value.get("scheduled", False)
    if not isinstance(scheduled, bool):
        raise HeaderInvalid(f"scheduled: expected true or false, got: {got(scheduled)}")
    cost = value.get("cost", 1)
    if type(cost) not in (int, float) or not (0 < cost <= MAX_COST and math.isfinite(cost)):
        raise HeaderInvalid(f"cost: expected a number above 0, up to {MAX_COST}, got: {got(cost)}")
    invalid = value.get("invalid", "")
    if not isinstance(invalid, str):
        raise HeaderInvalid(f"invalid: expected text, got: {got(invalid)}")
    limits = parse_limits(value["limits"]) if "limits" in value else ()
    partition = _partition(value["partition"]) if "partition" in value else None
    return Header(tenant, tier, service, scheduled, cost, invalid, limits, partition)


def misspelling(headers: Mapping[str, Any]) -> str:
    """Return which name in a message's headers is a misspelling of ours, "" where none is.

    Such a name is ignored, as every unknown one: the message counts as if it were not there.
    """
    if HEADER not in headers:
        # Each message has some twenty others; those that begin otherwise cost nothing so.
        within, known = "", _HEADERS
        names: Any = [name for name in headers if str(name)[:1] in "fF"]
    else:
        within, names, known = f"{HEADER}.", headers[HEADER], _NAMES
        if not isinstance(names, Mapping) or _FIELDS.issuperset(names):
            return ""
    for name in names:
        if near := misspelled(name, known):
            return f"{within}{name}, did you mean {within}{near}?"
    return ""


def readable_partition(value: Any) -> tuple[str, str] | None:
    """Return the partition of a header that cannot be read whole; None where that is not one."""
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
    """Check that a header can be JSON, and how long that is.

    Raises:
        HeaderInvalid: It has a field that JSON cannot hold, or more than 16 KiB.
    """
    try:
        size = len(json.dumps(dict(value)).encode())
    except (TypeError, ValueError, RecursionError):
        raise HeaderInvalid("expected fields that JSON can hold") from None
    if size > HEADER_BYTES:
        raise HeaderInvalid(f"expected at most {HEADER_BYTES} bytes of JSON, got: {size}")


def first_copy() -> dict[str, str]:
    """Return the ``fairness_copy`` header of a message that is published for the first time."""
    return {"message": new_id(8), "serial": ""}


def new_serial() -> str:
    """Return the serial of one more copy of a message."""
    return new_id(4)


def parse_copy(value: Any) -> Copy | None:
    """Read a ``fairness_copy`` header; None where there is none that can be read.

    A message without one is not protected against double delivery, and is otherwise treated alike.
    """
    if not isinstance(value, Mapping):
        return None
    message, serial = value.get("message"), value.get("serial")
    if not (isinstance(message, str) and isinstance(serial, str)):
        return None
    if not (_COPY_PART.fullmatch(message) and (serial == "" or _COPY_PART.fullmatch(serial))):
        return None
    return Copy(message, serial)
