"""A TCP proxy whose wire a test can cut: between a worker and its broker, or a client and Redis.

Invariant: in the `forwarding` state bytes pass both ways unchanged, after `delay_seconds`. Each
other state has one fault only. `stop()` ends its thread and every connection.

Weakness: one thread moves all bytes, so what it costs is in every figure that is measured through
it. Compare figures with those through a proxy without a delay.

    forwarding --refuse()--> refusing     connections are closed, new ones are reset at once
               --hang()----> hanging      connections stay open, nothing passes, new ones hang too
               <--resume()-- either       held bytes pass on
               --cut()-----> forwarding   connections are closed, new ones work
               --silence()-> forwarding   nothing passes on connections any more, new ones work
               --hold(H)---> forwarding   nothing passes to and from the host H until resume()
"""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Literal, Self

from tests.support.redis_server import HOST
from tests.support.waiting import at_most

CHUNK_BYTES = 65536
#: With this, close() sends a reset, so that the peer sees a broken connection, not an ordered end.
RESET_ON_CLOSE = struct.pack("ii", 1, 0)

State = Literal["forwarding", "refusing", "hanging"]


class _Pair:
    """One client and its connection to the target, with what was read and not yet written."""

    def __init__(self, client: socket.socket, target: socket.socket, host: str) -> None:
        self.host = host
        self.peer = {client: target, target: client}
        self.pending: dict[socket.socket, bytearray] = {client: bytearray(), target: bytearray()}
        #: Bytes for each end that are still on their way, each with the time of its arrival.
        self.on_the_way: dict[socket.socket, deque[tuple[float, bytes]]] = {
            client: deque(),
            target: deque(),
        }

    def arrive(self, now: float) -> float | None:
        """Move the bytes that have arrived to `pending`; return when the next ones do."""
        for end, travelling in self.on_the_way.items():
            while travelling and travelling[0][0] <= now:
                self.pending[end] += travelling.popleft()[1]
        return min((each[0][0] for each in self.on_the_way.values() if each), default=None)

    def close(self, *, reset: bool) -> None:
        self.arrive(math.inf)
        for end, unsent in self.pending.items():
            if reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            elif unsent:
                end.settimeout(1.0)
                with contextlib.suppress(OSError):
                    end.sendall(unsent)
            end.close()


class Proxy:
    """Listens on a free local port and forwards to `target_port` on the same host.

    Bytes take `delay_seconds` each way, so an answer takes at least twice as long.
    """

    def __init__(self, target_port: int, delay_seconds: float = 0.0) -> None:
        self.target_port = target_port
        self.delay_seconds = delay_seconds
        self.state: State = "forwarding"
        self._selector = selectors.DefaultSelector()
        self._pairs: dict[socket.socket, _Pair] = {}
        self._silent: set[_Pair] = set()
        self._held_hosts: set[str] = set()
        self._orders: list[tuple[Callable[[], None], threading.Event]] = []
        self._lock = threading.Lock()
        self._wake_out, self._wake_in = socket.socketpair()
        self._listener = socket.create_server((HOST, 0), backlog=128)
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._stopping = False

    @property
    def port(self) -> int:
        """Where clients connect instead of at the target."""
        return int(self._listener.getsockname()[1])

    def url(self, target_url: str) -> str:
        """`target_url` with the proxy's port in place of the target's."""
        before, found, after = target_url.rpartition(f":{self.target_port}")
        assert found, f"{target_url} expected to hold the port {self.target_port}"
        return f"{before}:{self.port}{after}"

    def start(self) -> Self:
        """Begin to forward."""
        for watched in (self._listener, self._wake_out):
            watched.setblocking(False)
            self._selector.register(watched, selectors.EVENT_READ)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close everything and end the thread; harmless twice."""
        if self._thread.is_alive():
            self._order(self._end)
            self._thread.join(at_most(5.0))
            assert not self._thread.is_alive(), "the proxy's thread expected to end"

    def cut(self) -> None:
        """Break all connections once; new ones work."""
        self._order(self._close_all)

    def silence(self) -> None:
        """Let nothing pass any more on the connections of now, which stay open; new ones work."""
        self._order(self._silence_all)

    def hold(self, host: str) -> None:
        """Let nothing pass on connections from ``host`` until `resume()`, the same on new ones."""
        self._order(lambda: self._hold(host))

    def refuse(self) -> None:
        """Break all connections and reset new ones until `resume()`."""
        self._order(lambda: self._become("refusing"))

    def hang(self) -> None:
        """Let nothing pass until `resume()`; connections stay open."""
        self._order(lambda: self._become("hanging"))

    def resume(self) -> None:
        """Forward again; what was held passes on."""
        self._order(lambda: self._become("forwarding"))

    def holds(self, text: bytes) -> bool:
        """Return whether a client has sent this text while nothing passes."""
        found: list[bool] = []
        self._order(lambda: found.append(self._holds(text)))
        return found[0]

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        return len(self._pairs) // 2

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _order(self, action: Callable[[], None]) -> None:
        """Have the thread do it, and return when it is done."""
        done = threading.Event()
        with self._lock:
            self._orders.append((action, done))
        self._wake_in.send(b"x")
        assert done.wait(at_most(5.0)), "the proxy's thread expected to answer within 5 s"

    # Everything below runs in the thread.

    def _run(self) -> None:
        while not self._stopping:
            for key, events in self._selector.select(self._deliver()):
                ready = key.fileobj
                assert isinstance(ready, socket.socket)
                if ready is self._wake_out:
                    self._obey()
                elif ready is self._listener:
                    self._accept()
                elif ready in self._pairs:
                    self._move(ready, events)
                if self._stopping:
                    break

    def _deliver(self) -> float | None:
        """Hand over the delayed bytes that have arrived; return how long until the next do."""
        if not self.delay_seconds or self.state != "forwarding":
            return None
        now, next_at = monotonic(), None
        for pair in set(self._pairs.values()):
            arrives_at = pair.arrive(now)
            if arrives_at is not None:
                next_at = arrives_at if next_at is None else min(next_at, arrives_at)
            for end in pair.peer:
                self._watch(end)
        return None if next_at is None else max(0.0, next_at - now)

    def _obey(self) -> None:
        self._wake_out.recv(CHUNK_BYTES)
        with self._lock:
            orders, self._orders = self._orders, []
        for action, done in orders:
            action()
            done.set()

    def _become(self, state: State) -> None:
        self.state = state
        if state == "forwarding":
            self._held_hosts.clear()
        if state == "refusing":
            self._close_all()
        self._watch_listener(state != "hanging")
        for end in self._pairs:
            self._watch(end)

    def _watch_listener(self, wanted: bool) -> None:
        # While hanging, the kernel takes connections into the backlog and nobody answers them.
        watched = self._listener in self._selector.get_map()
        if wanted and not watched:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif watched and not wanted:
            self._selector.unregister(self._listener)

    def _accept(self) -> None:
        client, (host, _) = self._listener.accept()
        if self.state == "refusing":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            client.close()
            return
        try:
            target = socket.create_connection((HOST, self.target_port), timeout=at_most(5.0))
        except OSError:
            client.close()
            return
        pair = _Pair(client, target, host)
        for end in pair.peer:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pairs[end] = pair
            self._watch(end)

    def _watch(self, end: socket.socket) -> None:
        """Wait for what this end can do now: be read, and written if something waits for it."""
        events = 0
        pair = self._pairs[end]
        if self._passes(pair):
            # Read no further while the other side does not take what it was sent.
            if len(pair.pending[pair.peer[end]]) < CHUNK_BYTES:
                events |= selectors.EVENT_READ
            if pair.pending[end]:
                events |= selectors.EVENT_WRITE
        watched = end in self._selector.get_map()
        if events and watched:
            self._selector.modify(end, events)
        elif events:
            self._selector.register(end, events)
        elif watched:
            self._selector.unregister(end)

    def _passes(self, pair: _Pair) -> bool:
        blocked = pair in self._silent or pair.host in self._held_hosts
        return self.state == "forwarding" and not blocked

    def _move(self, end: socket.socket, events: int) -> None:
        pair = self._pairs[end]
        if not self._passes(pair):
            return  # the order came in the same turn as these bytes
        other = pair.peer[end]
        try:
            if events & selectors.EVENT_READ:
                read = end.recv(CHUNK_BYTES)
                if not read:
                    self._close(pair, reset=False)
                    return
                if self.delay_seconds:
                    pair.on_the_way[other].append((monotonic() + self.delay_seconds, read))
                else:
                    pair.pending[other] += read
            for writable in (end, other):
                if pair.pending[writable]:
                    del pair.pending[writable][: writable.send(pair.pending[writable])]
        except BlockingIOError:
            pass
        except OSError:
            self._close(pair, reset=True)
            return
        self._watch(end)
        self._watch(other)

    def _close(self, pair: _Pair, *, reset: bool) -> None:
        for end in pair.peer:
            if end in self._selector.get_map():
                self._selector.unregister(end)
            self._pairs.pop(end, None)
        self._silent.discard(pair)
        pair.close(reset=reset)

    def _holds(self, text: bytes) -> bool:
        for end in self._pairs:
            with contextlib.suppress(BlockingIOError):
                if text in end.recv(CHUNK_BYTES, socket.MSG_PEEK):
                    return True
        return False

    def _hold(self, host: str) -> None:
        self._held_hosts.add(host)
        for end in self._pairs:
            self._watch(end)

    def _silence_all(self) -> None:
        self._silent.update(self._pairs.values())
        for end in self._pairs:
            self._watch(end)

    def _close_all(self) -> None:
        for pair in set(self._pairs.values()):
            self._close(pair, reset=True)

    def _end(self) -> None:
        self._stopping = True
        self._close_all()
        self._selector.close()
        for own in (self._listener, self._wake_in, self._wake_out):
            own.close()
