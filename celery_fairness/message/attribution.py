"""Who a message is charged to: one rule for workers and producers.

What counts is the message's header. Only where there is none is the tenant read from the arguments,
so that a producer without this package cannot slip past the limit. A header or tenant that cannot
be read is charged to the tenant ``_invalid``, under all limits that can be read, in the partition
of its queue that can be read: never bypassed, never dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from celery_fairness.config.policy import Limit
from celery_fairness.config.tenants import INVALID, NO_SERVICE, NONE, tier_key
from celery_fairness.errors import HeaderInvalid, TenantInvalid
from celery_fairness.message.headers import (
    HEADER,
    Header,
    misspelling,
    parse_header,
    readable_partition,
)
from celery_fairness.message.limits import readable_limits, word_of
from celery_fairness.message.task_options import TenantSource


@dataclass(frozen=True, slots=True)
class Attribution:
    """Who is charged.

    Attributes:
        tenant: None is a system task: no tier limit.
        key: Of the tier limit; "" for a system task.
        tier: What the producer knew, None where it knew nothing.
        problem: Why the tenant could not be read, "" where it could.
        cost: Units that the task is charged.
        limits: Those beside the tier's; of a header that could not be read, those that can be.
        partition: What the header says of that (``Header.partition``).
        misspelling: A name in the headers that is ignored, and what it may be meant for; "" where
            there is none.
        of_queue: On the gate path, the limits of the task's queue as words.
    """

    tenant: str | None
    key: str = ""
    tier: str | None = None
    problem: str = ""
    cost: float = 1.0
    limits: tuple[Limit, ...] = ()
    partition: tuple[str, str] | None = None
    misspelling: str = ""
    of_queue: str = ""

    @property
    def words(self) -> str:
        """All limits beside the tier's, as the scheduler is told of them."""
        return ",".join(filter(None, (word_of(self.limits), self.of_queue)))

    @property
    def keys(self) -> str:
        """The keys of all its limits with commas, that of the tier first; "" where it has none."""
        of_queue = (word.partition("|")[0] for word in self.of_queue.split(","))
        keys = [self.key, *(limit.key for limit in self.limits), *of_queue]
        return ",".join(key for key in dict.fromkeys(keys) if key)


class Scopes(Protocol):
    """The settings that say who is charged."""

    @property
    def tier_scope(self) -> str:
        """Whether each service counts apart."""

    @property
    def no_tenant(self) -> str:
        """What a task without a tenant is."""


def attribution_of(
    headers: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    source: TenantSource | None,
    service: str | None,
    settings: Scopes,
    problem: str = "",
) -> Attribution:
    """Return who is charged for a message that arrived.

    Args:
        headers: The message's headers.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        source: Where the task declares its tenant, None where it does not.
        service: The task's service, for messages without a header.
        settings: Scope of the tier limit, and what a task without a tenant is.
        problem: Why something else of the message cannot be told.
    """
    header = Header()
    wrong_name = misspelling(headers)
    try:
        if HEADER in headers:
            header = parse_header(headers[HEADER])
            problem = header.invalid or problem
        elif source is not None:
            header = Header(source.read(args, kwargs), service=service)
    except HeaderInvalid as error:
        problem = str(error)
        value = headers[HEADER]
        header = Header(limits=readable_limits(value), partition=readable_partition(value))
    except TenantInvalid as error:
        problem = str(error)
    tenant: str | None = INVALID if problem else header.tenant
    if tenant is None and settings.no_tenant != "bypass":
        tenant = NONE
    if tenant is None:
        return Attribution(
            None, limits=header.limits, partition=header.partition, misspelling=wrong_name
        )
    scope = None
    if settings.tier_scope == "service":
        scope = header.service or service or NO_SERVICE
    cost = 1.0 if problem else float(header.cost)
    key = tier_key(tenant, scope)
    return Attribution(
        tenant, key, header.tier, problem, cost, header.limits, header.partition, wrong_name
    )
