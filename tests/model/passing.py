"""What one claim passes over: tasks that may start, and not in the process that asks.

Whatever it passes over keeps its place for everybody else. The head of a lane that is of a kind it
does not take is set aside: it stands before the lane from now on, as what came back does, and the
lane is looked at further. So each task is met once, and what stands behind it is served.

A claim makes a bounded number of these moves, and passes by a bounded number of lanes that its
process is full of. One that found nothing meanwhile says where it stopped, and the next goes on
there: neither a crowd of tenants that all wait for another worker nor one of many lanes hides
anybody.

Weakness: what was passed over is counted by places of the ring. Where a claim also takes from or
opens a group, others may come to stand at these places, and wait for a later claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from celery_fairness.config.limit_spec import Limit, read_limits
from celery_fairness.scheduler.types import Passing
from tests.model.budget import Budget
from tests.model.lanes import Lanes, Part, Task

Local = Callable[[Limit], int | None]
#: Parts of one tenant's lanes in one queue that a claim looks at.
LANES_AT_MOST = 1024


class Look:
    """What one claim does not take, and how far it looked.

    Args:
        passing: What it was told.
        budget: How many tenants and lanes it passes over, and heads it sets aside, at most.
        local: Of a limit of a queue, how many slots one process may hold; None where no queue says
            that.
    """

    def __init__(self, passing: Passing, budget: Budget, local: Local | None = None) -> None:
        self._never = set(passing.never)
        self._once = set(passing.once)
        self._local = local
        self.passes = bool(passing.never or passing.once or local)
        self.moves, self.lanes = budget.passed, budget.lanes
        #: By queue, how many members of its ring were passed over.
        self.places = dict(passing.places) if self.passes else {}
        self._held = Counter(passing.held)

    def open_part(self, lanes: Lanes) -> Part | None:
        """Return the first part whose head is taken; None: none is, or no move or lane is left."""
        parts = lanes.in_order()[:LANES_AT_MOST]
        while parts:
            part, before = parts.pop(0), self.moves
            if self.is_full(part.lane.limits):
                if not self.lanes:
                    return None
                self.lanes -= 1
                continue
            if part.kind is not None:
                if part.kind not in self._never:
                    return part
                continue
            while part in lanes.lists and not self.takes(lanes.lists[part][0]):
                if not self.spend():
                    return None
                lanes.put_back(lanes.pop(part))
            if part not in lanes.lists:
                continue
            # Without what was set aside it stands further back.
            at, places = lanes.order_of(part), map(lanes.order_of, parts)
            behind = next((n for n, place in enumerate(places) if place > at), len(parts))
            if self.moves == before or not behind:
                return part
            parts.insert(behind, part)
        return None

    def takes(self, task: Task) -> bool:
        """Say whether a task is of a kind that is taken."""
        return task.kind not in self._never

    def is_full(self, limits: str) -> bool:
        """Say whether this process holds as much as it may of a limit whose numbers are a queue's.

        Args:
            limits: Of a lane, or that of a queue as a whole, as one word.
        """
        return self._local is not None and any(
            limit.of and self._is_full(limit, self._local(limit)) for limit in read_limits(limits)
        )

    def _is_full(self, limit: Limit, most: int | None) -> bool:
        return most is not None and self._held[limit.key] >= most

    def stay(self, queue: str) -> None:
        """This process holds as much as it may of a queue: it is not to hear of what is left."""
        self.places.setdefault(queue, 0)

    def pass_over(self, queue: str) -> bool:
        """Leave a tenant where it is; False where no move is left."""
        if not self.spend():
            return False
        self.places[queue] = self.places.get(queue, 0) + 1
        return True

    def spend(self) -> bool:
        """Take one move; False where none is left."""
        if not self.moves:
            return False
        self.moves -= 1
        return True

    def took(self, task: Task) -> None:
        """One task was taken."""
        if task.kind in self._once:
            self._never.add(task.kind)
        self._held.update(task.keys)
