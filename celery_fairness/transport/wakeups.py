"""How a channel sleeps, on the bells of its queues, and how many tasks it asks for when awake.

A worker whose places for a queue are all taken does not hear that queue's bells: they are for those
who have room. When it has room again while it sleeps, it wakes itself by a bell of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_fairness.store.connection import pack
from celery_fairness.transport.book import LeaseTable
from celery_fairness.transport.queue_shares import QueueShares, room_bell
from celery_fairness.transport.session import Claimant

if TYPE_CHECKING:
    _Channel = Any
else:
    _Channel = object

#: Of a channel that does not serve a worker.
_NO_SHARES = QueueShares(LeaseTable(), {})


class WakeupsMixin(_Channel):  # type: ignore[misc]  # it stands before a class of kombu's
    """The part of a fair channel that sleeps and wakes."""

    fair_queues: list[str]
    stock_queues: list[str]
    serves_worker: bool
    _claimant: Claimant | None
    deaf_to: list[str]

    @property
    def rooms(self) -> QueueShares:
        """What this channel may take of each queue."""
        rooms: QueueShares = self.home.rooms
        return rooms if self.serves_worker else _NO_SHARES

    def claimant(self) -> Claimant:
        """Return who claims for this channel."""
        self._claimant = self._claimant or self.home.borrow_claimant()
        return self._claimant

    def want(self) -> int:
        """Return how many tasks this channel may claim now."""
        free: int = 0 if self._closing else self.home.free(self.serves_worker)
        if not (self.serves_worker and self.home.slots) and self.qos.prefetch_count:
            free = min(free, self.qos.prefetch_count - len(self.claimed))
        return max(0, self.rooms.bound(free, self.fair_queues))

    def send_wait(self, fair: list[str], deaf_to: list[str], seconds: float) -> None:
        """Wait for the bells of fair queues, and for messages of stock ones.

        Args:
            fair: Queues that may be claimed from.
            deaf_to: Others that wait for room.
            seconds: How long, above 0.
        """
        prefix = self.home.prefix
        keys = [f"{prefix}bell:{queue}" for queue in fair]
        keys += [f"{prefix}left:{queue}" for queue in fair if queue not in self.looks.passed]
        keys += [room_bell(prefix, self.claimant().owner)] if deaf_to else []
        keys += [
            self.global_keyprefix + self._q_for_pri(queue, priority)
            for priority in self.priority_steps
            for queue in self.stock_queues
        ]
        self.deaf_to = deaf_to
        self.client.connection.send_packed_command([pack(("BRPOP", *keys, f"{seconds:.3f}"))])

    def hear_rooms(self) -> None:
        """Wake from a wait that is deaf to a queue for which there is room again."""
        if self.deaf_to and self._in_poll and self.rooms.divide(self.deaf_to)[0]:
            self.deaf_to = []
            self.home.ring(self.claimant().owner)
