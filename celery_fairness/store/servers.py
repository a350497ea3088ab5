"""The servers of an installation with several partitions, and which of them answer.

A partition is on one server. With one Redis that is the same for all. In a list of n servers
partition p is on server p mod n. In a cluster it is on the primary of its slot.

No call waits for a server that has not answered lately: such a server is *away*, and each call of
its partitions fails at once. A thread probes it until it answers.

    answers --no answer in time, or no connection--> away --it answers a probe--> answers

A lone server is never away: each call tries it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoPermissionError, RedisError
from redis.exceptions import TimeoutError as AnswerLate

from celery_fairness.errors import LimiterUnavailable
from celery_fairness.store.address import Address
from celery_fairness.store.cluster import (
    PAUSE_SECONDS,
    ClusterNodes,
    Node,
    NotServed,
    at_node,
    slot_of,
)
from celery_fairness.store.connection import Connection
from celery_fairness.store.library import Library, library
from celery_fairness.store.partitions import Partitions
from celery_fairness.store.readiness import ServerNotReady, attentive
from celery_fairness.util.threads import Bell, native_lock, start_thread
from celery_fairness.util.throttled_log import Notices

logger = logging.getLogger("celery_fairness")

#: Pause before each probe of a server that is away, in seconds.
PROBE_SECONDS = 0.1


class ServerAway(ConnectionLost):
    """The server of a partition does not answer. While it is away, no call is sent to it.

    Attributes:
        server: The server, if the error was raised in this process.
    """

    def __init__(self, text: str, server: Server | None = None) -> None:
        super().__init__(text)
        self.server = server


class Server:
    """One server, as this process has met it.

    Attributes:
        node: Its host and port. None for the only server.
        number: Its position in a list, from 0.
        is_late: Whether an answer to a worker's loop is late, so the loop sends it nothing.
        place: Its position from 1 and the number of servers, as in ``1/3``. "" without a list.
    """

    def __init__(self, node: Node | None = None, number: int = 0, place: str = "") -> None:
        self.node, self.number, self.place = node, number, place
        self.is_late = False
        self._problem, self._pid = "", 0

    def __str__(self) -> str:
        return "the server" if self.node is None else f"{self.node[0]}:{self.node[1]}"

    @property
    def problem(self) -> str:
        """Why it is away. "" if it answers."""
        # The thread that probes it is in the process that missed the answer.
        return self._problem if self._problem and self._pid == os.getpid() else ""

    @problem.setter
    def problem(self, text: str) -> None:
        self._problem, self._pid = text, os.getpid()

    def check(self, cause: BaseException | None = None) -> None:
        """Raise if the server is away.

        Raises:
            ServerAway: It is.
        """
        if problem := self.problem:
            raise ServerAway(f"{self} does not answer: {problem}", self) from cause


class Servers:
    """The servers of an installation: one, or a list.

    Args:
        nodes: Host and port of each server of a list. Without any, there is one server.
    """

    def __init__(self, nodes: Sequence[Node] = ()) -> None:
        count = len(nodes)
        listed = [Server(node, at, f"{at + 1}/{count}") for at, node in enumerate(nodes)]
        self._servers = listed or [Server()]
        #: Makes a connection to a server.
        self.connect: Callable[[Server], Connection]
        #: Called when a server has not answered, once until it answers.
        self.on_away: list[Callable[[Server], None]] = []
        #: Called in a thread when a server that was away answers.
        self.on_back: list[Callable[[], None]] = []
        self._lock = native_lock()

    @property
    def are_several(self) -> bool:
        """Whether there may be more than one server."""
        return len(self._servers) > 1

    @property
    def any_away(self) -> bool:
        """Whether a server is away."""
        return any(server.problem for server in self._servers)

    def of(self, partition: int | None) -> Server:
        """Return the server of a partition, or of the home."""
        return self._servers[(partition or 0) % len(self._servers)]

    def lost(self, server: Server, error: BaseException) -> None:
        """Note that a server did not answer. It is away until it answers."""
        if not self.are_several or isinstance(error, ServerAway):
            return
        with self._lock:
            was_away, server.problem = server.problem, str(error) or type(error).__name__
        if was_away:
            return
        start_thread(lambda: self._await_answer(server))
        for call in list(self.on_away):
            call(server)

    def _await_answer(self, server: Server) -> None:
        bell, notices = Bell(), Notices(logger)
        while server.problem:
            bell.wait(PROBE_SECONDS)
            try:
                self._probe(server)
            except (RedisError, OSError):
                continue
            except Exception as error:  # noqa: BLE001 - without this thread it would stay away for ever
                text = str(error) or type(error).__name__
                notices.error("probe", "%s cannot be probed, it is tried again: %s", server, text)
                continue
            server.problem = ""
        for call in list(self.on_back):
            call()

    def _probe(self, server: Server) -> None:
        """Ask a server that is away. Raise if it does not answer."""
        self._ask(server, "PING")

    def _ask(self, server: Server, *command: str) -> None:
        connection = self.connect(server)
        try:
            # A missing right is an answer.
            with contextlib.suppress(NoPermissionError):
                connection.client().execute_command(*command)
        finally:
            connection.close()

    def class_of(self, connection_class: type[Any]) -> type[Any]:
        """Return the class of connections to a server."""
        return attentive(connection_class)


class ClusterServers(Servers):
    """The primaries of a cluster, of which each partition has that of its slot.

    A partition whose slot has no primary is on a server that is away.

    Args:
        seeds: Host and port of some nodes.
        partitions: The partitions.
    """

    are_several = True

    def __init__(self, seeds: Sequence[Node], partitions: Partitions) -> None:
        super().__init__()
        self._cluster = ClusterNodes(seeds)
        self._slots: dict[int | None, int] = {
            number: slot_of(names.prefix) for number, names in enumerate(partitions.names)
        }
        self._slots[None] = slot_of(partitions.home.prefix)
        self._prefixes = {
            self._slots[number]: names.prefix for number, names in enumerate(partitions.names)
        }
        self._prefixes[self._slots[None]] = partitions.home.prefix
        self._owners: dict[int, Node] = {}
        self._by_node: dict[Node, Server] = {}
        self._nowhere = self._servers[0]

    def __str__(self) -> str:
        return "the cluster"

    @property
    def any_away(self) -> bool:
        """Whether a server is away."""
        return bool(self._nowhere.problem) or any(
            server.problem for server in list(self._by_node.values())
        )

    def of(self, partition: int | None) -> Server:
        """Return the primary of a partition, or of the home."""
        slot = self._slots[partition]
        owner = self._owners.get(slot)
        if owner is None and not self._nowhere.problem:
            try:
                self._read_owners()
            except (RedisError, OSError) as error:
                self.lost(self._nowhere, error)
            owner = self._owners.get(slot)
        if owner is None:
            if not self._nowhere.problem:
                self.lost(self._nowhere, ServerNotReady(f"slot {slot} has no primary"))
            return self._nowhere
        server = self._by_node.get(owner)
        if server is None:
            server = self._by_node.setdefault(owner, Server(owner))
        return server

    def moved(self, slot: int, node: Node) -> None:
        """Note that a node named ``node`` as the primary of a slot."""
        self._owners[slot] = node

    def class_of(self, connection_class: type[Any]) -> type[Any]:
        """Return the class of connections to a node."""
        return at_node(self.moved, connection_class)

    def _read_owners(self) -> None:
        last = [node for node, server in list(self._by_node.items()) if server.problem]
        slots = set(self._slots.values())
        self._owners = self._cluster.owners(self._to_node, slots, last)

    def _to_node(self, host: str, port: int) -> Any:
        client = self.connect(Server((host, port))).client()
        return client.connection_pool.make_connection()

    def _probe(self, server: Server) -> None:
        # Another node may have become the primary of its slots.
        self._read_owners()
        if server is self._nowhere:
            missing = set(self._slots.values()) - self._owners.keys()
            if missing:
                raise ServerNotReady(f"slot {min(missing)} has no primary")
            return
        theirs = [slot for slot, owner in self._owners.items() if owner == server.node]
        if theirs:
            # A node that is down in its cluster answers a ping.
            self._ask(server, "EXISTS", self._prefixes[theirs[0]])


class PartedConnection(Connection):
    """Calls functions in partitions, each at the server that has it.

    Plain reads are those of the home.

    Args:
        address: The address of the home.
        partitions: The partitions.
        servers: Their servers.
        meet: Called with a server and its connection before the first call there.
        timeout_seconds, retries, make: Those of the home's connection.
    """

    def __init__(
        self,
        address: Address,
        partitions: Partitions,
        servers: Servers,
        meet: Callable[[Server, Connection], None],
        timeout_seconds: float = 2.0,
        retries: int = 1,
        make: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(
            *(address, timeout_seconds, retries, make, partitions.home.prefix), is_one_of=True
        )
        self._partitions, self.servers = partitions, servers
        self._meet = meet
        self._connections: dict[Server, Connection] = {}
        self._met = set[Server]()
        self._lock = native_lock()

    @property
    def place(self) -> str:
        """The place of the home's server in a list of servers, "" without a list."""
        return self.servers.of(None).place

    def at(self, prefix: str) -> Connection:
        """Return the connection to the server that has the keys of ``prefix``."""
        return self._connection_to(self.servers.of(self._partitions.find(prefix)))

    def execute(
        self, function: str, prefix: str, args: Sequence[Any], made: Library | None = None
    ) -> Any:
        """Call ``function`` at the server that has the keys of ``prefix``.

        Raises:
            ServerAway: The server does not answer, or did not answer lately.
        """
        until, partition = 0.0, self._partitions.find(prefix)
        while True:
            server = self.servers.of(partition)
            server.check()
            connection = self._connection_to(server)
            try:
                if server not in self._met:
                    self._meet(server, connection)
                    self._met.add(server)
                return connection.execute(function, prefix, args, made)
            except NotServed as error:
                now = time.monotonic()
                if until and now > until:
                    raise ServerNotReady(str(error)) from error
                if until or not error.has_moved:
                    time.sleep(PAUSE_SECONDS)
                until = until or now + self._timeout_seconds
            except (ConnectionLost, AnswerLate, OSError) as error:
                self.servers.lost(server, error)
                server.check(error)
                raise

    def unavailable(self, error: Exception) -> LimiterUnavailable:
        """Return the LimiterUnavailable for an error of redis-py, without a password."""
        cause = error.__cause__ if isinstance(error, ServerAway) else None
        return super().unavailable(cause if isinstance(cause, Exception) else error)

    def post(self, function: str, prefix: str, args: Sequence[Any]) -> None:
        """Call ``function`` at the server of ``prefix``, without waiting for its answer."""
        server = self.servers.of(self._partitions.find(prefix))
        if server.problem or server not in self._met:
            self.run(function, prefix, args)
        else:
            self._connection_to(server).post(function, prefix, args)

    def lost_at(self, prefix: str, error: BaseException) -> None:
        """Note that the server of ``prefix`` did not answer. Others may have its keys."""
        self.servers.lost(self.servers.of(self._partitions.find(prefix)), error)

    def load_library(self, prefix: str, made: Library | None = None) -> None:
        """Load the library if the server that has the keys of ``prefix`` lacks it."""
        self.at(prefix).load_library(prefix, made)

    def run_together(self, function: str, given: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """Call ``function`` with each prefix and its arguments, in one round trip for each server.

        Returns:
            The answers, in order. An error stands in the place of its answer.
        """
        answers: list[Any] = [None] * len(given)
        by_server: dict[Server, list[int]] = defaultdict(list)
        for index, (prefix, _) in enumerate(given):
            by_server[self.servers.of(self._partitions.find(prefix))].append(index)
        for server, indexes in by_server.items():
            try:
                server.check()
                pipe = self._connection_to(server).client().pipeline(transaction=False)
                for index in indexes:
                    prefix, args = given[index]
                    name = library().function(function)
                    pipe.execute_command("FCALL", name, 1, prefix, *args)
                found: Sequence[Any] = pipe.execute(raise_on_error=False)
            except NotServed:
                # Each goes to the node that has its slot by now. One that ran has the same answer.
                found = [self._or_error(function, *given[index]) for index in indexes]
            except (ConnectionLost, AnswerLate, OSError) as error:
                self.servers.lost(server, error)
                found = [error] * len(indexes)
            for index, answer in zip(indexes, found, strict=True):
                answers[index] = answer
        return answers

    def _or_error(self, function: str, prefix: str, args: Sequence[Any]) -> Any:
        try:
            return self.execute(function, prefix, args)
        except (RedisError, OSError) as error:
            return error

    def close(self) -> None:
        """Close the connections."""
        super().close()
        for connection in self._connections.values():
            connection.close()

    def _call(self, parts: Sequence[Any]) -> Any:
        home = self.servers.of(None)
        home.check()
        try:
            return super()._call(parts)
        except ServerNotReady:
            # Its node may serve other partitions.
            raise
        except (ConnectionLost, AnswerLate, OSError) as error:
            self.servers.lost(home, error)
            raise

    def _connection_to(self, server: Server) -> Connection:
        connection = self._connections.get(server)
        if connection is None:
            made = self.servers.connect(server)
            with self._lock:
                connection = self._connections.setdefault(server, made)
        return connection
