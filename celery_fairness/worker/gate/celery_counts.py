"""Gives back to Celery's own limits what an attempt without a body has counted.

Celery counts an attempt under ``rate_limit`` when its main process gives it to the pool, and under
``worker_max_tasks_per_child`` when a process of the pool has ended it. A gate rejects it between
the two. Without this module, rejected tasks would use up the tokens and processes of other tasks.

Weakness: Celery has no interface for either count. :func:`give_token_back` uses public functions of
kombu's bucket and one private method of the consumer. :class:`Bodies` replaces a number that
billiard's worker compares. If one of them is missing, Celery counts as it does without this module.
"""

from __future__ import annotations

from typing import Any

from billiard.process import current_process
from celery.concurrency.thread import TaskPool as ThreadPool


class Bodies(int):
    """How many bodies a process of the pool runs before another process replaces it.

    billiard compares the number of ended jobs with this number. Python tries the subclass first, so
    :meth:`__gt__` is ``jobs < bodies``.
    """

    #: Jobs of this process that have ended without a body.
    not_begun = 0

    def __gt__(self, jobs: int) -> bool:
        return int(self) > jobs - self.not_begun

    def __eq__(self, jobs: object) -> bool:
        return isinstance(jobs, int) and int(self) == int(jobs) - self.not_begun

    __hash__ = int.__hash__


class PoolChild:
    """Counts the bodies that this process of a pool has run."""

    def __init__(self) -> None:
        self._bodies: Bodies | None = None

    def begin(self) -> None:
        """Count bodies instead of jobs from now on, in a process that has run none."""
        worker: Any = getattr(current_process(), "_target", None)
        most = getattr(worker, "maxtasks", None)
        if isinstance(most, int):
            self._bodies = worker.maxtasks = Bodies(most)

    def not_begun(self) -> None:
        """Count a job that ends without a body."""
        if self._bodies is not None:
            self._bodies.not_begun += 1


def give_token_back(consumer: Any, task_name: str) -> None:
    """Give back the token of Celery's ``rate_limit`` that an attempt of a task has taken."""
    bucket = consumer.task_buckets[task_name]
    if bucket is None or consumer.disable_rate_limits:
        return

    def give() -> None:
        missing = bucket.expected_time(bucket.capacity) * bucket.fill_rate
        bucket.can_consume(-min(1.0, missing))
        # Tasks that wait for a token are else looked at when the next one would have come.
        consumer._schedule_bucket_request(bucket)  # noqa: SLF001 - nothing else wakes them

    if consumer.hub is None or isinstance(consumer.pool, ThreadPool):
        # A thread cannot wake the loop.
        give()
    else:
        # Not inside this call, because a solo pool would run the next task within it.
        consumer.hub.call_soon(give)
