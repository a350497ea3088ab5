"""kombu's poller of Redis connections, which the end of a task can wake.

While all places are taken, no request is open, and no answer can wake the loop. So the poller adds
a pipe to the sockets. The loop is Celery's hub, or :meth:`FairPoller.get` without one (gevent,
eventlet, kombu alone).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from time import monotonic, sleep
from typing import Any
from weakref import ref

from kombu.utils.eventio import READ

from celery_fairness.compat.redis_transport import Poller
from celery_fairness.transport.lanes import Lane
from celery_fairness.transport.session import Session

#: Longest wait of a loop without a hub while its worker stops, in seconds.
STOPPING_SECONDS = 0.05


class FairPoller(Poller):
    """Polls channels, and sends the ends that no claim carried to Redis."""

    def __init__(self) -> None:
        super().__init__()
        self._sessions: list[Session] = []
        self._pipe: tuple[int, int] | None = None
        #: Whether somebody has written to the pipe since the loop's last turn began.
        self._is_woken = False
        self._next_look = 0.0
        self._lock = threading.Lock()
        self._hub: Any = None
        #: The thread of the hub's loop.
        self._loop: int | None = None
        self._on_readable: Callable[[int], Any] | None = None
        #: The time at which the loop wakes at the latest (monotonic seconds); None without one.
        self._wakes_at: float | None = None

    def add_lane(self, channel: Any, lane: Lane) -> None:
        """Poll the connection of a lane for a channel."""
        socket = lane.connection._sock
        self._fd_to_chan[socket.fileno()] = channel, lane
        self._chan_to_sock[channel, lane, lane] = socket
        self.poller.register(socket, self.eventflags)

    def on_readable(self, fileno: int) -> Any:
        """Read an answer."""
        channel, kind = self._fd_to_chan.get(fileno, (None, None))
        if isinstance(kind, Lane):
            # Not only if there is a place: the answer may be that to an end.
            return channel.read_lane(kind)
        return super().on_readable(fileno)

    def serve(self, session: Session) -> None:
        """Wake the loop for the ends of ``session``, and send them."""
        if session not in self._sessions:
            self._sessions.append(session)
            # The session lives as long as the process, but an unclosed poller does not. A
            # WeakMethod has its own callback, which fails at the interpreter's exit.
            session.wakers.append(ref(self, session.wakers.remove))

    def join_hub(self, hub: Any, on_readable: Callable[[int], Any]) -> None:
        """Use a hub for wake-ups from now on; it calls ``on_readable`` for sockets."""
        self._hub, self._on_readable, self._loop = hub, on_readable, threading.get_ident()
        # kombu's own handler also stops the loop's turns before kombu 5.7.
        self.__dict__.pop("_on_connection_disconnect", None)
        hub.add_reader(self._open_pipe(), self._drain)

    def wake(self) -> None:
        """Wake the loop; from any thread."""
        # A hub's loop sends ends of its own thread before it sleeps.
        if threading.get_ident() == self._loop:
            return
        # After its close, the number may belong to another file.
        with self._lock:
            if self._pipe is not None and not self._is_woken:
                self._is_woken = True
                os.write(self._pipe[1], b"x")

    def _open_pipe(self) -> int:
        """Return the end of a new pipe that the loop reads."""
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        return self._pipe[0]

    def _drain(self) -> None:
        pipe = self._pipe
        with suppress(BlockingIOError):
            if pipe is not None:
                os.read(pipe[0], 4096)

    def nap(self, seconds: float, over: Callable[[], None]) -> bool:
        """Wait ``seconds`` and return True; with a hub, return False and call ``over`` later."""
        if self._hub is None:
            sleep(seconds)
            return True
        self._hub.call_later(seconds, over)
        return False

    def wake_in(self, seconds: float) -> None:
        """Wake the loop in ``seconds`` at the latest."""
        wakes_at = monotonic() + seconds
        if self._wakes_at is not None and self._wakes_at <= wakes_at:
            return
        self._wakes_at = wakes_at
        if self._hub is not None:
            self._hub.call_later(seconds, self._woken)

    def _woken(self) -> None:
        self._wakes_at = None

    def let_bodies_run(self) -> bool:
        """Let bodies of a green library run, if the loop has no hub; return whether it has none."""
        if self._hub is not None:
            return False
        sleep(0)
        return True

    def get(self, callback: Any, timeout: float | None = None) -> Any:
        """Wait for one event, without a hub."""
        if self._pipe is None:
            self.poller.register(self._open_pipe(), READ)
        self._subscribe()
        self._look_at_fanout()
        self._woken()
        for channel in list(self._channels):
            channel.start_suspects()
        if self._wakes_at is not None:
            until = max(0.0, self._wakes_at - monotonic())
            timeout = until if timeout is None else min(timeout, until)
        try:
            return super().get(callback, STOPPING_SECONDS if self._is_stopping() else timeout)
        except Empty:
            if self._is_stopping():
                # The worker's loop must stop now, not at the end of its own wait.
                raise TimeoutError from None
            raise

    def _look_at_fanout(self) -> None:
        """Give up connections of fanout queues that do not answer; kombu does it in a hub alone."""
        now, waits = monotonic(), [each.health_check_interval for each in self._channels]
        # A look asks again although the last answer may still be unread.
        if all(waits) and now >= self._next_look:
            self._next_look = now + min(waits, default=0.0)
            self.maybe_check_subclient_health()

    def _register_BRPOP(self, channel: Any) -> None:  # noqa: N802 - kombu's name
        # While the server accepts no commands, even a connection is useless.
        if not (channel.is_napping or channel.home_is_away):
            with channel.waits_for_server(), channel.may_lose_home():
                super()._register_BRPOP(channel)

    def _register_LISTEN(self, channel: Any) -> None:  # noqa: N802 - kombu's name
        if not channel.home_is_away:
            with channel.may_lose_home():
                super()._register_LISTEN(channel)

    def maybe_check_subclient_health(self) -> None:
        """Look at the connections of fanout queues, unless the home is away."""
        if not any(channel.home_is_away for channel in self._channels):
            super().maybe_check_subclient_health()

    def maybe_restore_messages(self) -> None:
        """Look for messages of stock queues whose worker is gone.

        With several servers there is nothing to look for: replies of remote control have no acks.
        The look would wait for a home that is away.
        """
        if not any(channel.session.servers.are_several for channel in self._channels):
            super().maybe_restore_messages()

    def _is_stopping(self) -> bool:
        return any(session.stopping for session in self._sessions)

    def on_poll_start(self) -> None:
        """Send the channels' requests, and the ends that no claim carried."""
        # This comes before the look for ends, so an end that this turn misses writes to the pipe.
        self._is_woken = False
        self._subscribe()
        for channel in list(self._channels):
            # On a solo pool a suspect ends in this call, so its end goes with what follows.
            channel.start_suspects()
            channel.send_on_lanes()
        super().on_poll_start()
        for session in self._sessions:
            # Ends that an open claim did not carry go with the next claim.
            if session.lease_table.has_ends and not session.claim_is_open:
                if session.lease_table.frees_slots:
                    if not any(channel.has_lanes_for(session) for channel in self._channels):
                        session.flush()
                else:
                    # A note is not urgent, and the task's end often comes before it is sent.
                    session.renewals.settle_soon()
        for channel in self._channels:
            channel.wake_if_room()
            channel.spin()

    @property
    def fds(self) -> Any:
        """The sockets that kombu adds to the loop; kombu reads all of them at each turn."""
        if self._hub is None:
            return self._fd_to_chan
        readers, ours = self._hub.readers, self._on_readable
        # The number may have belonged to another socket that the hub still has.
        return [
            number
            for number in self._fd_to_chan
            if number not in readers or readers[number][0] != ours
        ]

    def _subscribe(self) -> None:
        """Subscribe to fanout queues before the first claim; kombu has no fixed order."""
        for channel in self._channels:
            if channel.active_fanout_queues and not channel._in_listen:
                self._register_LISTEN(channel)

    def handle_event(self, fileno: int, event: int) -> Any:
        """Handle one event of the poll."""
        if self._pipe is not None and fileno == self._pipe[0]:
            self._drain()
            return None
        return super().handle_event(fileno, event)

    def leave(self, connection: Any) -> None:
        """Take a connection out of the poll, before its socket is closed.

        A pool process that was forked meanwhile shares the socket, so the system goes on polling
        it. Its events would have the old number, which the next connection gets. The loop would
        read from that connection without an open request, and would wait without an end.
        """
        socket = connection._sock
        # In a forked process, the poll belongs to the parent.
        if socket is None or connection.pid != os.getpid():
            return
        number = socket.fileno()
        if number in self._fd_to_chan:
            with suppress(OSError, ValueError, KeyError):
                self._unregister_from_poll(number)

    def _on_connection_disconnect(self, connection: Any) -> None:
        """Remove a closed connection.

        The socket is already closed. Another socket may get its number at once, and its events
        would be read from a connection without a socket.
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
                self._unregister_from_poll(fileno)

    def close(self) -> None:
        """Remove every connection."""
        for session in self._sessions:
            with suppress(ValueError):
                session.wakers.remove(ref(self))
        self._sessions.clear()
        super().close()
        with self._lock:
            pipe, self._pipe = self._pipe, None
        if pipe is not None and self._hub is not None:
            self._hub.remove_reader(pipe[0])
        for end in pipe or ():
            os.close(end)
