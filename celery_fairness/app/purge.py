"""A purge of a queue also cancels the parked tasks of that queue.

``celery purge``, ``app.control.purge`` and ``celery worker --purge`` all purge a queue through a
channel of the app's connection. Parked tasks have left the broker, so the channel must cancel them
in Redis.
"""

from __future__ import annotations

from typing import Any

from celery_fairness.control.task.cancellation import purge_queue
from celery_fairness.wiring import find


def purge_parked_too(app: Any) -> None:
    """Make the app's connections cancel the parked tasks of a queue before they purge it.

    Args:
        app: A Celery app whose broker does not claim fairly.
    """
    connection: Any = app.amqp.Connection
    if getattr(connection, "purges_parked", False):
        return

    class PurgingConnection(connection):
        """A connection whose default channel cancels parked tasks when it purges a queue."""

        purges_parked = True

        @property
        def default_channel(self) -> Any:
            """The channel of kombu, with another ``queue_purge``."""
            channel = super().default_channel
            if "queue_purge" not in vars(channel):
                channel.queue_purge = _purging(app, channel.queue_purge)
            return channel

    app.amqp.Connection = PurgingConnection


def _purging(app: Any, purge: Any) -> Any:
    def queue_purge(queue: str = "", *args: Any, **options: Any) -> Any:
        fairness = find(app)
        # Before the purge: a task that is promoted in between is then in the queue.
        parked = 0 if fairness is None else purge_queue(fairness.installation, queue)
        return parked + (purge(queue, *args, **options) or 0)

    return queue_purge
