"""Stamping: makes the ``fairness`` header of a message before it is published.

The first of these sources applies:

1. an explicit header
2. a header or property that the setting ``tenant_header`` names
3. the tenant that the task declares
4. the tenant of the task that is publishing

Without any of them a FairTask becomes a system task, and another task gets no header. If the task
that is publishing has an invalid tenant, so has the message.

``FairTask.apply_async`` makes the header, so that its caller gets the error of an invalid tenant.
Celery's ``before_task_publish`` makes it for messages that do not pass ``apply_async``, such as
those of ``send_task`` and beat. It completes one that exists already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from celery_fairness.config.settings import Settings
from celery_fairness.config.tiers import Tier
from celery_fairness.errors import (
    FairnessError,
    HeaderInvalid,
    KeyMissing,
    TenantInvalid,
    TenantMissing,
)
from celery_fairness.message.headers import (
    BEAT_HEADER,
    HEADER,
    Header,
    MadeHeader,
    extended,
    parse_header,
    values_of,
)
from celery_fairness.message.partition import partition_of, unnamed_partition
from celery_fairness.message.task_options import LimitSource, TenantSource, service_of, source_of
from celery_fairness.message.tenant_header import carried_header
from celery_fairness.message.unique_option import unique_source_of
from celery_fairness.util.throttled_log import Notices

#: No properties.
EMPTY: Mapping[str, Any] = MappingProxyType({})
#: Why the header of a task is invalid that would inherit its tenant.
SENDER_INVALID = "the task that sends it has no valid tenant"


class TierLookup(Protocol):
    """Returns tiers. :class:`~celery_fairness.limiter.tier_cache.TierCache` implements it."""

    def tiers(self) -> Mapping[str, Tier]:
        """Return the tiers in force by name."""

    def tier_of(self, tenant: str, header: str | None = None) -> str:
        """Return the name of a tenant's tier. ``header`` is the tier in the message's header."""

    def look(self) -> None:
        """Read changes of tiers from Redis if the last look is older than a second."""


class Message(NamedTuple):
    """A message that is about to be published.

    Attributes:
        name: The task's name.
        task: The task. None if this process has not registered it.
        headers: The headers so far.
        args: Positional arguments.
        kwargs: Keyword arguments.
        parent: The headers of the task that is publishing. None outside a task.
        properties: Its other properties so far.
    """

    name: str
    task: Any
    headers: Mapping[str, Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    parent: Mapping[str, Any] | None = None
    properties: Mapping[str, Any] = EMPTY


class Stamp:
    """Makes the header of a message."""

    def __init__(self, settings: Settings, tier_cache: TierLookup, notices: Notices) -> None:
        self._settings = settings
        self._tier_cache = tier_cache
        self._notices = notices

    def header(self, message: Message, *, strict: bool = False, always: bool = False) -> Any:
        """Return the ``fairness`` header; None if the message needs none.

        Args:
            message: The message.
            strict: Raise if the tenant is invalid or missing. Otherwise such a message is logged,
                and its tenant is ``_invalid``.
            always: Return the header of a system task instead of None.

        Raises:
            TenantInvalid: With ``strict``, the declared tenant is invalid.
            TenantMissing: With ``strict`` and ``no_tenant="error"``, there is no tenant.
        """
        name, task, headers, args, kwargs, parent, properties = message
        given = headers.get(HEADER)
        if name.startswith("celery."):
            return given
        if given is not None:
            return self.completed(name, given)
        is_fair = hasattr(task, "tenant_source")
        source: TenantSource | None = task.tenant_source if is_fair else None
        scheduled = self.is_scheduled(task, headers)
        common: dict[str, Any] = {"service": service_of(task), "scheduled": scheduled}
        names = self._settings.tenant_header
        if made := carried_header(headers, properties, names, **common):
            return self.completed(name, made)
        tenant: str | None = None
        if source is not None:
            try:
                tenant = source.read(args, kwargs)
            except TenantInvalid as error:
                if strict:
                    raise
                self._notices.warning(f"tenant:{name}", "%s", error)
                return MadeHeader.of(Header(invalid=error.problem[:200], **common))
        if tenant is None and parent is not None and HEADER in parent:
            sender = _header_in(parent[HEADER])
            tenant = sender.tenant
            if tenant is None and sender.invalid:
                return MadeHeader.of(Header(invalid=SENDER_INVALID, **common))
        if tenant is None:
            if not (is_fair or always):
                return None
            if is_fair and strict and self._settings.no_tenant == "error" and not scheduled:
                raise TenantMissing(name)
            return MadeHeader.of(Header(**common))
        self._tier_cache.look()
        tier = self._tier_cache.tier_of(tenant)
        return MadeHeader.of(Header(tenant, tier, **common))

    def of_message(self, message: Message, queue: str | None, called: Any) -> Any:
        """Return the header of a message that is about to be published, with its limits.

        No caller could handle an error here. So it is logged, the message's tenant is
        ``_invalid``, and the message keeps its valid limits.

        Args:
            message: The message. A header that has limits already is only completed.
            queue: The message's queue. None if it is not known.
            called: The option ``limits`` of the call, if no ``apply_async`` has read it yet.
        """
        name, task, _, args, kwargs, *_ = message
        if called is not None and name.startswith("celery."):
            self._notices.error(
                f"limits:{name}",
                "limits of task %s are not enforced, it is Celery's own: set them on the tasks "
                "that it runs or sends",
                name,
            )
            called = None
        policy = self._settings.queues.get(queue) if queue is not None else None
        partitioned = policy is not None and policy.partitioned
        always = called is not None or partitioned
        header = self.header(message, always=always)
        source, body = source_of(task), getattr(task, "run", None)
        if source is None and called is not None:
            source = LimitSource(name, (), body)
        if header is None or name.startswith("celery."):
            return header
        problems: list[FairnessError] = []
        if source is not None:
            header = source.of(called, header, args, kwargs, lambda: queue, problems.append)
        unique = unique_source_of(task)
        if unique is not None:
            header = unique.of(
                header, args, kwargs, lambda: queue, problems.append, has_caller=False
            )
        if policy is not None and policy.partitioned and isinstance(header, Mapping):
            try:
                key = partition_of(policy, str(queue), name, body, args, kwargs)
            except KeyMissing as error:
                problems.append(error)
                key = unnamed_partition(str(queue))
            header = extended(header, partition={"queue": queue, "key": key})
        if not problems:
            return header
        text = "; ".join(map(str, problems))
        self._notices.warning(f"limits:{name}", "%s", text)
        before = header.get("invalid")
        text = before if isinstance(before, str) and before else text
        return {**header, "invalid": text[:200]}

    def is_scheduled(self, task: Any, headers: Mapping[str, Any]) -> bool:
        """Return whether a message is scheduled: beat sent it, or its task declares it."""
        declared = hasattr(task, "tenant_source") and task.scheduled
        return bool(declared or self.by_beat(headers))

    def by_beat(self, headers: Mapping[str, Any]) -> bool:
        """Return whether beat sent a message."""
        return bool(headers.get(BEAT_HEADER))

    def completed(self, name: str, given: Any) -> Any:
        """Return an explicit header with the tenant's current tier.

        Args:
            name: The task's name, for the log.
            given: The header. If it is invalid, it is logged and returned.
        """
        try:
            header = values_of(given)
        except HeaderInvalid as error:
            self._notices.warning(f"header:{name}", "task %s: %s", name, error)
            return given
        if header.tenant is None:
            return given
        self._tier_cache.look()
        tier = self._tier_cache.tier_of(header.tenant, header.tier)
        if tier == header.tier and isinstance(given, MadeHeader):
            return given
        return MadeHeader({**given, "tier": tier}, replace(header, tier=tier))


def _header_in(value: Any) -> Header:
    try:
        return parse_header(value)
    except HeaderInvalid as error:
        return Header(invalid=str(error))
