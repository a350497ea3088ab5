"""Emits ``task.put`` at a gate, because other brokers than ours do not report new tasks.

A producer checks with a task that it publishes whether a trace is on, at most once a second. While
a trace is on, it emits the event with each task. It does so before it publishes, so that no start
precedes its put. If the publish then fails, the event has been emitted anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery_fairness.config.settings import Settings
from celery_fairness.limiter.tier_cache import LOOK_SECONDS, TierCache
from celery_fairness.limiter.types import Job
from celery_fairness.message.attribution import attribution_of
from celery_fairness.util.timestamps import eta_ms


class PutTrace:
    """Emits ``task.put`` of each task with a tenant or a limit, while a trace is on."""

    def __init__(
        self,
        settings: Settings,
        tier_cache: TierCache,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._tier_cache = tier_cache
        self._clock = clock
        self._watched = False
        self._look_at = 0.0

    def emit(
        self,
        name: str,
        task: Any,
        headers: Mapping[str, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        queue: str | None,
    ) -> None:
        """Emit the event of a task that is about to be published, if a trace is on.

        Args:
            name: The task's name.
            task: The task. None if this process has not registered it.
            headers: The headers of its message, which is stamped.
            args: The message's positional arguments.
            kwargs: Its keyword arguments.
            queue: Its queue. None if it is not known.
        """
        now = self._clock()
        if not self._watched and now < self._look_at:
            return
        attribution = attribution_of(headers, args, kwargs, task, self._settings)
        if not attribution.keys and queue not in self._settings.queues:
            # It passes no gate, so its start would not be reported either.
            return
        self._look_at = now + LOOK_SECONDS
        job = Job(str(headers.get("id") or ""), name, queue or "")
        start_ms = eta_ms(headers.get("eta"))
        watched = self._tier_cache.ask(
            lambda limiter: limiter.trace_put(job, attribution, start_ms)
        )
        self._watched = bool(watched)
