"""Repairs the changes of shared keys in all partitions, once a second.

:mod:`celery_fairness.control.key.shared_changes` describes the repair. It runs in each worker, so a
change is whole within a second while one worker lives. It has its own thread, because a partition
that does not answer must not delay the loop or the renewals.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from celery_fairness.util.throttled_log import Notices

logger = logging.getLogger("celery_fairness")

#: How often a worker looks for changes, in seconds.
EVERY_SECONDS = 1.0


class Repairer:
    """Repairs partitions during the life of a worker.

    ``repair`` makes all partitions agree with the home.
    """

    def __init__(self, repair: Callable[[], int]) -> None:
        self._repair = repair
        self._notices = Notices(logger)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="repairer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_SECONDS):
            try:
                self._repair()
            except Exception as error:  # noqa: BLE001 - Redis does not answer, and will later
                self._notices.error(
                    "repair",
                    "pauses and overrides could not be compared in all partitions: %s",
                    error or type(error).__name__,
                )
