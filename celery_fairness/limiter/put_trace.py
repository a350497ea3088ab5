"""``task.put`` at a gate: a producer tells what it gives to a broker that tells nobody.

Whether somebody watches a producer asks with a task that it publishes, at most once a second, and
with each for as long as somebody does. It is told before the broker is given the task, so that no
start is told before its put; a publication that fails then was told all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery_fairness.config.settings import Settings
from celery_fairness.limiter.protocol import Limiter
from celery_fairness.limiter.redis import RedisLimiter, job_text
from celery_fairness.limiter.tier_cache import LOOK_SECONDS, TierCache
from celery_fairness.limiter.types import Job
from celery_fairness.message.attribution import Attribution, attribution_of
from celery_fairness.message.task_options import service_of
from celery_fairness.scheduler import calls
from celery_fairness.util.timestamps import eta_ms


class PutTrace:
    """Tells each task with limits, a tenant's too, while somebody watches.

    Args:
        settings: Who is charged, and which queues have limits.
        directory: Asks Redis, and leaves it alone for a while where it did not answer.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        settings: Settings,
        directory: TierCache,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._clock = clock
        self._watched = False
        self._look_at = 0.0

    def tell(
        self,
        name: str,
        task: Any,
        headers: Mapping[str, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        queue: str | None,
    ) -> None:
        """Tell a task that is about to be published, if somebody watches.

        Args:
            name: The task's name.
            task: The task where this process knows it, else None.
            headers: Of its message, which is stamped.
            args: The message's positional arguments.
            kwargs: Its keyword arguments.
            queue: Where it goes, None where that is not known.
        """
        now = self._clock()
        if not self._watched and now < self._look_at:
            return
        source = getattr(task, "tenant_source", None)
        charge = attribution_of(headers, args, kwargs, source, service_of(task), self._settings)
        if not charge.keys and queue not in self._settings.queues:
            # No gate is asked about it, so its start would not be told either.
            return
        self._look_at = now + LOOK_SECONDS
        job = Job(str(headers.get("id") or ""), name, queue or "")
        start_ms = eta_ms(headers.get("eta"))
        told = self._directory.ask(lambda limiter: _tell(limiter, job, charge, start_ms))
        self._watched = bool(told)


def _tell(limiter: Limiter, job: Job, charge: Attribution, start_ms: int) -> int:
    if not isinstance(limiter, RedisLimiter):
        return 0
    cost = f"{charge.cost:.17g}"
    args = (job_text(job), charge.key, charge.tier or "", cost, start_ms, "")
    return int(limiter.connection.run(calls.TRACE_PUT, limiter.prefix, args))
