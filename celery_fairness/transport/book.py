"""The book: the leases that this process holds, and the ends that Redis has not heard of yet.

Invariant: a lease is in the book from the answer to its claim until its end; then its end is among
``ends`` until Redis has answered to it. The book belongs to the process and not to a channel, so a
connection that breaks ends nothing. Any thread may write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from time import monotonic

from celery_fairness.config.queue_limits import PREFIX
from celery_fairness.scheduler.types import Claimed, Settle, Verdict
from celery_fairness.util.threads import native_lock

#: What is told of a task that goes on, in its order.
_NOTES = (Verdict.BEGUN, Verdict.ACKED)


class Held:
    """One lease of this process.

    Attributes:
        lease: Its name, which is also the delivery tag of its message.
        attempt: Which claim of the task this is, from 1.
        lane: Where the task waited.
        key: Who is charged.
        queue: Where its message came from.
        attended: A worker's request looks after it: its end is the end of the body, not the ack.
        begun: Its body has begun, as far as the pool has told.
        in_pool: The pool has it; until then, an ack or reject ends it.
        verdict: What becomes of the message when the body ends; None while nobody has said.
        died: Its process died.
        ended: Its end is noted.
        lost: Redis says that the lease has ended.
        epoch: Of the memory in which Redis knows it.
        since: When its claim was answered (monotonic seconds).
    """

    __slots__ = (
        "attempt",
        "attended",
        "begun",
        "died",
        "ended",
        "epoch",
        "in_pool",
        "key",
        "lane",
        "lease",
        "lost",
        "queue",
        "since",
        "verdict",
    )

    def __init__(self, task: Claimed, epoch: int) -> None:
        self.lease = task.lease
        self.attempt = task.attempt
        self.lane = task.lane
        self.key = task.key
        self.queue = task.queue
        self.attended = False
        self.begun = False
        self.in_pool = False
        self.verdict: Verdict | None = None
        self.died = False
        self.ended = False
        self.lost = False
        self.epoch = epoch
        self.since = monotonic()


class LeaseTable:
    """Leases and ends of one process with one Redis."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._in_places: set[str] = set()
        self._ends: dict[str, Settle] = {}
        self._lock = native_lock()
        #: Called after every end and note: somebody waits for a slot, or must tell Redis.
        self.changed: Callable[[], None] = lambda: None
        #: Called after the first note of some, where the loop that tells them may sleep.
        self.noted: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._held)

    @property
    def places(self) -> int:
        """How many of the worker's places are taken."""
        return len(self._in_places)

    def places_of_queues(self) -> Counter[str]:
        """Return by queue how many of the worker's places its tasks have."""
        return Counter(held.queue for held in self.held() if held.lease in self._in_places)

    def held(self) -> list[Held]:
        """Return what is held now."""
        return list(self._held.values())

    def get(self, lease: str) -> Held | None:
        """Return one lease, None where it has ended or is not ours."""
        return self._held.get(lease)

    def of_queues(self) -> dict[str, int]:
        """Return by key how many slots of limits of queues are held."""
        limited = [held.key for held in self.held() if PREFIX in held.key]
        if not limited:
            return {}
        keys = (key for all_of_one in limited for key in all_of_one.split(","))
        return dict(Counter(key for key in keys if key.startswith(PREFIX)))

    def hold(self, task: Claimed, epoch: int, in_place: bool = False) -> Held | None:
        """Enter a claimed task, with or without one of the worker's places.

        Returns:
            None where it is known: the answer was given twice.
        """
        if task.lease in self._held or task.lease in self._ends:
            return None
        held = self._held[task.lease] = Held(task, epoch)
        if in_place:
            self._in_places.add(task.lease)
        return held

    def note(self, held: Held, verdict: Verdict) -> None:
        """Note what Redis should know of a task that goes on: BEGUN or ACKED."""
        with self._lock:
            first = not self._ends
            if not held.ended:
                self._ends[held.lease] = Settle(held.lease, verdict, held.lane)
        if first:
            self.noted()

    def end(self, held: Held, verdict: Verdict, *, begun: bool = True) -> None:
        """Note the end of ``held``; only the first one counts.

        Args:
            held: Whose.
            verdict: What becomes of its task.
            begun: Its body may have begun; False: it has not, for certain.
        """
        with self._lock:
            if held.ended:
                return
            held.ended = True
            self._forget(held)
            self._ends[held.lease] = Settle(held.lease, verdict, held.lane, begun)
        self.changed()

    def drop(self, held: Held) -> None:
        """Forget a lease that ended before its task got here: there is nothing to tell."""
        with self._lock:
            held.ended = True
            self._forget(held)

    def _forget(self, held: Held) -> None:
        self._held.pop(held.lease, None)
        self._in_places.discard(held.lease)

    def take_ends(self, most: int) -> list[Settle]:
        """Take at most ``most`` notes and ends, oldest first, to tell Redis."""
        if not self._ends:
            return []
        with self._lock:
            leases = list(self._ends)[:most]
            return [self._ends.pop(lease) for lease in leases]

    def give_back(self, ends: Iterable[Settle]) -> None:
        """Keep what Redis did not hear, unless later news of the same task are here.

        Calls of several threads fail in any order: a note may come back before the end that came
        after it.
        """
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
        """Whether among what is to be told is an end, and not only notes."""
        with self._lock:
            return any(end.verdict not in _NOTES for end in self._ends.values())

    @property
    def has_ends(self) -> bool:
        """Whether there is something to tell."""
        return bool(self._ends)


def _step(end: Settle) -> int:
    """Return how far on its way a task is, by what is told of it."""
    return _NOTES.index(end.verdict) if end.verdict in _NOTES else len(_NOTES)
