"""The rings of the partitions, as one channel has read them, and how it divides its places.

A ring is the tenants of one queue in one partition, in the order of their starts. A channel takes
the next task from the ring whose first start is the least, so all tenants of all partitions take
turns. It reads the first starts in the answers to its own claims, so they may be old. A wrong start
costs a call. It costs no tenant its turn, because a claim stops at the start of the next ring.

A channel looks at each partition when the time has come that the last answer named, or when its
bell has rung. It takes at most one task of a partition that it has not looked at.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from celery_fairness.scheduler.types import Claim
from celery_fairness.transport.scan_cursor import ScanCursor
from celery_fairness.transport.task_filter import TaskFilter

#: Partitions that one request looks at because their time has come.
LOOKS_AT_MOST = 16
#: The charges by which the first turn of another ring may be later than this channel has read. A
#: claim that stops at an old turn finds nothing. Without this, every second claim of ten workers
#: with 16 partitions does (`make bench ARGS="--only merge"`).
OLD_AT_MOST = 4.0
#: The state of the rings in a claim without a merge.
NO_RING: Mapping[str, Any] = {"floors": {}, "tills": {}, "is_woken": False}


class First(NamedTuple):
    """The first turn of a ring. The lesser one goes first.

    Attributes:
        behind: 9 less its rank if ranks order the queue, otherwise 9.
        start: Its start, in the charges of its queue.
    """

    behind: int
    start: float

    def later(self) -> First:
        """Return the turn after one charge more."""
        return First(self.behind, self.start + 1.0)


@dataclass(slots=True)
class Look:
    """One claim of a request.

    Attributes:
        partition: The partition that it calls.
        want: The most tasks that it takes.
        is_woken: Whether it follows a bell, or a look after its time.
        tills: By queue, the turn behind which it takes nothing.
    """

    partition: int
    want: int = 0
    is_woken: bool = False
    tills: Mapping[str, First] = field(default_factory=dict)


class _Partition:
    """The state of one partition, as the channel has read it."""

    def __init__(self, task_filter: TaskFilter) -> None:
        self.firsts: dict[str, First] = {}
        self.debts: dict[str, float] = {}
        self.look_at = 0.0
        self.is_woken = self.is_unread = True
        #: Queues that the last look left out, because the worker had no room for their tasks.
        self.left_out = set[str]()
        self.cursor = ScanCursor(task_filter)


class RingMerge:
    """The rings of one channel.

    Args:
        count: The number of partitions.
        task_filter: The tasks that the process skips.
    """

    def __init__(self, count: int, task_filter: TaskFilter) -> None:
        self._partitions = [_Partition(task_filter) for _ in range(count)]
        #: The partitions whose servers do not answer now. Turns go on without them.
        self.away = set[int]()
        #: By queue, the latest start that a ring has served.
        self._at: dict[str, float] = {}

    def cursor(self, partition: int) -> ScanCursor:
        """Return the position of the scan of a partition."""
        return self._partitions[partition].cursor

    @property
    def skipped(self) -> set[str]:
        """The queues of which the last claim of a partition has skipped tasks."""
        return {queue for each in self._partitions for queue in each.cursor.skipped_tenants}

    def look_again(self, partition: int | None = None, *, is_woken: bool = True) -> None:
        """Look at a partition, or at all of them, with the next request.

        ``is_woken`` is whether its bell has woken this channel. A channel that was awake leaves the
        wake-ups of the partition, or each put would ring again while all workers are busy.
        """
        for each in self._partitions if partition is None else [self._partitions[partition]]:
            each.look_at, each.is_woken = 0.0, is_woken

    def forget(self, partition: int) -> None:
        """Read the rings of a partition anew, whose server answers again."""
        there = self._partitions[partition]
        there.firsts.clear()
        there.look_at, there.is_woken, there.is_unread = 0.0, True, True

    def seconds_to_look(self, queues: Sequence[str], now: float) -> float:
        """Return the time until the next request has something to do, in seconds."""
        there = [each for _, each in self._there()]
        if any(queue in each.firsts for each in there for queue in queues):
            return 0.0
        if any(not each.left_out.isdisjoint(queues) for each in there):
            return 0.0
        return max(0.0, min((each.look_at for each in there), default=float("inf")) - now)

    def _there(self) -> Iterator[tuple[int, _Partition]]:
        pairs = enumerate(self._partitions)
        return (pair for pair in pairs if pair[0] not in self.away) if self.away else pairs

    # -- the request ------------------------------------------------------------------------------

    def plan(
        self,
        queues: Sequence[str],
        want: int,
        now: float,
        is_strict: bool,
        takes_of_one: bool,
        without_room: Sequence[str] = (),
        busy: AbstractSet[int] = frozenset(),
    ) -> list[Look]:
        """Return the claims of the next request, with at most ``want`` tasks in all.

        Args:
            queues: The queues, in the order of their turns.
            want: The number of free places.
            now: The time (monotonic seconds).
            is_strict: Whether a queue is served only if the queues before it have no task to start.
            takes_of_one: Whether only one partition is taken from, because all claims share a bound
                that each of them would reach alone.
            without_room: Consumed queues that the request leaves out.
            busy: Partitions whose servers have an open request. Their places stay free for them.
        """
        firsts = {queue: self._firsts_of(queue) for queue in queues}
        wants = Counter[int]()
        # Before that, the first turn of all may be in a partition that has not answered yet.
        if not any(each.is_unread for _, each in self._there()):
            wants = _divided({queue: dict(each) for queue, each in firsts.items()}, want, is_strict)
        if takes_of_one:
            wants = Counter(dict.fromkeys(list(wants)[:1], want))
        looks = {
            number: Look(number, most, tills=_tills(firsts, number, self._at))
            for number, most in wants.items()
            if number not in busy
        }
        left = 0 if wants else want
        for number in self._due(queues, now, busy):
            # What the look does not see now is looked at when the worker has room.
            left_out = self._partitions[number].left_out
            left_out.difference_update(queues)
            left_out.update(without_room)
            look = looks.setdefault(number, Look(number, min(1, left)))
            look.is_woken = self._partitions[number].is_woken
            left = 0 if takes_of_one else max(0, left - look.want)
        return list(looks.values())

    def floors(self, queues: Sequence[str]) -> dict[str, float]:
        """Return by queue the start to which rings without a turn move on."""
        return {queue: self._at[queue] for queue in queues if queue in self._at}

    def _firsts_of(self, queue: str) -> dict[int, First]:
        return {
            number: each.firsts[queue] for number, each in self._there() if queue in each.firsts
        }

    def _due(self, queues: Sequence[str], now: float, busy: AbstractSet[int]) -> list[int]:
        due = [
            number
            for number, each in self._there()
            if number not in busy
            and (each.look_at <= now or (each.left_out and not each.left_out.isdisjoint(queues)))
        ]
        due.sort(key=lambda number: self._partitions[number].look_at)
        return due[:LOOKS_AT_MOST]

    # -- the answer -------------------------------------------------------------------------------

    def read(self, look: Look, claim: Claim, now: float) -> None:
        """Read the answer to one claim of a request."""
        partition = self._partitions[look.partition]
        seconds, is_empty = claim.sleep_ms / 1000, look.want > 0 and not claim.tasks
        if look.want:
            seconds = partition.cursor.read_answer(claim)
        partition.look_at, partition.is_woken, partition.is_unread = now + seconds, True, False
        rings: Mapping[str, Any] = claim.ring.get("rings", {})
        for queue, ring in rings.items():
            self._at[queue] = max(self._at.get(queue, 0.0), float(ring["at"]))
            first = first_of(ring)
            till = look.tills.get(queue)
            # The process skips what the claim has left before that turn.
            is_skipped = is_empty and first is not None and not (till and first > till)
            if first is None or is_skipped:
                partition.firsts.pop(queue, None)
            else:
                partition.firsts[queue] = first
            partition.debts[queue] = float(ring.get("debt") or 0.0)
            # In a busy queue this partition has a turn, so no answer looks at all others.
            has_turn = queue in partition.firsts
            if not (has_turn or any(queue in each.firsts for each in self._partitions)):
                # No tenant competes, so all debts of the queue end.
                last = max(each.debts.get(queue, 0.0) for each in self._partitions)
                self._at[queue] = max(self._at[queue], last)


def first_of(ring: Mapping[str, Any]) -> First | None:
    """Return the first turn of a ring as ``rings.lua`` answers it; None if nothing may start."""
    if "first" not in ring:
        return None
    start, rank = ring["first"]
    return First(9 - int(rank or 0), float(start))


def _divided(firsts: dict[str, dict[int, First]], want: int, is_strict: bool) -> Counter[int]:
    """Return how many tasks to take of each partition, as if each task charged one.

    The queues take turns. If they are strict, a queue gets places that the queues before it leave.
    """
    wants: Counter[int] = Counter()
    turns = deque(queue for queue, each in firsts.items() if each)
    while turns and wants.total() < want:
        rings = firsts[turns[0]]
        # The least partition goes first among equal turns, by the order of `firsts`.
        number = min(rings, key=rings.__getitem__)
        rings[number] = rings[number].later()
        wants[number] += 1
        if not is_strict:
            turns.rotate(-1)
    return wants


def _tills(
    firsts: Mapping[str, Mapping[int, First]], number: int, served: Mapping[str, float]
) -> dict[str, First]:
    """Return by queue the turn of another partition behind which one takes nothing.

    It is one charge later than the first one. What the channel has read of that one may be old, so
    it may be later by up to OLD_AT_MOST, but not behind the latest start that a ring has served
    (``served``, by queue).
    """
    tills = {}
    for queue, rings in firsts.items():
        others = [first for other, first in rings.items() if other != number]
        if others:
            behind, start = min(others)
            latest = min(max(start, served.get(queue, start)), start + OLD_AT_MOST)
            tills[queue] = First(behind, latest).later()
    return tills
