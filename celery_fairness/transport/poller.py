"""kombu's poller of Redis connections, which the end of a task can wake.

With all places taken no request is open and nothing on the wire can wake the loop. Celery's hub has
a waker of its own; without a hub (gevent, eventlet, kombu alone) a pipe stands among the sockets.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from time import sleep
from typing import Any
from weakref import WeakMethod

from kombu.transport import redis as stock
from kombu.utils.eventio import READ

from celery_fairness.transport.home import Home

#: How long a loop without a hub waits while its worker stops, in seconds.
STOPPING_SECONDS = 0.05


class FairPoller(stock.MultiChannelPoller):
    """Polls channels, and tells Redis the ends that no claim took along."""

    def __init__(self) -> None:
        super().__init__()
        self._homes: list[Home] = []
        self._pipe: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._wake: Callable[[], None] = self._write
        self._hub: Any = None

    def serve(self, home: Home) -> None:
        """Wake for the ends of ``home`` and tell them."""
        if home not in self._homes:
            self._homes.append(home)
            # The home lives as long as the process; a poller that nobody closed does not.
            home.wakers.append(WeakMethod(self.wake, home.wakers.remove))

    def wake(self) -> None:
        """Wake the loop; from any thread."""
        self._wake()

    def join_hub(self, hub: Any) -> None:
        """Be woken through a hub from now on."""
        self._hub, loop = hub, threading.get_ident()

        def wake() -> None:
            # What ends in the loop's own thread is told before it sleeps.
            if threading.get_ident() != loop:
                hub.call_soon(_nothing)

        self._wake = wake

    def nap(self, seconds: float, over: Callable[[], None]) -> bool:
        """Let ``seconds`` pass; False where the loop does, and calls ``over`` after them."""
        if self._hub is None:
            sleep(seconds)
            return True
        self._hub.call_later(seconds, over)
        return False

    def _write(self) -> None:
        # Once it is closed its number may be that of another file.
        with self._lock:
            if self._pipe is not None:
                try:
                    os.write(self._pipe[1], b"x")
                except BlockingIOError:
                    pass  # It is full: the loop wakes anyway.

    def get(self, callback: Any, timeout: float | None = None) -> Any:
        """Wait for one event, without a hub."""
        if self._pipe is None:
            self._pipe = os.pipe()
            for end in self._pipe:
                os.set_blocking(end, False)
            self.poller.register(self._pipe[0], READ)
        try:
            return super().get(callback, STOPPING_SECONDS if self._is_stopping() else timeout)
        except Empty:
            if self._is_stopping():
                # The worker's loop is to see it now, not at the end of its own wait.
                raise TimeoutError from None
            raise

    def _is_stopping(self) -> bool:
        return any(home.stopping for home in self._homes)

    def on_poll_start(self) -> None:
        """Send what the channels want to know; tell ends that had to stay behind."""
        super().on_poll_start()
        for home in self._homes:
            # What an open claim did not take along goes with the next one, at once.
            if home.book.has_ends and not home.claim_is_open:
                if home.book.frees_slots:
                    home.flush()
                else:
                    # Nobody waits for a note, and mostly the end comes before it is told.
                    home.tell_soon()

    def handle_event(self, fileno: int, event: int) -> Any:
        """Handle one event of the poll."""
        if self._pipe is not None and fileno == self._pipe[0]:
            try:
                os.read(fileno, 4096)
            except BlockingIOError:
                pass
            return None
        return super().handle_event(fileno, event)

    def close(self) -> None:
        """Forget every connection."""
        for home in self._homes:
            with suppress(ValueError):
                home.wakers.remove(WeakMethod(self.wake))
        self._homes.clear()
        super().close()
        with self._lock:
            pipe, self._pipe = self._pipe, None
        for end in pipe or ():
            os.close(end)


def _nothing() -> None:
    """Turn the loop once."""
