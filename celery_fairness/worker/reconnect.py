r"""Quick tries to connect again after a worker has lost its broker.

Celery tries again after 2, 6, 12 and 20 seconds. A failover of Sentinel takes about two seconds, so
a worker that misses the new master by a moment would stand still for four or eight seconds more.

    lost --every half second--> connected
      \--after QUICK_SECONDS--> Celery's own tries, with a log line for each
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
        return as_celery_does(connection)

    consumer.ensure_connected = ensure_connected
