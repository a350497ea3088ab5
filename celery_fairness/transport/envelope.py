"""Turns kombu's message into a waiting task, and a claimed task into a message.

The scheduler gets the tenant, the task name, the priority, the earliest start and the expiry. A
message without the ``fairness`` header is a system task. A task with an unreadable header belongs
to the tenant ``_invalid``, under its readable limits. The scheduler never bypasses or drops it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from kombu.serialization import registry  # type: ignore[attr-defined]  # its stub lacks it
from kombu.transport import virtual
from kombu.utils.json import JSONEncoder, loads, object_hook

from celery_fairness.config.limit_spec import read_limits, write_limits
from celery_fairness.config.settings import Settings
from celery_fairness.config.tenants import key_part
from celery_fairness.errors import KeyMissing, PolicyInvalid
from celery_fairness.message.attribution import attribution_of
from celery_fairness.message.headers import (
    CLAIM_PROPERTY,
    ETA_HEADER,
    HEADER,
    log_misspelling,
    was_accepted,
)
from celery_fairness.message.partition import partition_limit_text, partition_of
from celery_fairness.message.priority import rank_of
from celery_fairness.message.tenant_header import carried_header
from celery_fairness.scheduler.types import Claimed, Waiting
from celery_fairness.store.partitions import Partitions
from celery_fairness.transport.options import bounds_of
from celery_fairness.util.throttled_log import Notices
from celery_fairness.util.timestamps import eta_ms, expires_ms

_notices = Notices(logging.getLogger("celery_fairness"))

#: Prefix of the names of Celery's own tasks.
CELERY_PREFIX = "celery."

# Like kombu's dumps() and loads(). Those make an encoder and a decoder for each message, and call
# the hook for each object.
_encode = JSONEncoder().encode
_decode_plain = json.JSONDecoder().decode
_decode_typed = json.JSONDecoder(object_hook=object_hook).decode


#: The content type of bodies in JSON.
JSON_TYPE = "application/json"


class FairMessage(virtual.Message):
    """A message of kombu. One decoder decodes JSON, unless somebody has replaced kombu's own."""

    def _decode(self) -> Any:
        body, decoders = self.body, registry._decoders
        if (
            self.content_type == JSON_TYPE in (self.accept or ())
            and isinstance(body, bytes)
            and b"__type__" not in body
            and decoders.get(JSON_TYPE) is loads
        ):
            with suppress(Exception):
                return _decode_plain(body.decode(self.content_encoding))
        # kombu's errors have the types that Celery expects.
        return super()._decode()


def waiting_of(queue: str, message: dict[str, Any], settings: Settings) -> Waiting:
    """Return ``message``, which kombu is about to send, as a task for the scheduler."""
    message = with_carried_header(message, settings)
    headers = message.get("headers")
    headers = headers if isinstance(headers, dict) else {}
    properties = message["properties"]
    tenant, service, tier, cost, limits, unique = _attribution_fields(
        queue, message, headers, settings
    )
    tag, is_new = properties["delivery_tag"], not _is_accepted(headers)
    if properties["delivery_info"]["exchange"]:
        # An exchange puts one message into several queues, and each of them needs a task of its
        # own.
        tag += "." + hashlib.sha256(queue.encode()).hexdigest()[:16]
    return Waiting(
        queue=queue,
        tag=tag,
        tenant=tenant,
        service=service,
        tier=tier,
        rank=rank_of(
            properties.get("priority"), high_first=settings.priority_order == "high_first"
        ),
        cost=cost,
        eta_ms=eta_ms(headers.get("eta")),
        message=_encode(message),
        kind=task_name_of(headers),
        limits=limits,
        expires_ms=expires_ms(headers.get("expires")),
        bounds=bounds_of(settings, queue, tier) if is_new else None,
        is_new=is_new,
        task_id=_header_part(headers, "id"),
        unique=unique,
    )


def placed(waiting: Waiting, partitions: Partitions) -> tuple[int, Waiting]:
    """Return the partition of a task, and the task with the delivery tag that it has there.

    Raises:
        PolicyInvalid: There are several partitions, and one of its keys may have tasks of several
            tenants. It would hold in each partition alone.
    """
    if partitions.are_several and (waiting.limits or waiting.unique):
        _expect_no_key_of_one_partition(waiting, partitions.count)
    partition = partitions.of_tenant(waiting.tenant, waiting.task_id or waiting.tag)
    return partition, waiting._replace(tag=partitions.tag_of(partition, waiting.tag))


def _expect_no_key_of_one_partition(waiting: Waiting, count: int) -> None:
    keys = [each.key for each in read_limits(waiting.limits) if not each.spans_partitions]
    keys += [waiting.unique.split("|", 2)[2]] if waiting.unique else []
    own = re.compile(rf"(?:^|[._:-]){re.escape(waiting.tenant)}(?:$|[._:-])")
    shared = [key for key in keys if not (waiting.tenant and own.search(key))]
    if shared:
        raise PolicyInvalid(
            "key: expected one with {tenant} as a word of its own, or a limit whose tasks "
            f"wait, because fairness.partitions is {count} and this key would "
            f"count in each partition alone, got: {shared[0]!r}"
        )


def with_carried_header(message: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return a message with the ``fairness`` header that ``tenant_header`` gives it, if any."""
    names, headers = settings.tenant_header, message.get("headers")
    if not (names and isinstance(headers, dict)) or _is_of_celery(headers.get("task")):
        return message
    made = carried_header(headers, message["properties"], names)
    # The producer may use its mapping of headers again.
    return {**message, "headers": {**headers, HEADER: made}} if made else message


def message_of(task: Claimed) -> dict[str, Any]:
    """Return the message of a claimed task, as kombu delivers it.

    Its delivery tag is the lease's name, which belongs to this attempt alone.
    """
    text = task.message
    message: dict[str, Any] = (_decode_typed if "__type__" in text else _decode_plain)(text)
    properties = message["properties"]
    properties["delivery_tag"] = task.lease
    properties[CLAIM_PROPERTY] = {"waited_ms": task.waited_ms, "limit": task.limit}
    headers = message.get("headers")
    if isinstance(headers, dict):
        if eta_ms(headers.get("eta")):
            # It has waited already. A worker that read the eta would wait again, with the slot.
            # An eta that is unreadable here stays: Celery reads it, or rejects the message.
            headers[ETA_HEADER] = headers["eta"]
            headers["eta"] = None
        if task.attempt > 1:
            headers["redelivered"] = True
    if task.attempt > 1:
        properties.setdefault("delivery_info", {})["redelivered"] = True
    return message


def task_name_of(headers: Any) -> str:
    """Return the name of a message's task as keys have it; "" without a header for it.

    Messages of task protocol 1 have the name only in their body.
    """
    return _header_part(headers, "task")


def _header_part(headers: Any, name: str) -> str:
    value = headers.get(name) if isinstance(headers, dict) else None
    try:
        return key_part(value) if isinstance(value, str) and value else ""
    except UnicodeEncodeError:
        return ""


def _is_accepted(headers: dict[str, Any]) -> bool:
    """Return whether a message continues an accepted task, which a rejection would lose.

    It is a retry, a task that replaces another, a callback that Celery sends at a task's end, or
    one of Celery's own tasks.
    """
    return was_accepted(headers) or _is_of_celery(headers.get("task"))


def _is_of_celery(name: Any) -> bool:
    return isinstance(name, str) and name.startswith(CELERY_PREFIX)


def _attribution_fields(
    queue: str, message: dict[str, Any], headers: dict[str, Any], settings: Settings
) -> tuple[str, str, str, float, str, str]:
    """Return tenant, service, tier, cost, limits and unique key, as a put has them."""
    name = headers.get("task")
    if _is_of_celery(name):
        return "", "", "", 1.0, "", ""
    attribution = attribution_of(headers, (), {}, None, settings)
    log_misspelling(_notices, name, headers)
    if attribution.problem:
        _notices.error(
            f"invalid:{name}",
            "task %s is attributed to the tenant _invalid: %s",
            name,
            attribution.problem,
        )
    limits = write_limits(attribution.limits) if attribution.limits else ""
    of_queue, key = attribution.partition or ("", "")
    if of_queue != queue:
        key = _partition(queue, message, name, settings)
    if key:
        limits = ",".join(filter(None, (limits, partition_limit_text(key))))
    unique = attribution.unique.text if attribution.unique else ""
    if attribution.tenant is None:
        return "", "", "", 1.0, limits, unique
    part = key_part(attribution.tenant)
    service = attribution.key[len("tenant:") + len(part) + 1 :]
    return part, service, attribution.tier or "", attribution.cost, limits, unique


def _partition(queue: str, message: dict[str, Any], name: Any, settings: Settings) -> str:
    """Return the partition key of a message whose header has none.

    Its producer does not have the queue's limit. If this process does not have it either, or if the
    message has no value, the key is "". Such tasks share one partition.
    """
    policy = settings.queues.get(queue)
    if policy is None or not policy.partitioned:
        return ""
    task_name = name if isinstance(name, str) else ""
    args, kwargs = ((), {}) if policy.by_args is None else _arguments(message)
    try:
        return partition_of(policy, queue, task_name, None, args, kwargs)
    except KeyMissing:
        return ""


def _arguments(message: dict[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a message in JSON; none for another content type."""
    body: Any = message.get("body")
    try:
        if message["properties"].get("body_encoding") == "base64":
            body = b64decode(body)
        args, kwargs, _ = _loaded(body)
    except (ValueError, TypeError, RecursionError):
        return (), {}
    return (args, kwargs) if isinstance(args, list) and isinstance(kwargs, dict) else ((), {})


def _loaded(body: Any) -> Any:
    """Return a body with values such as UUIDs, as the producer had them, if these are readable."""
    try:
        return loads(body)
    except Exception:  # noqa: BLE001 - a user's type may raise anything
        return json.loads(body)
