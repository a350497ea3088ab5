"""A message of kombu as a waiting task, and a claimed task as a message again.

Only what the scheduler needs is read: who is charged, the kind, the priority, the time before which
the task must not start, and that from which it must not any more. Messages without the ``fairness``
header are system tasks. A header that cannot be read charges the task to ``_invalid``, under the
limits that can be read: it is never bypassed and never dropped.
"""

from __future__ import annotations

import hashlib
import json
import logging
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from kombu.utils.json import JSONEncoder, object_hook

from celery_fairness.config.tenants import Reserved, key_part
from celery_fairness.errors import KeyMissing
from celery_fairness.message.attribution import attribution_of
from celery_fairness.message.headers import was_accepted
from celery_fairness.message.limits import limits_text
from celery_fairness.message.partition import partition_limit_text, partition_of
from celery_fairness.scheduler.types import Claimed, Waiting
from celery_fairness.transport.options import DispatchOptions
from celery_fairness.util.throttled_log import Notices, log_misspelling
from celery_fairness.util.timestamps import eta_ms, expires_ms

_notices = Notices(logging.getLogger("celery_fairness"))

#: Where the time that a task waited for is kept, once it has waited in Redis.
ETA_HEADER = "fairness_eta"
HIGHEST_PRIORITY = 9
#: What the names of Celery's own tasks begin with.
OWN = "celery."

# As kombu's dumps() and loads(), which make an encoder and a decoder for each message and call the
# hook for each object.
_encode = JSONEncoder().encode
_decode_plain = json.JSONDecoder().decode
_decode_typed = json.JSONDecoder(object_hook=object_hook).decode


def waiting_of(queue: str, message: dict[str, Any], options: DispatchOptions) -> Waiting:
    """Return what the scheduler is told of ``message``, as kombu is about to send it."""
    headers = message.get("headers")
    headers = headers if isinstance(headers, dict) else {}
    properties = message["properties"]
    tenant, service, tier, cost, limits = _charged(queue, message, headers, options)
    tag, is_new = properties["delivery_tag"], not _is_accepted(headers)
    if properties["delivery_info"]["exchange"]:
        # An exchange puts one message into several queues: each is a task of its own.
        tag += "." + hashlib.sha256(queue.encode()).hexdigest()[:16]
    return Waiting(
        queue=queue,
        tag=tag,
        tenant=tenant,
        service=service,
        tier=tier,
        rank=_rank(properties.get("priority"), options),
        cost=cost,
        eta_ms=eta_ms(headers.get("eta")),
        message=_encode(message),
        kind=kind_of(headers),
        limits=limits,
        expires_ms=expires_ms(headers.get("expires")),
        bounds=options.bounds(queue, tier) if is_new else None,
        is_new=is_new,
    )


def message_of(task: Claimed) -> dict[str, Any]:
    """Return the message of a claimed task, as kombu delivers it.

    Its delivery tag is the lease's name, which belongs to this attempt alone.
    """
    text = task.message
    message: dict[str, Any] = (_decode_typed if "__type__" in text else _decode_plain)(text)
    properties = message["properties"]
    properties["delivery_tag"] = task.lease
    headers = message.get("headers")
    if isinstance(headers, dict):
        if headers.get("eta"):
            # It has waited; a worker that read it would wait again, holding the slot.
            headers[ETA_HEADER] = headers["eta"]
            headers["eta"] = None
        if task.attempt > 1:
            headers["redelivered"] = True
    if task.attempt > 1:
        properties.setdefault("delivery_info", {})["redelivered"] = True
    return message


def kind_of(headers: Any) -> str:
    """Return the name of a message's task as it is written in keys; "" where no header says it.

    Messages of task protocol 1 say it in the body alone.
    """
    name = headers.get("task") if isinstance(headers, dict) else None
    try:
        return key_part(name) if isinstance(name, str) and name else ""
    except UnicodeEncodeError:
        return ""


def _is_accepted(headers: dict[str, Any]) -> bool:
    """Say whether a message belongs to what was accepted before: refusing it would lose that.

    It is a retry, a task that another has put in its own place, what Celery sends when a task has
    ended, or one of Celery's own tasks.
    """
    name = headers.get("task")
    return was_accepted(headers) or (isinstance(name, str) and name.startswith(OWN))


def _charged(
    queue: str, message: dict[str, Any], headers: dict[str, Any], options: DispatchOptions
) -> tuple[str, str, str, float, str]:
    """Return tenant and service as they stand in keys, tier, cost, and limits as one word."""
    name = headers.get("task")
    if isinstance(name, str) and name.startswith(OWN):
        return "", "", "", 1.0, ""
    charge = attribution_of(headers, (), {}, None, None, options)
    if charge.misspelling:
        log_misspelling(_notices, name, charge.misspelling)
    if charge.problem:
        _notices.error(
            f"invalid:{name}",
            "task %s is charged to the tenant _invalid: %s",
            name,
            charge.problem,
        )
    limits = limits_text(charge.limits) if charge.limits else ""
    of_queue, key = charge.partition or ("", "")
    if of_queue != queue:
        key = _partition(queue, message, name, options)
    if key:
        limits = ",".join(filter(None, (limits, partition_limit_text(key))))
    if charge.tenant is None:
        return "", "", "", 1.0, limits
    part = charge.tenant if isinstance(charge.tenant, Reserved) else key_part(charge.tenant)
    service = charge.key[len("tenant:") + len(part) + 1 :]
    return part, service, charge.tier or "", charge.cost, limits


def _partition(queue: str, message: dict[str, Any], name: Any, options: DispatchOptions) -> str:
    """Return the key of a message's partition, which its header does not say.

    Its producer does not know the queue's limit. Where this process does not know either, or the
    message has no value, it is "": the task is in the partition of tasks that say none.
    """
    policy = dict(options.partitions).get(queue)
    if policy is None:
        return ""
    kind = name if isinstance(name, str) else ""
    args, kwargs = ((), {}) if policy.by_args is None else _arguments(message)
    try:
        return partition_of(policy, queue, kind, None, args, kwargs)
    except KeyMissing:
        return ""


def _arguments(message: dict[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a message in JSON; none of any other."""
    body: Any = message.get("body")
    try:
        if message["properties"].get("body_encoding") == "base64":
            body = b64decode(body)
        args, kwargs, _ = json.loads(body)
    except (ValueError, TypeError, RecursionError):
        return (), {}
    return (args, kwargs) if isinstance(args, list) and isinstance(kwargs, dict) else ((), {})


def _rank(priority: Any, options: DispatchOptions) -> int:
    try:
        rank = max(0, min(HIGHEST_PRIORITY, int(priority)))
    except (TypeError, ValueError):
        rank = 0
    return rank if options.priority_order == "high_first" else HIGHEST_PRIORITY - rank
