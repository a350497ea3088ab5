"""The limits of a task, each with its snapshot: whether it blocks the task, and until when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from celery_fairness.config.numbers import NUMBERS
from celery_fairness.control.key.snapshot import KeyState, Saving, read_state
from celery_fairness.control.task.views import Amount, Blocker, TaskLimit
from celery_fairness.util.durations import milliseconds, seconds
from celery_fairness.util.timestamps import at_ms

_RATE: Final = NUMBERS["rate"].kind


class CheckedLimit(NamedTuple):
    """One limit of a task, and whether it blocks the task.

    Attributes:
        state: The state of its key, with the numbers of this limit.
        now_ms: The time of the state, by the server's clock.
        local_held: The least number of slots that a process holds, if every process is at
            its ``local_limit``. None if a process may have a free slot.
    """

    state: KeyState
    now_ms: int
    local_held: int | None = None

    @property
    def shown(self) -> TaskLimit:
        """The public form of it."""
        state, limit = self.state, self.state.limit
        blocked_by = state.blocked_by or ("local" if self.local_held is not None else "")
        return TaskLimit(
            state.key, dict(limit.numbers), limit.on_limit, state.held, blocked_by, state.in_force
        )

    def blockers(self, starts_in: float | None, in_turn: float | None) -> Iterator[Blocker]:
        """Yield the blockers of this limit.

        Args:
            starts_in: Seconds until it would let the task start, or None if unknown.
            in_turn: Seconds until a process would have a slot for the task, or None if unknown.
        """
        state, holders = self.state, self.state.leases
        if blocked_by := state.blocked_by:
            numbers = (state.held, state.limit["concurrency"])
            lends = self._lends() if blocked_by in ("rate", "throttle") else ""
            yield Blocker(
                *(state.key, blocked_by, *numbers, state.opens_in_seconds, holders),
                starts_in_seconds=starts_in,
                in_force=state.in_force,
                opens_at=self._opens_at(),
                counted=self._counted() if blocked_by == "rate" and not lends else "",
                amount=_AMOUNTS.get(blocked_by, _nothing)(state),
                burst=state.limit["burst"] if blocked_by == "concurrency" else None,
                permits=state.permits if blocked_by == "concurrency" else None,
                lends=lends,
            )
        if self.local_held is not None:
            yield Blocker(
                *(state.key, "local", self.local_held, state.limit["local_limit"], None, holders),
                starts_in_seconds=in_turn if state.limit["local_limit"] else None,
            )

    def _lends(self) -> str:
        """Return the number of which the home lends starts, if too few are lent."""
        state = self.state
        if not state.lacks_lot:
            return ""
        name = state.blocked_by
        return NUMBERS[name].kind.show(state.limit[name])

    def _opens_at(self) -> datetime | None:
        opens = self.state.opens_in_seconds
        return None if opens is None else at_ms(self.now_ms + milliseconds(opens))

    def _counted(self) -> str:
        """Return the starts in the first window that is full."""
        windows = zip(self.state.limit["rate"] or (), self.state.started, strict=False)
        for window, entries in windows:
            started = sum(number for _, number in entries)
            if started >= window[0]:
                return f"{started} of {_RATE.show((window,))}"
        return ""


def _nothing(state: KeyState) -> None:
    """Return that no amount of the task blocks it."""


def _slots(state: KeyState) -> Amount | None:
    """Return what the task takes of the concurrency."""
    slots, most, saves = state.limit["slots"] or 1, state.limit["concurrency"], 0
    if state.saving is not None:
        saves = min(state.saving.slots, most)
    if slots == 1 and not saves:
        return None
    return _with_saving(Amount(min(slots, most), most, most - state.held), state.saving, saves)


def _with_saving(amount: Amount, saving: Saving | None, saves: int) -> Amount:
    """Return an amount with what the key saves."""
    if saving is None or not saves:
        return amount
    return replace(
        amount,
        saves=saves,
        saved_for="" if saving.is_own else saving.tenant,
        saved_seconds=None if saving.ends_ms is None else seconds(saving.ends_ms),
    )


def _units(state: KeyState) -> Amount | None:
    """Return what the task takes of the window that has the least room for it."""
    units, saving = state.limit["units"] or 1, state.saving
    windows = zip(state.limit["rate"] or (), state.started, strict=True)
    rooms = [(rate - sum(n for _, n in started), rate) for (rate, _), started in windows]
    if not rooms or (units == 1 and saving is None):
        return None
    free, rate = min(rooms, key=lambda room: room[0] - min(units, room[1]))
    saves = min(saving.units, rate) if saving is not None else 0
    return _with_saving(Amount(min(units, rate), rate, free), saving, saves)


#: What a task takes, by the number that blocks it.
_AMOUNTS: Final[Mapping[str, Callable[[KeyState], Amount | None]]] = {
    "concurrency": _slots,
    "rate": _units,
}


def read_limits_of(answer: Mapping[str, Any]) -> tuple[CheckedLimit, ...]:
    """Read the limits of a task from the answer of the function ``explain``."""
    return tuple(
        CheckedLimit(read_state(row, answer["now"]), answer["now"], row.get("local_held"))
        for row in answer.get("limits", ())
    )
