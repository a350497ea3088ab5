"""The worker's step that starts and stops this package's parts.

Celery sends ``celeryd_init`` and ``worker_ready`` only for the program ``celery worker``. A step
runs in every worker, also in one that a test starts in a thread, or that is terminated.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from celery_fairness.wiring import find


class WorkerParts(bootsteps.StartStopStep):
    """Starts and stops the threads of this package, and publishes the tiers."""

    # A pool must fork its processes before any thread starts.
    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        fairness = find(worker.app)
        if fairness is not None:
            fairness.on_worker_made()

    def start(self, worker: Any) -> None:
        """Start all parts; they stop after the pool has ended, for every kind of stop."""
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
        """Mark that the worker begins to stop."""
        fairness = find(worker.app)
        if fairness is not None:
            fairness.on_worker_stopping()
