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
from weakref import ref

from kombu.transport import redis as stock
from kombu.utils.eventio import READ

from celery_fairness.transport.session import Session

#: How long a loop without a hub waits while its worker stops, in seconds.
STOPPING_SECONDS = 0.05


#: Untyped here: what it keeps is not in its stub.
_Poller: Any = stock.MultiChannelPoller


class FairPoller(_Poller):  # type: ignore[misc]  # see above
    """Polls channels, and tells Redis the ends that no claim took along."""

    def __init__(self) -> None:
        super().__init__()
        self._homes: list[Session] = []
        self._pipe: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._wake: Callable[[], None] = self._write
        self._hub: Any = None
        self._on_readable: Callable[[int], Any] | None = None

    def serve(self, home: Session) -> None:
        """Wake for the ends of ``home`` and tell them."""
        if home not in self._homes:
            self._homes.append(home)
            # The home lives as long as the process; a poller that nobody closed does not. A
            # WeakMethod has a callback of its own, which fails where the interpreter ends.
            home.wakers.append(ref(self, home.wakers.remove))

    def wake(self) -> None:
        """Wake the loop; from any thread."""
        self._wake()

    def join_hub(self, hub: Any, on_readable: Callable[[int], Any]) -> None:
        """Be woken through a hub from now on, which calls ``on_readable`` for sockets."""
        self._hub, self._on_readable, loop = hub, on_readable, threading.get_ident()

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
        self._subscribe()
        try:
            return super().get(callback, STOPPING_SECONDS if self._is_stopping() else timeout)
        except Empty:
            if self._is_stopping():
                # The worker's loop is to see it now, not at the end of its own wait.
                raise TimeoutError from None
            raise

    def _register_BRPOP(self, channel: Any) -> None:  # noqa: N802 - kombu's name
        # Also to connect is in vain while the server takes nothing.
        if not channel.is_napping:
            with channel.waits_for_server():
                super()._register_BRPOP(channel)

    def _is_stopping(self) -> bool:
        return any(home.stopping for home in self._homes)

    def on_poll_start(self) -> None:
        """Send what the channels want to know; tell ends that had to stay behind."""
        self._subscribe()
        super().on_poll_start()
        for home in self._homes:
            # What an open claim did not take along goes with the next one, at once.
            if home.book.has_ends and not home.claim_is_open:
                if home.book.frees_slots:
                    home.flush()
                else:
                    # Nobody waits for a note, and mostly the end comes before it is told.
                    home.tell_soon()
        for channel in self._channels:
            channel.hear_rooms()
            channel.spin()

    @property
    def fds(self) -> Any:
        """The sockets that kombu is to add to the loop: it asks at each turn, for all of them."""
        if self._hub is None:
            return self._fd_to_chan
        readers, ours = self._hub.readers, self._on_readable
        # A number may have been another's before, who said nothing when it was closed.
        return [
            number
            for number in self._fd_to_chan
            if number not in readers or readers[number][0] != ours
        ]

    def _subscribe(self) -> None:
        """Hear what is said to all, before anything is claimed; kombu takes any order."""
        for channel in self._channels:
            if channel.active_fanout_queues and not channel._in_listen:
                self._register_LISTEN(channel)

    def handle_event(self, fileno: int, event: int) -> Any:
        """Handle one event of the poll."""
        if self._pipe is not None and fileno == self._pipe[0]:
            try:
                os.read(fileno, 4096)
            except BlockingIOError:
                pass
            return None
        return super().handle_event(fileno, event)

    def leave(self, connection: Any) -> None:
        """Take a connection out of the poll, before its socket is closed.

        A process of the pool that was forked meanwhile holds the socket too, and so the system goes
        on polling it: what happens there would be told under its number, which is that of the next
        connection. Reading from that one, with no request open, the loop would wait for ever.
        """
        socket = connection._sock
        # The poll of a forked process is its parent's.
        if socket is None or connection.pid != os.getpid():
            return
        number = socket.fileno()
        if number in self._fd_to_chan:
            with suppress(OSError, ValueError, KeyError):
                self._unregister_from_poll(number)

    def _on_connection_disconnect(self, connection: Any) -> None:
        """Forget a connection that was closed, without a hub; kombu does the same with one.

        Its socket is gone by now. The number that it had may be another's the next moment, and
        what happens there would be read from a connection that has no socket.
        """
        self._discard_paused_connection(connection)
        closed = set()
        for key in list(self._chan_to_sock):
            channel, client, kind = key
            if client.connection is connection:
                del self._chan_to_sock[key]
                closed.add((channel, kind))
        for fileno in [number for number, each in self._fd_to_chan.items() if each in closed]:
            del self._fd_to_chan[fileno]
            with suppress(OSError, ValueError, KeyError):
                self.poller.unregister(fileno)

    def close(self) -> None:
        """Forget every connection."""
        for home in self._homes:
            with suppress(ValueError):
                home.wakers.remove(ref(self))
        self._homes.clear()
        super().close()
        with self._lock:
            pipe, self._pipe = self._pipe, None
        for end in pipe or ():
            os.close(end)


def _nothing() -> None:
    """Turn the loop once."""
