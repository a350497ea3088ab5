"""A purge of a queue ends the tasks of the queue that are parked, too.

``celery purge``, ``app.control.purge`` and ``celery worker --purge`` all ask a channel of the app's
connection to purge a queue. Parked tasks have left the broker: nothing else would tell Redis of it.
"""

from __future__ import annotations

from typing import Any

from celery_fairness.wiring import find


def purge_parked_too(app: Any) -> None:
    """Make the app's connections end parked tasks of a queue before they purge it.

    Args:
        app: The Celery app; its broker does not claim fairly.
    """
    connection: Any = app.amqp.Connection
    if getattr(connection, "purges_parked", False):
        return

    class PurgingConnection(connection):  # type: ignore[misc]  # whatever the app has
        """A connection whose default channel ends parked tasks of a queue that it purges."""

        purges_parked = True

        @property
        def default_channel(self) -> Any:
            """As kombu's."""
            channel = super().default_channel
            if "queue_purge" not in vars(channel):
                channel.queue_purge = _purging(app, channel.queue_purge)
            return channel

    app.amqp.Connection = PurgingConnection


def _purging(app: Any, purge: Any) -> Any:
    def queue_purge(queue: str = "", *args: Any, **options: Any) -> Any:
        fairness = find(app)
        # Before: what is published in between lies in the queue.
        parked = 0 if fairness is None else fairness.cancel_parked(queue)
        return parked + (purge(queue, *args, **options) or 0)

    return queue_purge
