"""The worker's step that starts and stops what a worker needs of this package.

Celery's signals ``celeryd_init`` and ``worker_ready`` are of the program ``celery worker`` alone. A
step belongs to every worker, also to one that a test starts in a thread, or that is terminated.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from celery_fairness.wiring import find


class WorkerParts(bootsteps.StartStopStep):
    """Starts leases' renewals, promotions, events and the publication of tiers."""

    # The processes of a pool are forked before any thread begins.
    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        fairness = find(worker.app)
        if fairness is not None:
            fairness.on_worker_made()

    def start(self, worker: Any) -> None:
        """Start all; what stops is stopped when the pool has ended, however the worker does."""
        fairness = find(worker.app)
        if fairness is None:
            return
        fairness.on_worker_start(worker)
        blueprint = worker.blueprint
        stopped = blueprint.on_stopped

        def on_stopped() -> None:
            stopped()
            fairness.on_worker_stopped()

        blueprint.on_stopped = on_stopped

    def close(self, worker: Any) -> None:
        """Say that the worker begins to stop."""
        fairness = find(worker.app)
        if fairness is not None:
            fairness.on_worker_stopping()
