"""A thread of a worker that looks once a second for something to do.

It is not the loop of the worker, because a server that does not answer must not delay the loop or
the renewals.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

#: The pause before each look, in seconds.
EVERY_SECONDS = 1.0


class LookingThread(ABC):
    """Calls ``_look`` once a second, until it is stopped."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_SECONDS):
            self._look()

    @abstractmethod
    def _look(self) -> None:
        """Look once. An error would end the thread."""
