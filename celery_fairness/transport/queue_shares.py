"""A worker's share of its places for each of its queues, and the free part of it.

With ``strict``, a queue without free places gets no claims, and the worker does not wait on its
wake-up lists, which are for workers with room. With ``borrow``, claims include the queue. They get
its tasks for places that no queue with room can use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from celery_fairness.scheduler.lease_table import LeaseTable

#: How long an unread wake-up of one process stays, in ms: longer than a channel sleeps.
OWN_WAKEUP_MS = 2000


class QueueShares:
    """The shares of one process.

    Args:
        places: The number of places for each queue with a share.
        lends: Whether other queues may use places that their queue cannot use now.
    """

    def __init__(
        self, lease_table: LeaseTable, places: Mapping[str, int], lends: bool = False
    ) -> None:
        self._lease_table = lease_table
        self._places = dict(places)
        self.lends = lends

    def __bool__(self) -> bool:
        return bool(self._places)

    def left(self) -> dict[str, int]:
        """Return the free part of each queue's share."""
        if not self._places:
            return {}
        taken = self._lease_table.places_by_queue()
        return {queue: max(0, most - taken[queue]) for queue, most in self._places.items()}

    def divide(self, queues: list[str]) -> tuple[list[str], list[str]]:
        """Return the queues that may be claimed from, and the others."""
        if self.lends or not self._places:
            return queues, []
        left = self.left()
        has_room = [queue for queue in queues if left.get(queue, 1)]
        return has_room, [queue for queue in queues if queue not in has_room]

    def bound(self, free: int, queues: Sequence[str]) -> int:
        """Return how many of ``free`` places may take tasks of ``queues``."""
        if self.lends or not self._places:
            return free
        left = self.left()
        return min(free, sum(left.get(queue, free) for queue in queues))
