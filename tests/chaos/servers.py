"""The Redis of a run, and what happens to it: one server behind a proxy, or a cluster.

Invariant: one fault at a time. They happen in one thread that lives as long as the run: the kernel
ends a server when the thread that started it ends. Each outage is in the ledger when it is over.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import Self

from redis import Redis

from tests.chaos import audit, ledger
from tests.chaos.plan import MOVES, Fault, Kind
from tests.support.proxy import Proxy
from tests.support.redis_cluster import Node, RedisCluster
from tests.support.redis_server import RedisServer

#: How long the proxy stays shut after some of the cuts, in seconds.
SHUT_SECONDS = 0.7
#: How far the clock of Redis jumps, either way.
CLOCK_MS = 3_600_000
#: How long a node that came has the slot, in seconds.
HAS_SLOT_SECONDS = 2.0


class Servers(ABC):
    """The Redis of a run, and its faults."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._thread = ThreadPoolExecutor(1, "faults of Redis")
        self._fault: Future[None] | None = None
        #: The process groups of the servers.
        self.groups: set[int] = set()

    def __enter__(self) -> Self:
        self._stack.callback(self._thread.shutdown)
        self._start()
        self.groups = self._living()
        return self

    def __exit__(self, *_: object) -> None:
        if self._fault is not None:
            # Otherwise it would use servers that are ending.
            wait([self._fault])
        self._stack.close()

    def cause(self, fault: Fault) -> bool:
        """Begin a fault; False while another one goes on."""
        if self.busy:
            return False
        self._fault = self._thread.submit(self._cause_and_look, fault)
        return True

    def _cause_and_look(self, fault: Fault) -> None:
        self._cause(fault)
        self.groups = self._living()

    @property
    def busy(self) -> bool:
        """Whether a fault goes on. If the last one could not be caused, raises why."""
        if self._fault is not None and self._fault.done():
            self._fault.result()
            self._fault = None
        return self._fault is not None

    def broker(self, *, by_proxy: bool = False) -> str:
        """Return the address of our broker on it."""
        return ";".join(f"fair{url}" for url in self.url(by_proxy=by_proxy).split(";"))

    @abstractmethod
    def _start(self) -> None:
        """Start it, and leave to the stack how it ends."""

    @abstractmethod
    def _cause(self, fault: Fault) -> None:
        """Cause a fault, and return when the next may come."""

    @abstractmethod
    def url(self, *, by_proxy: bool = False) -> str:
        """Return its address."""

    @abstractmethod
    def client(self, prefix: str = audit.PREFIX) -> Redis:
        """Return a client of the server that has the keys of a prefix. The caller closes it."""

    @abstractmethod
    def _living(self) -> set[int]:
        """Return the process groups of the servers."""


@contextmanager
def _outage(kind: Kind, hit: Sequence[str] = ()) -> Iterator[None]:
    begun = ledger.now()
    yield
    ledger.write("outage", begun, kind=kind, over=ledger.now(), hit=hit)


class OneRedis(Servers):
    """One server that loses nothing that it has answered.

    Args:
        has_clock: Whether the package is used, which keeps a clock in Redis.
    """

    def __init__(self, *, has_clock: bool = True) -> None:
        super().__init__()
        self._has_clock = has_clock

    def _start(self) -> None:
        always = ("--appendonly", "yes", "--appendfsync", "always")
        self._server = self._stack.enter_context(RedisServer(args=always))
        self._proxy = self._stack.enter_context(Proxy(self._server.port))

    def url(self, *, by_proxy: bool = False) -> str:
        """Return its address."""
        return self._proxy.url(self._server.url) if by_proxy else self._server.url

    def client(self, prefix: str = audit.PREFIX) -> Redis:
        """Return a client. The caller closes it."""
        return self._server.client(decode_responses=True)

    def _living(self) -> set[int]:
        return {self._server.pid}

    def _cause(self, fault: Fault) -> None:
        with _outage(fault.kind):
            if fault.kind == "pause":
                self._server.pause()
                time.sleep(fault.seconds)
                self._server.resume()
            elif fault.kind == "restart":
                self._restart(fault)
            elif fault.kind == "clock":
                self._set_clock(fault)
            else:
                self._cut(fault)

    def _restart(self, fault: Fault) -> None:
        # By a crash and a while later, or in order and at once.
        if fault.variant < 0.7:
            self._server.kill()
            time.sleep(fault.seconds)
        self._server.restart()

    def _set_clock(self, fault: Fault) -> None:
        # The server time of the last call is all that a jump could be told by.
        if self._has_clock:
            jump = CLOCK_MS if fault.variant < 0.5 else -CLOCK_MS
            with self.client() as client:
                client.hincrby(f"{audit.PREFIX}clock", "seen", -jump)

    def _cut(self, fault: Fault) -> None:
        if fault.variant < 0.4:
            with self.client() as client:
                client.client_kill_filter(_type="normal", skipme=True)
        elif fault.variant < 0.8:
            self._proxy.cut()
        else:
            shut = self._proxy.refuse if fault.variant < 0.9 else self._proxy.hang
            shut()
            time.sleep(SHUT_SECONDS)
            self._proxy.resume()


class Cluster(Servers):
    """Three primaries with a replica each. What no replica has is lost with its primary.

    A fault hits the slot of the home or of one partition. A server that cannot move a slot as one
    moves it key by key then.

    Args:
        partitions: The setting of that name.
    """

    def __init__(self, partitions: int = 1) -> None:
        super().__init__()
        self._prefixes = audit.prefixes_of(partitions)
        #: What is in the slot that the fault hits.
        self._key = audit.PREFIX
        #: How the keys begin that another server has after the fault.
        self._hit: tuple[str, ...] = ()

    def _start(self) -> None:
        self._cluster = self._stack.enter_context(RedisCluster(3, 1, wired=True))

    def url(self, *, by_proxy: bool = False) -> str:
        """Return its address. No proxy is between, because the nodes name themselves."""
        return self._cluster.url()

    def client(self, prefix: str = audit.PREFIX) -> Redis:
        """Return a client of the slot's primary. The caller closes it."""
        return self._cluster.client(prefix)

    def _living(self) -> set[int]:
        return {node.pid for node in self._cluster.nodes}

    def _cause(self, fault: Fault) -> None:
        self._key = self._prefixes[int(fault.target * len(self._prefixes))]
        self._hit = (self._key,) if fault.kind in MOVES else self._beside()
        if fault.kind == "node":
            self._add_and_remove()
        elif fault.kind == "kill primary":
            self._kill_primary()
        elif fault.kind == "partition":
            self._part(fault)
        else:
            with _outage(fault.kind, self._hit):
                self._change(fault)
        self._cluster.await_agreement()
        for prefix in self._prefixes:
            self._cluster.await_replica(prefix)

    def _beside(self) -> tuple[str, ...]:
        """Return what the server of the slot has, and that beside it."""
        server = self._cluster.primary(self._key)
        return tuple(each for each in self._prefixes if self._cluster.primary(each) is server)

    def _change(self, fault: Fault) -> None:
        cluster = self._cluster
        if fault.kind == "failover":
            cluster.fail_over(cluster.primary(self._key))
        elif fault.kind == "move":
            to = cluster.other(self._key)
            source, slot = cluster.begin_move(to, self._key)
            time.sleep(fault.seconds)
            cluster.end_move(source, to, slot)
        else:
            self._move_at_once(cluster.other(self._key))

    def _move_at_once(self, to: Node) -> None:
        move = self._cluster.move_at_once if self._cluster.moves_at_once else self._cluster.move
        move(to, self._key)

    def _add_and_remove(self) -> None:
        cluster = self._cluster
        node = cluster.add_primary()
        with _outage("node", self._hit):
            self._move_at_once(node)
        time.sleep(HAS_SLOT_SECONDS)
        with _outage("node", self._hit):
            self._move_at_once(cluster.other(self._key))
        cluster.remove(node)

    def _kill_primary(self) -> None:
        with _outage("kill primary", self._hit):
            before = self._cluster.kill_primary(self._key)
            self._cluster.await_primary(before, self._key)
        before.restart()

    def _part(self, fault: Fault) -> None:
        before = self._cluster.primary(self._key)
        with _outage("partition", self._hit):
            self._cluster.part(before)
            self._cluster.await_primary(before, self._key)
        # Who goes on with the old primary has time to be late.
        time.sleep(fault.seconds)
        self._cluster.join()
