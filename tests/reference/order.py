"""Whose turn it is: the virtual time of a queue, and the turns of one claim among its queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Span(NamedTuple):
    """A virtual time that the specification fixes (``low == high``) or leaves open between two."""

    low: float
    high: float

    def later(self, other: Span) -> Span:
        """Return the larger of two times."""
        return Span(max(self.low, other.low), max(self.high, other.high))

    def after(self, amount: float) -> Span:
        """Return the time after a charge."""
        return Span(self.low + amount, self.high + amount)

    @property
    def is_fixed(self) -> bool:
        """Whether the specification fixes it."""
        return self.low == self.high


@dataclass
class Turns:
    """The virtual time of one queue.

    Attributes:
        time: The start of the tenant that was served last.
        tags: For each tenant, when its next task starts in virtual time.
        lags: A tenant may wait at a start before the time of the queue. A process passed it over,
            a priority went first, or a charge was corrected. Otherwise only a tenant that could
            not start lags behind, and it gets no credit for that.
    """

    time: Span = field(default_factory=lambda: Span(0.0, 0.0))
    tags: dict[str, Span] = field(default_factory=dict)
    lags: bool = False

    def start(self, key: str) -> Span:
        """Return when the next task of a waiting tenant starts."""
        own = self.tags[key]
        late = own.later(self.time)
        return Span(own.low, late.high) if self.lags else late

    def enter(self, key: str) -> None:
        """A tenant begins to wait: no credit for idle time, and no debt is forgiven."""
        self.tags[key] = self.tags.get(key, self.time).later(self.time)

    def serve(self, key: str, charge: float, corrects: bool) -> Span:
        """Charge a tenant for a start. Return its new start.

        A charge that is corrected later counts from the tenant's own start, with its credit.
        """
        start = self.start(key)
        self.time = self.time.later(start)
        self.tags[key] = (start if corrects else self.time).after(charge)
        return self.tags[key]

    def correct(self, key: str, waits: bool, finish: Span, missing: float) -> None:
        """The run of a task is over, and it was charged too little by ``missing``."""
        own = self.tags.get(key)
        if own and waits:
            # It has entered again since then, or it will enter with the corrected start.
            own = Span(own.low, own.later(self.time).high)
        elif own is None or own.low <= self.time.high:
            # Its debt may be forgotten. Then the new debt is not more than what was missing.
            anew = Span(min(finish.low, self.time.low), min(finish.high, self.time.high))
            own = own or anew
            own = Span(min(own.low, anew.low), max(own.high, anew.high))
        self.tags[key] = own.after(missing)
        self.lags = True

    def forget_debts(self, waiting: Iterable[str], certain: bool) -> None:
        """No other tenant can start a task: the time goes on behind all debts."""
        debts = [tag for key, tag in self.tags.items() if key not in set(waiting)]
        if not debts:
            return
        last = self.time.later(Span(max(d.low for d in debts), max(d.high for d in debts)))
        self.time = last if certain else Span(self.time.low, last.high)


class Rounds:
    """The order in which one claim takes from its queues.

    In the first round each queue has turns until nothing of it may start or its room is used up.
    The second round has the queues that left the turn of a shared limit to another queue. If a
    process lends its places, two more rounds have the queues whose room was used up.

    A task that expires at its turn uses this turn, unless the call expired it before.

    A strict claim takes from its first queue until nothing of it may start, then from the next.
    """

    def __init__(
        self,
        queues: Sequence[str],
        rooms: Mapping[str, int],
        lends: bool,
        strict: bool,
        expired: Mapping[str, int],
    ) -> None:
        self.asked = list(dict.fromkeys(queues))
        self.rooms = dict(rooms)
        self.lends = lends
        self.strict = strict
        self.expired = Counter(expired)
        self.left: list[str] = []
        self.leaves = not strict
        self.turn = 0
        self.queues = [queue for queue in self.asked if self.rooms.get(queue, 1) > 0]

    def next_queue(self) -> str | None:
        """Return the queue whose turn it is, or None if no queue has one."""
        if not self.queues and self.left:
            self.queues = [queue for queue in self.left if self.rooms.get(queue, 1) > 0]
            self.left, self.leaves, self.turn = [], False, 0
        if not self.queues and not self.left and self.lends:
            self.queues = [queue for queue in self.asked if self.rooms.get(queue) == 0]
            self.rooms, self.lends, self.turn = {}, False, 0
            self.leaves = not self.strict
        if not self.queues:
            return None
        self.turn %= len(self.queues)
        return self.queues[self.turn]

    def end(self, is_over: Callable[[str], None], may_leave: Callable[[str], bool]) -> None:
        """No queue has a turn any more. The arguments are those of `accept`."""
        self.accept("", is_over, may_leave)

    def taken(self, queue: str) -> None:
        """A task of the queue was taken."""
        if queue in self.rooms:
            self.rooms[queue] -= 1
            if self.rooms[queue] == 0:
                self.queues.pop(self.turn)
                return
        if not self.strict:
            self.turn += 1

    def over(self, may_leave: bool) -> None:
        """Nothing of the queue may start, or it leaves its turn to another queue."""
        queue = self.queues.pop(self.turn)
        if may_leave and self.leaves and queue not in self.left:
            self.left.append(queue)

    def accept(
        self, queue: str, is_over: Callable[[str], None], may_leave: Callable[[str], bool]
    ) -> bool:
        """Go on to a queue of which a task was taken. Return whether it had a turn.

        Args:
            queue: Of the task.
            is_over: Raises if something of a queue had to start before.
            may_leave: Whether a queue may have left its turn to another one.
        """
        while (next_queue := self.next_queue()) is not None:
            if next_queue == queue:
                self.taken(queue)
                return True
            if self.expired[next_queue] > 0:
                self.expired[next_queue] -= 1
                self.turn += not self.strict
                continue
            is_over(next_queue)
            self.over(may_leave(next_queue))
        return False
