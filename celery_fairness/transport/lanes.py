"""The connections of a channel to the servers of its partitions, which the loop polls.

Each server has a lane with at most one open request, and no lane waits for another. A request is a
row of calls in one write, whose answers come in their order:

    greeting   read the epochs of partitions that this connection has not met
    claim      take tasks of a partition, and carry the ends of its tasks
    bell       take one partition from the bells of new tasks (the home alone)
    ring       ring bells for other workers (the home alone)

A request without an answer for LATE_SECONDS is *late*: its claims keep no places free any more.
After LOST_SECONDS, its connection is closed. Its claims are sent again under the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any, NamedTuple

from celery_fairness.compat.redis_pool import take_connection
from celery_fairness.scheduler.types import Settle
from celery_fairness.store.servers import Server
from celery_fairness.transport.ring_merge import Look

#: After so long an open request is late, in seconds.
LATE_SECONDS = 0.1
#: After so long its connection is closed, in seconds.
LOST_SECONDS = 3.0


class Greeting(NamedTuple):
    """A read of an epoch.

    Attributes:
        partition: The partition, None for the home.
    """

    partition: int | None


class Claiming(NamedTuple):
    """A claim.

    Attributes:
        look: What it takes.
        epoch: The epoch that it carries.
        ends: The ends that it carries.
        is_again: Whether it was sent before.
    """

    look: Look
    epoch: int | None
    ends: Sequence[Settle]
    is_again: bool


class Bell(NamedTuple):
    """A look at the bells."""


class Ring(NamedTuple):
    """Rings the bells of a partition.

    Attributes:
        partition: The partition.
        new: Queues to which a task came.
        left: Queues in which a claim has left tasks.
    """

    partition: int
    new: set[str]
    left: set[str]


Call = Greeting | Claiming | Bell | Ring


class Lane:
    """One server's connection of a channel, and the request that is open on it.

    kombu's poller takes it for a client, and reads its ``connection``.

    Args:
        server: The server.
        client: A client of redis-py for this lane alone.
    """

    def __init__(self, server: Server, client: Any) -> None:
        self.server = server
        self._client = client
        self.connection: Any = None
        #: The calls of the open request.
        self.calls: list[Call] = []
        self.sent_at = 0.0
        #: Whether the open request has no answer for a while.
        self.is_late = False
        #: The partitions that this connection has met. None stands for the home.
        self.met = set[int | None]()

    @property
    def is_open(self) -> bool:
        """Whether a request has no answer yet."""
        return bool(self.calls)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self.connection is not None and self.connection._sock is not None

    @property
    def wants(self) -> int:
        """The places that the open request keeps free."""
        if self.is_late:
            return 0
        return sum(call.look.want for call in self.calls if isinstance(call, Claiming))

    @property
    def ends(self) -> list[Settle]:
        """The ends that the open request carries."""
        return [end for each in self.calls if isinstance(each, Claiming) for end in each.ends]

    def connect(self) -> None:
        """Connect. This waits for the server, so it must not be away."""
        if self.connection is None:
            self.connection = take_connection(self._client)
        else:
            self.connection.connect()
        self.met.clear()

    def send(self, calls: Sequence[Call], packed: Sequence[bytes]) -> None:
        """Send a request."""
        self.calls, self.sent_at, self.is_late = list(calls), monotonic(), False
        # A check of the health would wait for its answer.
        self.connection.send_packed_command([b"".join(packed)], check_health=False)

    def drop(self) -> None:
        """Forget the open request."""
        self.calls, self.is_late = [], False

    def close(self) -> None:
        """Close the connection. The open request has no answer."""
        self.drop()
        self.met.clear()
        if self.connection is not None:
            # The poller looks for the lane by its connection.
            self.connection.disconnect()
            self._client.connection_pool.release(self.connection)
            self.connection = None
