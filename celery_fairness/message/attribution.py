"""The attribution of a message to a tenant: one rule for workers and producers.

A message's header decides. If there is none, the tenant is read from the arguments, so that a
producer without this package cannot bypass the limit. If the header or the tenant is invalid, the
tenant is ``_invalid``. Such a task keeps each limit and the partition that can be read. It is never
bypassed and never dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from celery_fairness.config.limit_spec import Limit, key_with_amounts, write_limits
from celery_fairness.config.settings import Settings
from celery_fairness.config.tenants import INVALID, NO_SERVICE, NONE, tier_key
from celery_fairness.errors import HeaderInvalid, TenantInvalid
from celery_fairness.message.headers import (
    HEADER,
    Header,
    parse_header,
    readable_partition,
)
from celery_fairness.message.limits import readable_limits
from celery_fairness.message.task_options import TenantSource, service_of
from celery_fairness.message.unique import Unique, readable_unique


class Attribution(NamedTuple):
    """A task's tenant and limits.

    Attributes:
        tenant: None for a system task, which has no tier limit.
        key: The key of the tier limit. "" for a system task.
        tier: The tier in the header. None if the header has none.
        problem: Why the header or the tenant is invalid. "" if both are valid.
        cost: The units that the task costs its tenant.
        limits: The limits in the header. If the header is invalid, those that can be read.
        partition: The partition in the header (``Header.partition``).
        of_queue: On the gate path, the limits of the task's queue as text.
        unique: The unique key in the header. None if it has none.
    """

    tenant: str | None
    key: str = ""
    tier: str | None = None
    problem: str = ""
    cost: float = 1.0
    limits: tuple[Limit, ...] = ()
    partition: tuple[str, str] | None = None
    of_queue: str = ""
    unique: Unique | None = None

    @property
    def limits_text(self) -> str:
        """All limits without the tier's, in the scheduler's text form."""
        return ",".join(filter(None, (write_limits(self.limits), self.of_queue)))

    @property
    def keys(self) -> str:
        """The keys of all its limits as a lease has them, the tier's first; "" without limits."""
        if not self.limits and not self.of_queue:
            return self.key
        own = {limit.key: key_with_amounts(limit) for limit in self.limits}
        of_queue = (limit.partition("|")[0] for limit in self.of_queue.split(","))
        keys = [self.key, *own, *of_queue]
        return ",".join(own.get(key, key) for key in dict.fromkeys(keys) if key)


def attribution_of(
    headers: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    task: Any,
    settings: Settings,
    problem: str = "",
) -> Attribution:
    """Return the attribution of a message.

    Args:
        headers: The message's headers.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        task: The task, for messages without a header. None if it is not known.
        settings: The settings that the attribution depends on.
        problem: Why another part of the message is invalid. "" if none is.
    """
    header, service = Header(), service_of(task)
    source: TenantSource | None = getattr(task, "tenant_source", None)
    try:
        if HEADER in headers:
            header = parse_header(headers[HEADER])
            problem = header.invalid or problem
        elif source is not None:
            header = Header(source.read(args, kwargs), service=service)
    except HeaderInvalid as error:
        problem = str(error)
        value = headers[HEADER]
        header = Header(
            limits=readable_limits(value),
            partition=readable_partition(value),
            unique=readable_unique(value),
        )
    except TenantInvalid as error:
        problem = str(error)
    tenant: str | None = INVALID if problem else header.tenant
    if tenant is None and settings.no_tenant != "bypass":
        tenant = NONE
    if tenant is None:
        return Attribution(
            None, limits=header.limits, partition=header.partition, unique=header.unique
        )
    scope = None
    if settings.tier_scope == "service":
        scope = header.service or service or NO_SERVICE
    cost = 1.0 if problem else float(header.cost)
    key = tier_key(tenant, scope)
    return Attribution(
        *(tenant, key, header.tier, problem, cost, header.limits, header.partition),
        unique=header.unique,
    )
