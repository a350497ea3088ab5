"""Routing by tier: a router for ``task_routes``.

The router routes only tasks of a service. The user's own routes come after it and route all other
tasks. Celery prefers a queue that the caller gives. The router never raises: if anything fails, the
task goes to the default queue of its service.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from celery_fairness.config.queue_policy import queue_of_route
from celery_fairness.config.tiers import queues_of, select_queue
from celery_fairness.errors import HeaderInvalid
from celery_fairness.message.headers import HEADER, Header, values_of
from celery_fairness.message.stamp import Message
from celery_fairness.message.task_options import service_of
from celery_fairness.wiring import publishing

if TYPE_CHECKING:
    from celery_fairness.wiring import Parts


class TierRouter:
    """Chooses one of the three queues of a task's service.

    Args:
        parts: The parts of the app. They are used at the first task, not before.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def __repr__(self) -> str:
        return "<TierRouter>"

    def __call__(
        self,
        name: str,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any],
        task: Any = None,
        **_: Any,
    ) -> dict[str, str] | None:
        """Return ``{"queue": …}``, or None for a task without a service. Record who publishes."""
        publishing.set(self._parts)
        if task is None:
            # send_task does not finalize the app, so it does not find a task that is not yet made.
            task = self._parts.app.tasks.get(name)
        stamp, service = self._parts.stamp, service_of(task)
        try:
            headers = options.get("headers") or {}
            if service is None and HEADER not in headers:
                return None
            wire = stamp.header(Message(name, task, headers, args or (), kwargs or {}))
            queue = self._queue(service, wire, stamp.is_scheduled(task, headers))
        except Exception as error:  # noqa: BLE001 - a producer must not fail here
            self._log(name, error)
            queue = queues_of(service)[1] if isinstance(service, str) else None
        return None if queue is None else {"queue": queue}

    def again(self, task: Any, current: str | None, headers: Mapping[str, Any]) -> str | None:
        """Return the new queue of a message that is sent again; None if it keeps its queue.

        Only a message in one of its service's three queues moves. A user chose any other queue.
        """
        stamp, service = self._parts.stamp, service_of(task)
        current = queue_of_route(current or "")
        try:
            wire = headers.get(HEADER)
            service = service or (values_of(wire).service if wire is not None else None)
            if service is None or current not in queues_of(service):
                return None
            if wire is not None:
                wire = stamp.header(Message(task.name, task, headers, (), {}))
            return self._queue(service, wire, stamp.is_scheduled(task, headers))
        except Exception as error:  # noqa: BLE001 - a producer must not fail here
            self._log(task.name, error)
            return None

    def _queue(self, service: str | None, wire: Any, scheduled: bool) -> str | None:
        try:
            header = values_of(wire) if wire is not None else Header()
        except HeaderInvalid:
            header = Header()
        service = service or header.service
        if service is None:
            return None
        tier = header.tier if header.tenant is not None else None
        tiers = self._parts.tier_cache.tiers()
        return select_queue(service, tier, scheduled or header.scheduled, tiers)

    def _log(self, name: str, error: Exception) -> None:
        self._parts.notices.error(f"router:{name}", "routing of task %s failed: %r", name, error)
