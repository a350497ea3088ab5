"""Repairs the changes of shared keys in all partitions, once a second.

:mod:`celery_fairness.control.key.shared_changes` describes the repair. It runs in each worker, so a
change is whole within a second while one worker lives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from celery_fairness.util.throttled_log import Notices
from celery_fairness.worker.looking_thread import LookingThread

logger = logging.getLogger("celery_fairness")


class Repairer(LookingThread):
    """Repairs partitions during the life of a worker.

    ``repair`` makes all partitions agree with the home.
    """

    def __init__(self, repair: Callable[[], int]) -> None:
        super().__init__("repairer")
        self._repair = repair
        self._notices = Notices(logger)

    def _look(self) -> None:
        try:
            self._repair()
        except Exception as error:  # noqa: BLE001 - Redis does not answer, and will later
            self._notices.error(
                "repair",
                "partitions could not be compared for limits of queues, pauses and overrides: %s",
                error or type(error).__name__,
            )
