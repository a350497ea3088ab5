"""The sleep of a channel on its queues' wake-up lists, and the number of tasks that it claims.

A worker without free places for a queue does not wait on that queue's lists, which are for workers
with room. If it gets room while it sleeps, it wakes itself through a list of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_fairness.store.connection import pack
from celery_fairness.transport.lease_table import LeaseTable
from celery_fairness.transport.queue_shares import QueueShares, own_wakeup_list
from celery_fairness.transport.session import Claimant

if TYPE_CHECKING:
    _Channel = Any
else:
    _Channel = object

#: For a channel that does not serve a worker.
_NO_SHARES = QueueShares(LeaseTable(), {})


class WakeupsMixin(_Channel):  # type: ignore[misc]  # it stands before a class of kombu's
    """The part of a fair channel that sleeps and wakes."""

    fair_queues: list[str]
    stock_queues: list[str]
    serves_worker: bool
    _claimant: Claimant | None
    queues_without_room: list[str]

    @property
    def queue_shares(self) -> QueueShares:
        """The shares that bound this channel's claims."""
        queue_shares: QueueShares = self.session.queue_shares
        return queue_shares if self.serves_worker else _NO_SHARES

    def claimant(self) -> Claimant:
        """Return this channel's claimant."""
        self._claimant = self._claimant or self.session.borrow_claimant()
        return self._claimant

    def want(self) -> int:
        """Return the number of tasks that this channel may claim now."""
        free: int = 0 if self._closing else self.session.free(self.serves_worker)
        if not (self.serves_worker and self.session.slots) and self.qos.prefetch_count:
            free = min(free, self.qos.prefetch_count - len(self.claimed))
        return max(0, self.queue_shares.bound(free, self.fair_queues))

    def send_wait(self, fair: list[str], queues_without_room: list[str], seconds: float) -> None:
        """Wait for wake-ups of fair queues, and for messages of stock ones.

        Args:
            fair: Queues that may be claimed from.
            queues_without_room: Other queues, whose tasks wait for room.
            seconds: The longest wait, above 0.
        """
        prefix = self.session.prefix
        keys = [f"{prefix}bell:{queue}" for queue in fair]
        keys += [
            f"{prefix}left:{queue}"
            for queue in fair
            if queue not in self.scan_cursor.skipped_tenants
        ]
        keys += [own_wakeup_list(prefix, self.claimant().owner)] if queues_without_room else []
        keys += [
            self.global_keyprefix + self._q_for_pri(queue, priority)
            for priority in self.priority_steps
            for queue in self.stock_queues
        ]
        self.queues_without_room = queues_without_room
        self.client.connection.send_packed_command([pack(("BRPOP", *keys, f"{seconds:.3f}"))])

    def wake_if_room(self) -> None:
        """Wake from a wait that leaves out a queue which has room again."""
        if (
            self.queues_without_room
            and self._in_poll
            and self.queue_shares.divide(self.queues_without_room)[0]
        ):
            self.queues_without_room = []
            self.session.ring(self.claimant().owner)
