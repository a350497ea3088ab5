"""Takes outcomes from Redis and has their results stored.

Invariant: Redis deletes an outcome only after its result is stored. If a worker dies between the
two, the next worker stores the result again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from celery_fairness.scheduler.types import Outcome
from celery_fairness.util.throttled_log import Notices
from celery_fairness.worker.looking_thread import LookingThread
from celery_fairness.worker.result_writer import write

logger = logging.getLogger("celery_fairness")

#: Longest wait of a stopping worker for a result that is being stored, in seconds.
LAST_SECONDS = 2.0


class OutcomeCollector(LookingThread):
    """Takes outcomes and stores their results during the life of a worker.

    ``next_outcome`` deletes the outcome that was stored, and returns the next one.
    """

    def __init__(self, consumer: Any, next_outcome: Callable[[str], Outcome | None]) -> None:
        super().__init__("outcome_collector")
        self._consumer = consumer
        self._next_outcome = next_outcome
        self._notices = Notices(logger)
        self._written = ""

    def stop(self) -> None:
        """Stop the thread, and wait a short time for a result that is being stored."""
        super().stop()
        self._thread.join(LAST_SECONDS)

    def _look(self) -> None:
        outcome = self._take()
        if outcome is not None:
            # A connection to the backend ends with its thread. In a lasting thread it would become
            # stale.
            writer = threading.Thread(target=self._write_all, args=(outcome,), daemon=True)
            writer.start()
            writer.join()

    def _take(self) -> Outcome | None:
        try:
            outcome = self._next_outcome(self._written)
        except Exception as error:  # noqa: BLE001 - Redis does not answer, and will later
            self._notices.error(
                "take", "outcomes could not be read: %s", error or type(error).__name__
            )
            return None
        self._written = ""
        return outcome

    def _write_all(self, outcome: Outcome | None) -> None:
        while outcome is not None and not self._stopped.is_set():
            try:
                write(outcome, self._consumer)
            except Exception as error:  # noqa: BLE001 - a later try may succeed, here or in another worker
                self._notices.error(
                    "write",
                    "the result of a lost task could not be written, it is tried again: %s",
                    error or type(error).__name__,
                )
                return
            self._written = outcome.name
            outcome = self._take()
