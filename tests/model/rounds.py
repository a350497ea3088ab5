"""In which order one claim asks its queues, and how much of each its process may take.

A process may have a share of its places for each queue; a claim is told what is left of each. In
the first round it takes of each queue in turn until nothing of it may start or its room is used up.
In the second it asks again those of whose limits something was left to another queue. Where places
are lent, two rounds more go to the queues whose room was used up: so whoever has room goes first.

A strict claim takes of the first queue until nothing of it may start or its room is used up, then
of the second. If one limit keeps tasks of both, a task of the first starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from celery_fairness.scheduler.types import Passing
from tests.model.candidates import Turns


class Rounds:
    """Of one claim.

    Args:
        asked: The queues in which something waits, in their order.
        turns: Says what was left to another queue.
        passing: Says how much room there is.
    """

    def __init__(self, asked: Sequence[str], turns: Turns, passing: Passing) -> None:
        self._asked = asked
        self._turns = turns
        self._rooms = dict(passing.rooms)
        self._lends = passing.lends
        self._is_strict = passing.strict
        if self._is_strict:
            turns.left = None
        self._turn = 0
        self._queues = self._with_room(asked)

    def _with_room(self, queues: Sequence[str]) -> list[str]:
        return [queue for queue in queues if self._rooms.get(queue, 1)]

    def queue(self) -> str | None:
        """Return whose turn it is; None where nobody's is any more."""
        while not self._queues:
            turns = self._turns
            if turns.left:
                # Those who are due before were not served all the same.
                self._queues, turns.left = self._with_room(list(dict.fromkeys(turns.left))), None
            elif self._lends:
                self._queues = [queue for queue in self._asked if self._rooms.get(queue) == 0]
                self._rooms, self._lends = {}, False
                turns.left = None if self._is_strict else []
            else:
                return None
        self._turn %= len(self._queues)
        return self._queues[self._turn]

    def took(self) -> None:
        """A task of the queue was taken."""
        queue = self._queues[self._turn]
        if queue in self._rooms:
            self._rooms[queue] -= 1
            if not self._rooms[queue]:
                del self._queues[self._turn]
                return
        if not self._is_strict:
            self._turn += 1

    def nothing(self) -> None:
        """Nothing of the queue may start."""
        del self._queues[self._turn]
