"""Tasks that a gate refused and that wait in the limiter: as ``lua/functions/promote.lua`` says.

A task waits at one place (``places``), a limit that keeps it. When all of its limits are open and
its turn has come it is *promoted*: given to a worker that publishes it again. Until it comes to a
gate it is *promised* one start of each limit, for one lease at most; newcomers do not take what is
promised, nor pass those that wait at the same place. A promoted task whose worker does not say that
the broker has it is promoted again after one lease, as another copy.

Invariant: a message that was parked is here until the broker has it or a copy of it has come to a
gate; of all its copies one starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from celery_fairness.config.limit_spec import read_limits
from celery_fairness.limiter.copies import Copies, CopyMemory
from celery_fairness.limiter.places import Places, key_of
from celery_fairness.limiter.types import Promoted, Promotion, SlotRequest, Unparked
from celery_fairness.message.headers import Copy
from celery_fairness.scheduler.types import SYSTEM
from celery_fairness.util.durations import Milliseconds, seconds

#: As in the functions.
LOOK_MS = 1000
#: So much of a throttle's interval a promotion is early, and so many ms, as in the functions.
EARLY, EARLY_MS = 0.1, 10
SWEEP_AT_MOST, KEYS_AT_MOST, TASKS_AT_MOST = 16, 16, 8
#: The part of a lease after which what could not be published is tried again first.
FIRST_PAUSE = 1 / 16
#: A serial that no copy has.
NO_COPY = "-"


class Kept(NamedTuple):
    """What keeps a task.

    Attributes:
        place: At which it waits: a limit's name, or the key of a tier; "" where all that says
            ``wait`` is open.
        closed_ms: For how long.
        others: A limit refuses it that does not say ``wait``.
    """

    place: str
    closed_ms: float
    others: bool


class _Task(NamedTuple):
    seq: int
    expires_ms: int | None
    request: SlotRequest
    message: str

    @property
    def places(self) -> list[str]:
        return places_of(self.request)

    @property
    def tenant(self) -> str:
        return self.request.tier_key or SYSTEM


def early_ms(starts: int, period_ms: int) -> float:
    """Return how much too soon a task that a throttle keeps is promoted."""
    interval = period_ms / starts
    return max(EARLY * interval, min(EARLY_MS, 2 * interval))


def places_of(request: SlotRequest) -> list[str]:
    """Return all places at which a task may wait, its tenant's tier first."""
    tier = [request.tier_key] if request.tenant else []
    return [*tier, *(limit.name for limit in read_limits(request.limits))]


@dataclass(slots=True)
class ParkedTasks:
    """What is parked.

    Attributes:
        copies: Of every message that was refused.
        tier_waits: Tasks over their tier's limit wait here too.
        known: Whether anything was parked that may still be here.
    """

    copies: CopyMemory
    tier_waits: bool
    known: bool = False
    _sequence: int = 0
    _tasks: dict[str, _Task] = field(default_factory=dict)
    _places: Places = field(default_factory=Places)
    _opens: dict[str, int] = field(default_factory=dict)
    _expires: dict[str, int] = field(default_factory=dict)
    _promoted: dict[str, int] = field(default_factory=dict)
    _promised: dict[str, dict[str, int]] = field(default_factory=dict)
    _tries: dict[str, int] = field(default_factory=dict)

    def promised(self, key: str, now: int) -> int:
        """Return how many starts of ``key`` are promised."""
        return sum(end > now for end in self._promised.get(key, {}).values())

    def waiting(self, key: str) -> int:
        """Return how many wait at ``key``."""
        return self._places.waiting(key)

    def queue(self, places: Iterable[str]) -> str:
        """Return the first of ``places`` at which some wait, "" where none do."""
        return next((place for place in places if place in self._places), "")

    def look(self, key: str, at: int) -> None:
        """Look at ``key`` at a logical time, or before."""
        self._opens[key] = min(at, self._opens.get(key, at))

    def freed(self, key: str, now: int) -> None:
        """Look at ``key`` at once, where some wait."""
        if self.known and key in self._opens:
            self.look(key, now)

    def forgo(self, tag: str, keys: Iterable[str], now: int) -> None:
        """Give back what was promised to a task that ended before it came to a gate."""
        for key in keys:
            if tag in self._promised.get(key, {}):
                self._take(self._promised, key, tag)
                self.freed(key, now)
            self._promoted.pop(tag, None)

    def forget(self, tag: str, request: SlotRequest) -> None:
        """Forget a task that has come to a gate."""
        self._leave(tag, request)
        for table in (self._promoted, self._expires, self._tasks):
            table.pop(tag, None)
        self._note()

    def park(
        self,
        request: SlotRequest,
        copy: Copy,
        seq: int | None,
        kept: Kept,
        message: str,
        expires_ms: int | None,
        now: int,
    ) -> None:
        """Let a task wait at what keeps it; ``seq`` is its old place."""
        if seq is None:
            self._sequence += 1
            seq = self._sequence
        tag, serial = copy.message, request.next_serial
        self.copies[tag] = Copies(serial, serial, None, seq)
        self._leave(tag, request)
        self.known = True
        self._tasks[tag] = _Task(seq, expires_ms, request, message)
        if expires_ms is not None:
            self._expires[tag] = expires_ms
        self._wait_at(tag, kept.place, now + round(min(kept.closed_ms, LOOK_MS)))

    def promote(
        self,
        want: int,
        serial: str,
        now: int,
        server_now: int,
        lease_ms: int,
        keeps: Callable[[SlotRequest], Kept],
        weight: Callable[[SlotRequest], float],
        enforced: bool,
    ) -> Promotion:
        """Give at most ``want`` tasks that may start by now; see ``Limiter.promote``."""
        if not self.known:
            return Promotion((), None)
        given: list[Promoted] = []

        def give(tag: str, promised: bool) -> None:
            task, copies = self._tasks[tag], self.copies.get(tag, Copies())
            named = f"{serial}{1 + 4 * len(given)}"
            self._leave(tag, task.request)
            self.copies[tag] = Copies(copies.next or named, named, None, task.seq)
            self._expires.pop(tag, None)
            self._promoted[tag] = now + lease_ms
            if promised and enforced:
                self._places.charge(task.tenant, task.places, weight(task.request))
                for key in self._promises(task.request):
                    self._promised.setdefault(key, {})[tag] = now + lease_ms
            ended = not promised or task.expires_ms == 0
            given.append(Promoted(Copy(tag, named), task.message, ended=ended))

        for tag in _due(self._promoted, now, SWEEP_AT_MOST):
            del self._promoted[tag]
            task = self._tasks.get(tag)
            if task is not None:
                self._leave(tag, task.request)
                if task.expires_ms is not None:
                    self._expires[tag] = task.expires_ms
                self._wait_at(tag, task.places[0], 0)
        for tag in _due(self._expires, server_now, want):
            self._ends(tag)
            give(tag, promised=False)
        moved: set[str] = set()
        for key in _due(self._opens, now, KEYS_AT_MOST):
            del self._opens[key]
            closed: set[str] = set()
            looks = 0
            while head := self._places.head(key, closed):
                if looks == TASKS_AT_MOST or len(given) >= want:
                    self.look(key, now)
                    break
                task = self._tasks[head.tag]
                kept = keeps(task.request)
                if enforced and not kept.place and head.tag not in moved:
                    other = self._places.others_turn(head, task.places)
                    moved |= {head.tag} if other else set()
                    kept = Kept(other, 0.0, others=False)
                looks += kept.place != head.place
                if not kept.place:
                    give(head.tag, promised=True)
                    continue
                at = now + round(min(kept.closed_ms, LOOK_MS))
                if kept.place == head.place:
                    closed.add(head.place)
                    self.look(key, at)
                else:
                    self._places.leave(head.tag, head.tenant, [head.place])
                    self._wait_at(head.tag, kept.place, at)
        first = min(self._opens.values(), default=now + LOOK_MS)
        sleep_ms = max(0, ceil(min(first - now, LOOK_MS)))
        self._note()
        return Promotion(tuple(given), seconds(Milliseconds(sleep_ms)) if self.known else None)

    def put_off(self, tag: str, lease_ms: int) -> int:
        """Promote a task that could not be published again after a pause; see ``Limiter``."""
        task = self._tasks.get(tag)
        if task is None or tag not in self._promoted:
            return 0
        self._leave(tag, task.request)
        tries = self._tries[tag] = self._tries.get(tag, 0) + 1
        pause_ms = min(lease_ms, lease_ms * FIRST_PAUSE * 2 ** (tries - 1))
        self._promoted[tag] += int(pause_ms - lease_ms)
        return tries

    def unpark(self, tags: Sequence[str], how: Unparked) -> int:
        """Forget what is published or has failed, or promote at once what is cancelled."""
        parked = 0
        for tag in tags:
            task = self._tasks.get(tag)
            # One that came to a gate before this, and was parked again, is not on the broker.
            promoted, copies = tag in self._promoted, self.copies.get(tag, Copies())
            again = not promoted and copies.current == copies.next
            late = {"published": again, "cancelled": promoted, "failed": not promoted}[how]
            if task is None or late:
                continue
            parked += 1
            if how == "cancelled":
                self._ends(tag)
                continue
            self._tries.pop(tag, None)
            if how == "failed":
                self.copies[tag] = Copies(NO_COPY, NO_COPY)
                self.forget(tag, task.request)
                continue
            del self._tasks[tag]
            self._expires.pop(tag, None)
            self._places.leave(tag, task.tenant, task.places)
        return parked

    def _ends(self, tag: str) -> None:
        """A task does not start, whoever gives it to a worker from now on."""
        self._tasks[tag] = self._tasks[tag]._replace(expires_ms=0)
        self._expires[tag] = 0

    def _promises(self, request: SlotRequest) -> list[str]:
        keys = [limit.key for limit in read_limits(request.limits)]
        tier = [request.tier_key] if self.tier_waits and request.tenant else []
        return list(dict.fromkeys([*tier, *keys]))

    def _wait_at(self, tag: str, place: str, at: int) -> None:
        task = self._tasks[tag]
        self._places.wait(tag, task.seq, task.tenant, place)
        self.look(key_of(place), at)

    def _leave(self, tag: str, request: SlotRequest) -> None:
        # It may come with other limits, or another tenant, than it was parked with.
        request = self._tasks[tag].request if tag in self._tasks else request
        places = places_of(request)
        self._places.leave(tag, request.tier_key or SYSTEM, places)
        for place in places:
            self._take(self._promised, key_of(place), tag)

    def _note(self) -> None:
        self.known = bool(self._tasks or self._promoted)
        if not self.known:
            self._opens.clear()

    @staticmethod
    def _take(table: dict[str, dict[str, int]], key: str, tag: str) -> None:
        row = table.get(key, {})
        row.pop(tag, None)
        if not row:
            table.pop(key, None)


def _due(table: dict[str, int], now: int, most: int) -> list[str]:
    due = sorted((at, name) for name, at in table.items() if at <= now)
    return [name for _, name in due[:most]]
