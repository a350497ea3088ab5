"""What one worker runs of a queue, or of one of its partitions: ``gate_here.lua`` in memory.

A lease names its worker, so the leases of a key say it all. Redis cannot count them so at every
question: it keeps those of each worker beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from celery_fairness.config.limit_spec import OF_QUEUE, Limit
from celery_fairness.limiter.types import Lease
from celery_fairness.scheduling.queues import QueueLimits


def crowded_here(
    queues: QueueLimits,
    leases: Mapping[str, Mapping[str, int]],
    limits: Iterable[Limit],
    worker: str,
    now: int,
) -> Limit | None:
    """Return what keeps a worker from running one more; None where nothing does.

    Args:
        queues: Their numbers.
        leases: When each ends, by key and id.
        limits: Of the task.
        worker: Whose lease asks; "" is one that does not say.
        now: The logical time.

    Returns:
        A limit with the worker behind its key, by which the tasks that it puts back are paced.
    """
    for limit in limits if worker else ():
        queue = queues.queue_of(limit.key) if limit.of == OF_QUEUE else None
        most = None if queue is None else queues.rows[queue].numbers.local
        held = [id_ for id_, end in leases.get(limit.key, {}).items() if end > now]
        if most is not None and sum(Lease(id_, "").worker == worker for id_ in held) >= most:
            return Limit(f"{limit.key} {worker}", max(1, most), on_limit="reschedule")
    return None
