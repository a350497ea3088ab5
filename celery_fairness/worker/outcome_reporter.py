"""Asks for obituaries, and has their results written.

Invariant: an obituary is forgotten only when its result was written. A worker that dies between the
two leaves it to the next, which writes it once more.

It has a thread of its own: a result backend may take its time, and neither the loop nor the
renewals wait for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from celery_fairness.scheduler.types import Obituary
from celery_fairness.util.throttled_log import Notices
from celery_fairness.worker.outcome_writer import write

logger = logging.getLogger("celery_fairness")

#: How often a worker asks, in seconds.
EVERY_SECONDS = 1.0
#: How long the end of a worker waits for what is being written, in seconds.
LAST_SECONDS = 2.0


class Mourner:
    """Asks for obituaries and writes their results, for the life of a worker.

    Args:
        consumer: Of the worker.
        mourn: Says which obituary was written, and takes the next.
    """

    def __init__(self, consumer: Any, mourn: Callable[[str], Obituary | None]) -> None:
        self._consumer = consumer
        self._mourn = mourn
        self._notices = Notices(logger)
        self._written = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mourner", daemon=True)

    def start(self) -> None:
        """Ask from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; what is being written is written, if that does not take long."""
        self._stopped.set()
        self._thread.join(LAST_SECONDS)

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_SECONDS):
            obituary = self._ask()
            if obituary is not None:
                # Connections to the results end with their thread: next week they would be stale.
                writer = threading.Thread(target=self._write_all, args=(obituary,), daemon=True)
                writer.start()
                writer.join()

    def _ask(self) -> Obituary | None:
        try:
            obituary = self._mourn(self._written)
        except Exception as error:  # noqa: BLE001 - Redis is away, and comes back
            self._notices.error(
                "ask", "obituaries could not be asked for: %s", error or type(error).__name__
            )
            return None
        self._written = ""
        return obituary

    def _write_all(self, obituary: Obituary | None) -> None:
        while obituary is not None and not self._stopped.is_set():
            try:
                write(obituary, self._consumer)
            except Exception as error:  # noqa: BLE001 - a later try may do better, here or elsewhere
                self._notices.error(
                    "write",
                    "the result of a lost task could not be written, it is tried again: %s",
                    error or type(error).__name__,
                )
                return
            self._written = obituary.text
            obituary = self._ask()
