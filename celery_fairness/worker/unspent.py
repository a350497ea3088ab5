"""What Celery's own limits have counted for an attempt whose body has not begun, given back.

Celery counts an attempt under ``rate_limit`` when its main process gives it to the pool, and under
``worker_max_tasks_per_child`` when a process of the pool has ended it. A gate rejects it between
the two: without this, tasks that wait for their tenant's limit would use up the tokens, and the
processes, of tasks that may start.

Weakness: neither count has an interface of Celery's. :func:`give_token_back` uses the public
functions of kombu's bucket and one private method of the consumer; :class:`Bodies` takes the place
of a number that billiard's worker compares. Where one of them is missing, Celery counts as ever.
"""

from __future__ import annotations

from typing import Any

from billiard.process import current_process
from celery.concurrency.thread import TaskPool as ThreadPool


class Bodies(int):
    """How many bodies a process of the pool runs before another takes its place.

    billiard compares the number of jobs that the process has ended with this number. Python asks
    the subclass first: :meth:`__gt__` is ``jobs < bodies``.
    """

    #: Jobs of this process that have ended without a body.
    not_begun = 0

    def __gt__(self, jobs: int) -> bool:
        return int(self) > jobs - self.not_begun

    def __eq__(self, jobs: object) -> bool:
        return isinstance(jobs, int) and int(self) == int(jobs) - self.not_begun

    __hash__ = int.__hash__


class PoolChild:
    """What this process of a pool has run."""

    def __init__(self) -> None:
        self._bodies: Bodies | None = None

    def begin(self) -> None:
        """Count bodies from now on, in the place of jobs; for a process that has run none."""
        worker: Any = getattr(current_process(), "_target", None)
        most = getattr(worker, "maxtasks", None)
        if isinstance(most, int):
            self._bodies = worker.maxtasks = Bodies(most)

    def not_begun(self) -> None:
        """Say that a job ends whose body has not begun."""
        if self._bodies is not None:
            self._bodies.not_begun += 1


def give_token_back(consumer: Any, task_name: str) -> None:
    """Give back the token of Celery's ``rate_limit`` that an attempt has taken.

    Args:
        consumer: Of the worker.
        task_name: Of the attempt.
    """
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
        # Not in this call: a solo pool runs the next task within it.
        consumer.hub.call_soon(give)
