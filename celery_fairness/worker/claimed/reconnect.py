r"""A worker that has lost its broker connects again, and quickly.

Celery tries again after 2, 6, 12 and 20 seconds. A failover of Sentinel takes about two seconds, so
a worker that misses the new master by a moment would stand still for four or eight seconds more.

    lost --every half second--> connected
      \--after QUICK_SECONDS--> Celery's own tries, with a log line for each

If the connection is lost again while the consumer starts, as in mingle, kombu raises its
``OperationalError``. Celery does not count it among the errors of a connection, and the worker
would end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from celery.worker.state import maybe_shutdown
from kombu.exceptions import OperationalError

#: How long the quick tries go on, in seconds.
QUICK_SECONDS = 10.0
#: Pause after a quick try, in seconds.
PAUSE_SECONDS = 0.5


def reconnect_quickly(consumer: Any, had_connection: Callable[[], bool]) -> None:
    """Make a consumer try often before it tries as Celery does.

    Args:
        consumer: Celery's consumer.
        had_connection: Returns whether the consumer was connected before. A worker that starts
            tries as Celery does, because a person waits for the reason.
    """
    as_celery_does = consumer.ensure_connected
    start = consumer.blueprint.start
    gave_up: OperationalError | None = None

    def ensure_connected(connection: Any) -> Any:
        if had_connection() and consumer.app.conf.broker_connection_retry:
            with contextlib.suppress(OperationalError):
                connection.ensure_connection(
                    interval_start=PAUSE_SECONDS,
                    interval_step=0,
                    interval_max=PAUSE_SECONDS,
                    callback=maybe_shutdown,
                    timeout=QUICK_SECONDS,
                )
        try:
            return as_celery_does(connection)
        except OperationalError as error:
            nonlocal gave_up
            gave_up = error
            raise

    def start_or_lose(parent: Any) -> None:
        try:
            start(parent)
        except OperationalError as error:
            if error is gave_up:
                # The tries that the user allows are used up.
                raise
            raise ConnectionError(str(error)) from error

    consumer.ensure_connected = ensure_connected
    consumer.blueprint.start = start_or_lose
