"""A worker's share of its places for each of its queues, and how much of it is left.

``strict``: of a queue whose places are all taken nothing is claimed, and nothing of it is heard:
its bells are for workers that have room. ``borrow``: claims ask for it all the same, and get of it
what no queue with room can use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from celery_fairness.transport.book import LeaseTable

#: How long the bell of a claimant stays that does not hear it, in ms: longer than it sleeps.
ROOM_BELL_MS = 2000


def room_bell(prefix: str, owner: str) -> str:
    """Return the key of the bell by which a process wakes a claimant of its own."""
    return f"{prefix}room:{owner}"


class QueueShares:
    """Of one process.

    Args:
        book: What it holds.
        places: By queue, so many of the worker's places; of other queues any number.
        lends: Places that their queue cannot use now are lent to the others.
    """

    def __init__(self, book: LeaseTable, places: Mapping[str, int], lends: bool = False) -> None:
        self._book = book
        self._places = dict(places)
        self.lends = lends

    def __bool__(self) -> bool:
        return bool(self._places)

    def left(self) -> dict[str, int]:
        """Return by queue how many tasks may be claimed of its share."""
        if not self._places:
            return {}
        taken = self._book.places_of_queues()
        return {queue: max(0, most - taken[queue]) for queue, most in self._places.items()}

    def divide(self, queues: list[str]) -> tuple[list[str], list[str]]:
        """Return those of some queues that may be claimed from, and the others."""
        if self.lends or not self._places:
            return queues, []
        left = self.left()
        has_room = [queue for queue in queues if left.get(queue, 1)]
        return has_room, [queue for queue in queues if queue not in has_room]

    def bound(self, free: int, queues: Sequence[str]) -> int:
        """Return how many of ``free`` places tasks of some queues may have."""
        if self.lends or not self._places:
            return free
        left = self.left()
        return min(free, sum(left.get(queue, free) for queue in queues))
