"""Connections to the primary of one hash slot of a Redis Cluster.

All keys of an installation share a hash tag, so they are in one slot. When a connection connects,
it reads the slot's primary from a node, as redis-py's Sentinel connection reads a master from a
Sentinel. All that works on one Redis then works in the slot: transactions, pipelines, blocking
commands, a polled socket. A client of the whole cluster needs two more round trips a function.

    MOVED        another node has the slot. The command did not run, so it goes there at once
    ASK          the slot moves key by key, and a part of its keys is on each of two nodes. No
                 function may run until the move ends, so the caller waits
    CLUSTERDOWN, TRYAGAIN   the caller waits too

Callers wait for an absent slot only while it has been absent for PATIENCE_SECONDS. Then each call
fails at once. Otherwise a web process, or the loop of a worker, would stand still all the time.

ASKING is never sent: the first key of a function exists nowhere, so a function would run on the new
node's empty tables (ADR 19).
"""

from __future__ import annotations

import binascii
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from redis.backoff import ConstantBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import TimeoutError as AnswerLate
from redis.retry import Retry

from celery_fairness.compat.redis_redirects import Redirect, is_cross_slot, redirect_of
from celery_fairness.errors import SettingsError
from celery_fairness.store.readiness import ServerNotReady, attentive, not_ready

SLOTS = 16384
#: Pause before a command is sent again, in seconds.
PAUSE_SECONDS = 0.05
#: How often it is sent again: a producer waits for so many pauses, which are 2 s.
TRIES = 40
#: How long callers wait for an absent slot, in seconds: longer than all tries of Celery's retries.
PATIENCE_SECONDS = 10.0
#: An absence ends when no command has met it for so long, in seconds.
ABSENCE_ENDS_SECONDS = 2.0
#: A slot is between two nodes, or has no primary: first words of a ServerNotReady.
_NO_NODE = ("ASK", "CLUSTERDOWN", "TRYAGAIN")
#: A node reaches too few others. In the text of a CLUSTERDOWN.
_IS_DOWN = "cluster is down"

#: Longest wait for an answer to CLUSTER SLOTS, in seconds. A result backend waits 120 s by default.
ASK_SECONDS = 2.0
#: The host of a node without a name, in a cluster that wants names.
NO_NAME = "?"

Node = tuple[str, int]


class SlotMoved(ServerNotReady):
    """Another node has the slot. The command did not run, so it may be sent again at once."""


class SlotAway(ServerNotReady):
    """No node runs functions on the slot now. The command did not run."""


class NotServed(RedisError):
    """A node does not serve the slot of one command, and serves others. The command did not run.

    Attributes:
        has_moved: Whether another node has the slot, so that the command may go there at once.
    """

    def __init__(self, text: str, has_moved: bool) -> None:
        super().__init__(text)
        self.has_moved = has_moved


def hash_tag(key: str) -> str:
    """Return the part of a key that alone decides its slot, "" if there is none."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if opened and closed else ""


def slot_of(key: str) -> int:
    """Return the hash slot of a key."""
    return binascii.crc_hqx((hash_tag(key) or key).encode(), 0) % SLOTS


class ClusterNodes:
    """Reads from the nodes of a cluster which primary has which slots.

    Args:
        seeds: Host and port of some nodes. The first that answers is enough.
    """

    def __init__(self, seeds: Sequence[Node]) -> None:
        self._seeds = tuple(seeds)
        #: Nodes of the cluster, as a node named them last.
        self._nodes: tuple[Node, ...] = ()
        #: The node that answered last.
        self._asked: Node | None = None

    def owners(
        self,
        connect: Callable[[str, int], Any],
        slots: Collection[int],
        last: Collection[Node] = (),
    ) -> dict[int, Node]:
        """Return the primary of each slot that has one.

        Args:
            connect: Makes a connection of redis-py to a node.
            slots: The slots.
            last: Nodes that did not answer lately. They are tried after the others.

        Raises:
            ConnectionLost: No node names a primary. The text has the reason of the last one.
            AuthenticationError: So too, and the last one rejects the user, or lacks a right of it.
        """
        problem, kind = "no address", ConnectionLost
        nodes = list(dict.fromkeys((*self._nodes, *self._seeds)))
        if self._asked in nodes:
            # A primary that the others do not reach names itself for as long as that lasts.
            after = nodes.index(self._asked) + 1
            nodes = nodes[after:] + nodes[:after]
        for node in sorted(nodes, key=lambda each: each in last):
            try:
                rows = _slots(connect(*node))
            except (RedisError, OSError) as error:
                problem = str(error) or type(error).__name__
                is_rejected = isinstance(error, (AuthenticationError, NoPermissionError))
                kind = AuthenticationError if is_rejected else ConnectionLost
                continue
            self._asked = node
            self._nodes = tuple(_named(each, node) for row in rows for each in row[2:])
            found = {
                slot: _named(row[2], node)
                for slot in slots
                for row in rows
                if row[0] <= slot <= row[1]
            }
            if found:
                return found
            problem, kind = f"CLUSTERDOWN: slot {min(slots)} has no primary", ConnectionLost
        raise kind(f"no node of the cluster names the primary of its slot: {problem}")


class SlotPrimary:
    """Finds the primary of one slot, from any node of its cluster.

    Args:
        seeds: Host and port of some nodes. The first that answers is enough.
        slot: The slot.
    """

    def __init__(self, seeds: Sequence[Node], slot: int) -> None:
        self._cluster = ClusterNodes(seeds)
        self.slot = slot
        self._known: Node | None = None
        #: The first and the last time at which a command met the absence of the slot.
        self._absent_from = self._absent_at = float("-inf")

    def address(self, connect: Callable[[str, int], Any]) -> Node:
        """Return host and port of the primary.

        Args:
            connect: Makes a connection of redis-py to a node.

        Raises:
            ConnectionLost: No node names it. The text has the reason of the last one.
            AuthenticationError: So too, and the last one rejects the user, or lacks a right of it.
        """
        # Two threads may ask at once, which costs a call and no lock.
        known = self._known
        if known is None:
            known = self._known = self._cluster.owners(connect, (self.slot,))[self.slot]
        return known

    def moved(self, node: Node) -> None:
        """Note that a node named ``node`` as the primary."""
        self._known = node

    def lost(self, node: Node) -> None:
        """Note that ``node`` does not answer as the primary."""
        if self._known == node:
            self._known = None

    def absent(self, text: str) -> ServerNotReady:
        """Return the error for a slot without a node: a SlotAway while callers wait for it."""
        now = time.monotonic()
        if now - self._absent_at > ABSENCE_ENDS_SECONDS:
            self._absent_from = now
        self._absent_at = now
        waits = now - self._absent_from < PATIENCE_SECONDS
        return SlotAway(text) if waits else ServerNotReady(text)


def _slots(connection: Any) -> list[Any]:
    try:
        connection.send_command("CLUSTER", "SLOTS")
        rows: list[Any] = connection.read_response()
        return rows
    finally:
        connection.disconnect()


def _named(node: Sequence[Any], asked: Node) -> Node:
    """Return host and port of a node in the answer of ``asked``."""
    host, port, *more = node
    host = _text(host)
    if host == NO_NAME:
        # Its address is among the last facts, which are a map in RESP3.
        facts = more[1] if len(more) > 1 else ()
        pairs = facts.items() if isinstance(facts, dict) else zip(*[iter(facts)] * 2, strict=True)
        host = next((_text(value) for fact, value in pairs if _text(fact) == "ip"), None)
    # An empty host is that of the node which answered.
    return host or asked[0], int(port)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def leading_to(
    primary: SlotPrimary, connection_class: type[Any], asking: type[Any] | None = None
) -> type[Any]:
    """Return a subclass of a connection class that connects to the slot's primary.

    Args:
        primary: Finds the primary.
        connection_class: The class.
        asking: The class of the connections that ask for the primary, if it is another.
    """
    plain: Any = attentive(asking or connection_class)

    class SlotConnection(attentive(connection_class)):  # type: ignore[misc]  # it is a value
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._given = args, dict(kwargs)
            # A client of redis-py then sends such a command again.
            again = (SlotMoved, SlotAway)
            kwargs["retry"] = Retry(ConstantBackoff(PAUSE_SECONDS), TRIES, supported_errors=again)
            kwargs["retry_on_error"] = list(again)
            super().__init__(*args, **kwargs)

        def _asks(self, host: str, port: int) -> Any:
            args, kwargs = self._given
            names = ("socket_timeout", "socket_connect_timeout")
            times = {name: min(kwargs.get(name) or ASK_SECONDS, ASK_SECONDS) for name in names}
            return plain(*args, **{**kwargs, **times, "host": host, "port": port})

        def _connect(self) -> Any:
            # Not in `connect`: a closed connection that sends comes only here.
            self.host, self.port = primary.address(self._asks)
            try:
                return super()._connect()
            except (ConnectionLost, AnswerLate, OSError):
                primary.lost((self.host, self.port))
                raise

        def read_response(self, *args: Any, **kwargs: Any) -> Any:
            try:
                answer = super().read_response(*args, **kwargs)
            except ResponseError as error:
                if (redirect := redirect_of(error)) is None:
                    raise
                self._follow(redirect)
            except ServerNotReady as error:
                primary.lost((self.host, self.port))
                if str(error).startswith(_NO_NODE):
                    raise primary.absent(str(error)) from error
                raise
            except (ConnectionLost, AnswerLate, OSError):
                primary.lost((self.host, self.port))
                raise
            if type(answer) is list:
                # The answer of a transaction has the errors of its commands.
                for each in answer:
                    if isinstance(each, ResponseError) and (redirect := redirect_of(each)):
                        self._follow(redirect)
            return answer

        def _follow(self, redirect: Redirect) -> None:
            self.disconnect()
            node = redirect.host or self.host, redirect.port
            where = f"{redirect.slot} {node[0]}:{node[1]}"
            if redirect.is_moved:
                if redirect.host == NO_NAME:
                    # CLUSTER SLOTS has its address.
                    primary.lost((self.host, self.port))
                else:
                    primary.moved(node)
                raise SlotMoved(f"MOVED {where}")
            raise primary.absent(f"ASK {where}")

    return SlotConnection


def at_node(moved: Callable[[int, Node], None], connection_class: type[Any]) -> type[Any]:
    """Return a subclass of a connection class that leads to one node, for commands of many slots.

    Args:
        moved: Called with a slot and the node that has it by now.
        connection_class: The class.
    """

    class NodeConnection(connection_class):  # type: ignore[misc]  # it is a value
        def read_response(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().read_response(*args, **kwargs)
            except ResponseError as error:
                redirect = redirect_of(error)
                if redirect is None:
                    away = not_ready(error)
                    if away is None or not str(away).startswith(_NO_NODE):
                        raise
                    if _IS_DOWN in str(away):
                        # It is down for all slots, and maybe it alone: then others have its slots.
                        raise ConnectionLost(str(away)) from error
                    raise NotServed(str(away), has_moved=False) from error
                node = redirect.host or self.host, redirect.port
                # A node without a name is found in CLUSTER SLOTS.
                if redirect.is_moved and redirect.host != NO_NAME:
                    moved(redirect.slot, node)
                word = "MOVED" if redirect.is_moved else "ASK"
                text = f"{word} {redirect.slot} {node[0]}:{node[1]}"
                raise NotServed(text, has_moved=redirect.is_moved) from error

    return attentive(NodeConnection)


def of_one_redis(connection_class: type[Any], address: str) -> type[Any]:
    """Return a subclass of a connection class that a node of a cluster ends.

    Otherwise a broker would work with some names of queues, and fail with others.
    """

    class OneRedisConnection(attentive(connection_class)):  # type: ignore[misc]  # it is a value
        def read_response(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().read_response(*args, **kwargs)
            except ResponseError as error:
                if not (redirect_of(error) or is_cross_slot(error)):
                    raise
                self.disconnect()
                raise SettingsError(
                    "broker_url: expected faircluster:// or fairclusters:// for a node of a "
                    f"cluster, got: {address}"
                ) from None

    return OneRedisConnection
