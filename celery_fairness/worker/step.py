"""The consumer's step that ties a worker to the book of its claims.

It puts the request mixin on every task, whatever its base class, says how many places the pool has,
and sees that nothing is claimed, and nothing that ended stays untold, once the worker stops.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from celery_fairness.worker.claimed import claimed_request


class ClaimStep(bootsteps.StartStopStep):
    """Part of the consumer of a worker whose broker claims fairly."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        update = consumer.update_strategies

        def update_strategies() -> Any:
            for task in consumer.app.tasks.values():
                task.Request = claimed_request(task.Request)
            return update()

        # Celery calls it at the start, and again when the pool is restarted.
        consumer.update_strategies = update_strategies

        self._home: Any = None

    def start(self, consumer: Any) -> None:
        """Claim as many tasks as the pool has places."""
        self._home = getattr(consumer.connection.default_channel, "home", None)
        if self._home is not None:
            self._home.start(lambda: consumer.pool.num_processes)

    def stop(self, _consumer: Any) -> None:
        """Claim no more."""
        if self._home is not None:
            self._home.stop()

    shutdown = stop
