"""Checks whether a limit blocks a task, and until when, by the rules of the next claim or gate.

It reads the limits themselves. So it shows a hold even if no worker has claimed since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from celery_fairness.config.limit_spec import OF_QUEUE, WHOLE, Limit
from celery_fairness.config.queue_limits import QueueNumbers, QueueRow, read_row
from celery_fairness.control.holds import judged_by, server_now, with_holds
from celery_fairness.control.keys import Row
from celery_fairness.control.limit_in_force import Kind, LimitInForce, LimitReason, limit_in_force
from celery_fairness.control.opening import starts_wait_seconds
from celery_fairness.control.scan import Reader
from celery_fairness.control.stats import Stats
from celery_fairness.control.tenant_state import with_rows
from celery_fairness.control.views import Blocker, TaskLimit
from celery_fairness.control.waiters import numbered, row_of
from celery_fairness.limiter.types import KeyOverride, LimitState


class Judged(NamedTuple):
    """One limit of a task, and whether it blocks the task.

    Attributes:
        limit: The limit, with the numbers that apply.
        in_force: Its concurrency, and the reasons for it.
        state: The state of its key.
        closed: Why no task starts: ``concurrency``, ``rate``, ``paused``, ``cool-down``, or "" if
            the limit is available.
        opens_in: Seconds until it is available by itself, or None if unknown.
        local: Tasks at once in one process. None is unlimited.
        full: The least number of slots that a process holds, if every process is at ``local``. None
            if a process may have a free slot.
    """

    limit: Limit
    in_force: LimitInForce
    state: LimitState
    closed: str = ""
    opens_in: float | None = None
    local: int | None = None
    full: int | None = None

    @property
    def shown(self) -> TaskLimit:
        """The public form of it."""
        limit, closed = self.limit, self.closed or ("local" if self.full is not None else "")
        return TaskLimit(
            *(self.state.key, limit.concurrency, self.local, limit.rates, limit.throttle),
            *(limit.on_limit, self.state.held, closed, self.in_force),
        )

    def blockers(self, starts_in: float | None, in_turn: float | None) -> Iterator[Blocker]:
        """Yield the blockers of this limit.

        Args:
            starts_in: Seconds until it would let the task start, or None if unknown.
            in_turn: Seconds until a process would have a slot for the task, or None if unknown.
        """
        state, holders = self.state, self.state.leases
        if self.closed:
            numbers = (state.held, self.limit.concurrency)
            yield Blocker(
                *(state.key, self.closed, *numbers, self.opens_in, holders),
                starts_in_seconds=starts_in,
                in_force=self.in_force,
            )
        if self.full is not None:
            yield Blocker(
                *(state.key, "local", self.full, self.local, None, holders),
                starts_in_seconds=in_turn if self.local else None,
            )


class Judge:
    """Checks the limits of a task.

    Args:
        reader: The reader of the installation.
        looker: The statistics of the installation.
        queue: Queue of the task, or "" on the gate path.
        rows: Running tasks.
    """

    def __init__(
        self, reader: Reader, looker: Stats, queue: str = "", rows: Sequence[Row] = ()
    ) -> None:
        self._reader = reader
        self._looker = looker
        self._queue = queue
        self._rows = rows

    def of_tenant(self, key: str, written: str, parked: str = "") -> Judged:
        """Check the limit of a tenant's tier.

        Args:
            key: Key of the tier limit.
            written: The tenant in its form in keys.
            parked: The tier of its parked task, or "" for a task in a lane.
        """
        state = self._looker.of_waiting(self._reader, key, written, parked)
        own = state.limit
        if own == 0:
            # The 0 may come from a pause or an override. Read the limit without them.
            own = self._looker.tier_limit(self._reader, key, written, parked)
        # A tenant's key cannot cool down.
        return self._judged(Limit(key, own), state, cools=False)

    def of_task(self, limits: Iterable[Limit]) -> Iterator[Judged]:
        """Check the limits that a task brings."""
        for each in limits:
            row = row_of(self._reader, each.key) if each.of == OF_QUEUE else None
            local = row.numbers.local if row is not None and row.parts else None
            own = numbered(self._reader, each)
            yield self._of_key(own, local, "tasks" if row is None else _kind_of(row))

    def of_queue(self) -> Iterator[Judged]:
        """Check the limit of the whole queue, if it has one."""
        text = self._reader.read("HGET", self._reader.keys.queue_limits, self._queue)
        if text:
            row = read_row(text)
            numbers = QueueNumbers() if row.parts else row.numbers
            yield self._of_key(numbers.limit(row.key, WHOLE), numbers.local, _kind_of(row))

    def _of_key(self, own: Limit, local: int | None, kind: Kind) -> Judged:
        state = self._looker.inspect(own.key)
        if state.stops is None:
            # On the gate path the state has no holds yet.
            state = with_holds(self._reader, state)
            state = replace(state, leases=tuple(with_rows(self._reader, state.key, state.leases)))
        reason = LimitReason(kind=kind, limit=own.concurrency)
        judged = self._judged(own, state, reason)
        if local is None or not self._looker.enforced:
            return judged
        held = self._fewest_held(own.key) if local else 0
        return judged._replace(
            local=local, full=held if held is not None and held >= local else None
        )

    def _fewest_held(self, key: str) -> int | None:
        """Return the slots of a key in the process that holds the fewest; None if none runs a task.

        A process that runs no task of the queue cannot be seen here.
        """
        held: Counter[str] = Counter()
        for row in self._rows:
            if row.queue == self._queue:
                held[row.owner] += key in row.keys
        return min(held.values(), default=None)

    def _judged(
        self,
        own: Limit,
        state: LimitState,
        reason: LimitReason | None = None,
        *,
        cools: bool = True,
    ) -> Judged:
        override, stops, enforced = state.override, state.stops, self._looker.enforced
        limit = own if override is None else judged_by(own, override)
        in_force = limit_in_force(state, reason)
        judged, ends = Judged(limit, in_force, state), list[float | None]()
        if stops is not None and stops.paused:
            ends.append(stops.pause_seconds)
        if limit.concurrency == 0:
            ends.append(self._ends_in(override) if own.concurrency != 0 else None)
        cool_down = stops.cool_down_seconds if stops is not None and cools else 0.0
        if ends:
            known = [cool_down, *(end for end in ends if end is not None)]
            return judged._replace(closed="paused", opens_in=None if None in ends else max(known))
        if cool_down:
            return judged._replace(closed="cool-down", opens_in=cool_down)
        if enforced and limit.concurrency is not None and state.held >= limit.concurrency:
            return judged._replace(closed="concurrency")
        opens_in = starts_wait_seconds(self._reader, limit) if enforced else 0.0
        return judged._replace(closed="rate", opens_in=opens_in) if opens_in else judged

    def _ends_in(self, override: KeyOverride | None) -> float | None:
        if override is None or override.expires_at is None:
            return None
        return max(0.0, override.expires_at - server_now(self._reader) / 1000)


def _kind_of(row: QueueRow) -> Kind:
    """Return the source of a queue's numbers."""
    return "settings" if row.by_operator is None else "queue"
