"""Routing by tier: a router for ``task_routes``.

The router routes only tasks of a service. The user's own routes come after it and route all other
tasks. Celery prefers a queue that the caller gives. The router never raises: if anything fails, the
task goes to the default queue of its service.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery_fairness.config.queue_policy import queue_of_route
from celery_fairness.config.tiers import queues_of, select_queue
from celery_fairness.errors import HeaderInvalid
from celery_fairness.message.headers import HEADER, Header, parse_header
from celery_fairness.message.stamp import Stamp
from celery_fairness.message.task_options import service_of
from celery_fairness.message.tier_lookup import TierLookup
from celery_fairness.util.throttled_log import Notices
from celery_fairness.wiring import publishing


class TierRouter:
    """Chooses one of the three queues of a task's service.

    Args:
        stamp: Makes the headers of messages.
        directory: Returns the tiers in force.
        notices: Logs failures.
    """

    def __init__(self, stamp: Stamp, directory: TierLookup, notices: Notices) -> None:
        self._stamp = stamp
        self._directory = directory
        self._notices = notices

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
        """Return ``{"queue": …}``; None for a task without a service."""
        service = service_of(task)
        try:
            headers = options.get("headers") or {}
            wire = self._stamp.header(name, task, headers, args or (), kwargs or {})
            queue = self._queue(service, wire, self._stamp.is_scheduled(task, headers))
        except Exception as error:  # noqa: BLE001 - a producer must not fail here
            self._notices.error(f"router:{name}", "routing of task %s failed: %r", name, error)
            queue = queues_of(service)[1] if isinstance(service, str) else None
        return None if queue is None else {"queue": queue}

    def again(self, task: Any, current: str | None, headers: Mapping[str, Any]) -> str | None:
        """Return the new queue of a message that is sent again; None if it keeps its queue.

        Only a message in one of its service's three queues moves. A user chose any other queue.
        """
        service = service_of(task)
        current = queue_of_route(current or "")
        try:
            wire = headers.get(HEADER)
            service = service or (parse_header(wire).service if wire is not None else None)
            if service is None or current not in queues_of(service):
                return None
            if wire is not None:
                wire = self._stamp.header(task.name, task, headers, (), {})
            return self._queue(service, wire, self._stamp.is_scheduled(task, headers))
        except Exception as error:  # noqa: BLE001 - a producer must not fail here
            self._notices.error(
                f"router:{task.name}", "routing of task %s failed: %r", task.name, error
            )
            return None

    def _queue(self, service: str | None, wire: Any, scheduled: bool) -> str | None:
        try:
            header = parse_header(wire) if wire is not None else Header()
        except HeaderInvalid:
            header = Header()
        service = service or header.service
        if service is None:
            return None
        tier = header.tier if header.tenant is not None else None
        return select_queue(service, tier, scheduled or header.scheduled, self._directory.tiers())


class LazyRouter:
    """The entry in ``task_routes``. It makes the router at the first task."""

    def __init__(self, fairness: Any) -> None:
        self._fairness = fairness

    def __repr__(self) -> str:
        return "<TierRouter>"

    def is_of(self, fairness: Any) -> bool:
        """Return whether this is the router of ``fairness``."""
        return self._fairness is fairness

    def __call__(self, *args: Any, task: Any = None, **kwargs: Any) -> dict[str, str] | None:
        """Return the route, and record the app that is publishing."""
        publishing.set(self._fairness)
        if task is None and args:
            # send_task does not finalize the app, so it does not find a task that is not yet made.
            task = self._fairness.app.tasks.get(args[0])
        kwargs["task"] = task
        route: dict[str, str] | None = self._fairness.router(*args, **kwargs)
        return route
