"""Asks for outcomes, and has their results written.

Invariant: an outcome is forgotten only when its result was written. A worker that dies between the
two leaves it to the next, which writes it once more.

It has a thread of its own: a result backend may take its time, and neither the loop nor the
renewals wait for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from celery_fairness.scheduler.types import Outcome
from celery_fairness.util.throttled_log import Notices
from celery_fairness.worker.outcome_writer import write

logger = logging.getLogger("celery_fairness")

#: How often a worker asks, in seconds.
EVERY_SECONDS = 1.0
#: How long the end of a worker waits for what is being written, in seconds.
LAST_SECONDS = 2.0


class OutcomeReporter:
    """Asks for outcomes and writes their results, for the life of a worker.

    Args:
        consumer: Of the worker.
        next_outcome: Says which outcome was written, and takes the next.
    """

    def __init__(self, consumer: Any, next_outcome: Callable[[str], Outcome | None]) -> None:
        self._consumer = consumer
        self._next_outcome = next_outcome
        self._notices = Notices(logger)
        self._written = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outcome_reporter", daemon=True)

    def start(self) -> None:
        """Ask from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; what is being written is written, if that does not take long."""
        self._stopped.set()
        self._thread.join(LAST_SECONDS)

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_SECONDS):
            outcome = self._ask()
            if outcome is not None:
                # Connections to the results end with their thread: next week they would be stale.
                writer = threading.Thread(target=self._write_all, args=(outcome,), daemon=True)
                writer.start()
                writer.join()

    def _ask(self) -> Outcome | None:
        try:
            outcome = self._next_outcome(self._written)
        except Exception as error:  # noqa: BLE001 - Redis is away, and comes back
            self._notices.error(
                "ask", "outcomes could not be asked for: %s", error or type(error).__name__
            )
            return None
        self._written = ""
        return outcome

    def _write_all(self, outcome: Outcome | None) -> None:
        while outcome is not None and not self._stopped.is_set():
            try:
                write(outcome, self._consumer)
            except Exception as error:  # noqa: BLE001 - a later try may do better, here or elsewhere
                self._notices.error(
                    "write",
                    "the result of a lost task could not be written, it is tried again: %s",
                    error or type(error).__name__,
                )
                return
            self._written = outcome.text
            outcome = self._ask()
