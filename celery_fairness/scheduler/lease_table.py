"""The lease table: the leases of this process, and the ends that Redis does not have yet.

Invariant: a lease is in the table from the answer to its claim until its end. Then its end stays in
the table until Redis has answered to it. The table belongs to the process and not to a channel, so
a connection that breaks ends no lease. Any thread may write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from celery_fairness.config.limit_spec import keys_of_lease
from celery_fairness.config.queue_limits import PREFIX
from celery_fairness.scheduler.types import Claimed, Settle, Verdict
from celery_fairness.util.threads import native_lock

#: Verdicts of tasks that continue, in their order.
_NOTES = (Verdict.BEGUN, Verdict.TAKEN, Verdict.ACKED)


@dataclass(eq=False, slots=True)
class Held:
    """One lease of this process.

    Attributes:
        lease: The lease's name, which is also the delivery tag of its message.
        attempt: The number of the task's claim, from 1.
        key: The keys in which the lease counts.
        queue: The queue of its message.
        epoch: The epoch of Redis that has the lease.
        attended: Whether a worker's request ends it with the body, and not with the ack.
        begun: Whether the pool has reported the start of its body.
        in_pool: Whether the pool has it. Before that, an ack or reject ends it.
        verdict: How the end of the body settles the message, or None before a decision.
        died: Whether its process died.
        outcome: How its body ended, if the end settles the message as DONE.
        ended: Whether its end is in the table.
        lost: Whether Redis has ended the lease.
        deaths: How often a process has died with the task's body.
        sends_begin: Whether the process that runs the body sends its begin to Redis.
        partition: The partition that has the lease.
        since: The time of the answer to its claim (monotonic seconds).
    """

    lease: str
    attempt: int
    key: str
    queue: str
    epoch: int
    attended: bool = False
    begun: bool = False
    in_pool: bool = False
    verdict: Verdict | None = None
    died: bool = False
    outcome: Verdict = Verdict.DONE
    ended: bool = False
    lost: bool = False
    deaths: int = 0
    sends_begin: bool = False
    partition: int = 0
    since: float = field(default_factory=monotonic)


class LeaseTable:
    """Leases and ends of one process with one Redis."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._in_places: set[str] = set()
        self._ends: dict[str, Settle] = {}
        self._lock = native_lock()
        #: Called after every end: a slot is free, and Redis must get the end.
        self.changed: Callable[[], None] = lambda: None

    @property
    def places(self) -> int:
        """How many of the worker's places are taken."""
        return len(self._in_places)

    def places_by_queue(self) -> Counter[str]:
        """Return the number of taken places of the worker, by queue."""
        return Counter(held.queue for held in self.held() if held.lease in self._in_places)

    def held(self) -> list[Held]:
        """Return all leases."""
        return list(self._held.values())

    def get(self, lease: str) -> Held | None:
        """Return one lease; None if it has ended or belongs to another process."""
        return self._held.get(lease)

    def slots_by_queue_key(self) -> dict[str, int]:
        """Return the number of slots that this process holds, by the key of a queue's limit."""
        limited = [held.key for held in self.held() if PREFIX in held.key]
        if not limited:
            return {}
        keys = (key for all_of_one in limited for key in keys_of_lease(all_of_one))
        return dict(Counter(key for key in keys if key.startswith(PREFIX)))

    def hold(
        self, task: Claimed, epoch: int, in_place: bool = False, partition: int = 0
    ) -> Held | None:
        """Add a claimed task, with or without one of the worker's places.

        Returns:
            None if the table has it already, because the answer came twice.
        """
        if task.lease in self._held or task.lease in self._ends:
            return None
        held = Held(
            *(task.lease, task.attempt, task.key, task.queue, epoch),
            deaths=task.deaths,
            partition=partition,
        )
        self._held[task.lease] = held
        if in_place:
            self._in_places.add(task.lease)
        return held

    def note(self, held: Held, verdict: Verdict) -> None:
        """Add a note about a task that continues: BEGUN, TAKEN or ACKED."""
        with self._lock:
            if not held.ended:
                self._ends[held.lease] = Settle(held.lease, verdict)

    def end(self, held: Held, verdict: Verdict, *, begun: bool = True) -> None:
        """Add the end of ``held``; later ends of it change nothing.

        ``begun`` is whether its body may have started. False is certain.
        """
        with self._lock:
            if held.ended:
                return
            held.ended = True
            self._forget(held)
            self._ends[held.lease] = Settle(held.lease, verdict, begun)
        self.changed()

    def drop(self, held: Held) -> None:
        """Remove a lease that ended before its task arrived; there is no end to send."""
        with self._lock:
            held.ended = True
            self._forget(held)
        self.changed()

    def _forget(self, held: Held) -> None:
        self._held.pop(held.lease, None)
        self._in_places.discard(held.lease)

    def take_ends(self, most: int, wanted: Callable[[str], bool] | None = None) -> list[Settle]:
        """Take at most ``most`` notes and ends, oldest first, to send them to Redis.

        ``wanted`` returns whether to take that of a lease.
        """
        if not self._ends:
            return []
        with self._lock:
            leases = list(self._ends if wanted is None else filter(wanted, self._ends))[:most]
            return [self._ends.pop(lease) for lease in leases]

    def ended(self, *, frees: bool = False) -> list[str]:
        """Return the leases whose ends are here, and those of notes unless only ends are wanted."""
        with self._lock:
            return [
                lease for lease, end in self._ends.items() if not (frees and end.verdict in _NOTES)
            ]

    def give_back(self, ends: Sequence[Settle]) -> None:
        """Put back ends that Redis did not get, unless the table has a later step of the task.

        Calls of several threads fail in any order. A note may come back before the end that
        followed it.
        """
        if not ends:
            return
        with self._lock:
            back = {
                end.lease: end
                for end in ends
                if end.lease not in self._ends or _step(end) > _step(self._ends[end.lease])
            }
            later = {lease: end for lease, end in self._ends.items() if lease not in back}
            self._ends = back | later

    @property
    def frees_slots(self) -> bool:
        """Whether the table has ends to send, and not only notes."""
        with self._lock:
            return any(end.verdict not in _NOTES for end in self._ends.values())

    @property
    def has_ends(self) -> bool:
        """Whether the table has notes or ends to send."""
        return bool(self._ends)


def _step(end: Settle) -> int:
    """Return the position of a task's verdict among its steps."""
    return _NOTES.index(end.verdict) if end.verdict in _NOTES else len(_NOTES)
