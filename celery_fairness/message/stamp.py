"""Stamping: the ``fairness`` header of a message that is about to be published.

An explicit header wins; else the task's declared tenant; else the tenant of the task that is
publishing; else a FairTask is a system task and another task gets no header. The stamp is made in
``FairTask.apply_async``, where a wrong tenant can still be an error of the caller, and again in
Celery's ``before_task_publish``, which sees what ``apply_async`` does not: ``send_task``, beat,
canvas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery_fairness.config.settings import Settings
from celery_fairness.errors import (
    FairnessError,
    HeaderInvalid,
    KeyMissing,
    TenantError,
    TenantInvalid,
    TenantMissing,
)
from celery_fairness.message.headers import HEADER, Header, parse_header
from celery_fairness.message.partition import nobodys, partition_of
from celery_fairness.message.task_options import LimitSource, TenantSource, service_of, source_of
from celery_fairness.message.tier_lookup import TierLookup
from celery_fairness.util.throttled_log import Notices

#: Set by Celery's beat on everything it sends.
BEAT_HEADER = "celery_beat_task"


class Stamp:
    """Makes the header of a message.

    Args:
        settings: What a task without a tenant is.
        directory: Tiers of tenants.
        notices: Where tenants that cannot be read are logged.
    """

    def __init__(self, settings: Settings, directory: TierLookup, notices: Notices) -> None:
        self._settings = settings
        self._directory = directory
        self._notices = notices

    def header(
        self,
        name: str,
        task: Any,
        headers: Mapping[str, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        parent: Mapping[str, Any] | None = None,
        *,
        strict: bool = False,
        always: bool = False,
    ) -> Any:
        """Return the ``fairness`` header, None where the message needs none.

        Args:
            name: The task's name.
            task: The task where this process knows it, else None.
            headers: The headers given so far.
            args: The message's positional arguments.
            kwargs: Its keyword arguments.
            parent: Headers of the task that is publishing, None outside a task.
            strict: Raise where the tenant is wrong or missing; else such a message is stamped as
                invalid, charged to a tenant of its own, and logged.
            always: A message that would need none is a system task with a header.

        Raises:
            TenantInvalid: Strict, and the declared tenant cannot be one.
            TenantMissing: Strict, and there is none although ``no_tenant="error"``.
        """
        if name.startswith("celery."):
            return headers.get(HEADER)
        given = headers.get(HEADER)
        if given is not None:
            return self._completed(name, given)
        is_fair = hasattr(task, "tenant_source")
        source: TenantSource | None = task.tenant_source if is_fair else None
        scheduled = self.is_scheduled(task, headers)
        header = Header(service=service_of(task), scheduled=scheduled).to_wire()
        tenant: str | None = None
        if source is not None:
            try:
                tenant = source.read(args, kwargs)
            except TenantInvalid as error:
                if strict:
                    raise
                self._notices.warning(f"tenant:{name}", "%s", error)
                return {**header, "invalid": error.problem[:200]}
        if tenant is None and parent is not None and HEADER in parent:
            tenant = self._tenant_in(parent[HEADER])
        if tenant is None:
            if not (is_fair or always):
                return None
            if is_fair and strict and self._settings.no_tenant == "error" and not scheduled:
                raise TenantMissing(name)
            return header
        self._directory.look()
        return {**header, "tenant": tenant, "tier": self._directory.tier_of(tenant)}

    def of_message(
        self,
        name: str,
        task: Any,
        headers: Mapping[str, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        parent: Mapping[str, Any] | None,
        queue: str | None,
        called: Any,
    ) -> Any:
        """Return the header of a message that is about to leave, with its limits.

        Nobody is there to whom an error could be raised: it is logged, the message is charged to a
        tenant of its own, and keeps the limits that can be made.

        Args:
            name: The task's name.
            task: The task where this process knows it, else None.
            headers: The headers so far; one that has limits already is only completed.
            args: The message's positional arguments.
            kwargs: Its keyword arguments.
            parent: Headers of the task that is publishing, None outside a task.
            queue: Where it goes, None where that is not known.
            called: The option ``limits`` of a call that did not read it; None where there is none.
        """
        if called is not None and name.startswith("celery."):
            self._notices.error(
                f"limits:{name}",
                "limits of task %s are not kept, it is Celery's own: set them on the tasks that it "
                "runs or sends",
                name,
            )
            called = None
        policy = self._settings.queues.get(queue) if queue is not None else None
        partitioned = policy is not None and policy.partitioned
        always = called is not None or partitioned
        header = self.header(name, task, headers, args, kwargs, parent, always=always)
        source = source_of(task)
        if source is None and called is not None:
            body = getattr(task, "run", None)
            source = LimitSource(name, (), body)
        if header is None or name.startswith("celery."):
            return header
        problems: list[FairnessError] = []
        if source is not None:
            header = source.of(called, header, args, kwargs, lambda: queue, problems.append)
        if policy is not None and policy.partitioned and isinstance(header, Mapping):
            body = getattr(task, "run", None)
            try:
                key = partition_of(policy, str(queue), name, body, args, kwargs)
            except KeyMissing as error:
                problems.append(error)
                key = nobodys(str(queue))
            header = {**header, "partition": {"queue": queue, "key": key}}
        if not problems:
            return header
        text = "; ".join(map(str, problems))
        self._notices.warning(f"limits:{name}", "%s", text)
        before = header.get("invalid")
        text = before if isinstance(before, str) and before else text
        return {**header, "invalid": text[:200]}

    def is_scheduled(self, task: Any, headers: Mapping[str, Any]) -> bool:
        """Say whether a message is scheduled: sent by beat, or declared so by its task."""
        declared = hasattr(task, "tenant_source") and task.scheduled
        return bool(declared or self.by_beat(headers))

    def by_beat(self, headers: Mapping[str, Any]) -> bool:
        """Say whether a message is sent by beat."""
        return bool(headers.get(BEAT_HEADER))

    def _completed(self, name: str, given: Any) -> Any:
        """Return an explicit header with the tenant's tier as it is known now."""
        try:
            header = parse_header(given)
        except HeaderInvalid as error:
            self._notices.warning(f"header:{name}", "task %s: %s", name, error)
            return given
        if header.tenant is None:
            return given
        self._directory.look()
        return {**given, "tier": self._directory.tier_of(header.tenant, header.tier)}

    def _tenant_in(self, header: Any) -> str | None:
        try:
            return parse_header(header).tenant
        except (HeaderInvalid, TenantError):
            return None
