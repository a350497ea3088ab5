"""Reads the snapshots of keys that the functions ``inspect`` and ``explain`` return.

The library checks the limits: it computes each number and each time by the rules of the next claim.
This module only gives the answer its public form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from celery_fairness.config.limit_spec import ACTION_BY_LETTER, Limit
from celery_fairness.config.numbers import read_numbers, shown_numbers
from celery_fairness.config.rates import Rate
from celery_fairness.control.key.limit_in_force import LimitInForce, LimitReason, limit_in_force
from celery_fairness.control.key.views import (
    Concurrency,
    Inspection,
    Override,
    RateState,
    SavedForTask,
    ThrottleState,
)
from celery_fairness.limiter.types import HeldLease, KeyHolds, WaitedLimit, WaitingLane
from celery_fairness.scheduler.calls import Stopped
from celery_fairness.util.durations import Milliseconds, milliseconds, seconds
from celery_fairness.util.timestamps import at_ms

#: The text of a number that an override does not change.
UNCHANGED = "-"


class Saving(NamedTuple):
    """What a key saves for the first task that waits there.

    Attributes:
        slots: What it saves of its concurrency.
        units: What it saves of its rate.
        tenant: Key of the tenant of that task.
        is_own: Whether the task of the snapshot waits at the same place.
        ends_ms: Time until the saving ends, if that task has not started. None while slots gather.
    """

    slots: int
    units: int
    tenant: str
    is_own: bool
    ends_ms: int | None = None


class KeyState(NamedTuple):
    """The state of a key, as a snapshot has it.

    Attributes:
        key: The key.
        limit: Its numbers. An override counts, a pause does not.
        in_force: Its concurrency now, with the reasons for it.
        held: Number of its live leases.
        leases: Some of them, the oldest first.
        blocked_by: Why it lets no task start: ``concurrency``, ``rate``, ``throttle``, ``paused``
            or ``cool-down``. "" if one may start.
        opens_in_seconds: Time until it is available by itself. None if that needs the end of a
            lease or an operator.
        holds: Its pause and its cool-down.
        override: The numbers that an operator has set, or None.
        started: The starts in the window of each rate, as pairs of the logical time in ms and how
            many started until then, the oldest first. Only ``explain`` returns them.
        ideal_ms: Logical time of the last start by the throttle, or None if it has not started
            anything. Only ``explain`` returns it.
        saving: What the key saves for a task, or None.
        permits: How many permits its partition has, if tenants of several partitions share it.
        lacks_lot: Whether its home has lent its partition too few starts of the rate or the
            throttle that they share.
    """

    key: str
    limit: Limit
    in_force: LimitInForce
    held: int
    leases: tuple[HeldLease, ...]
    blocked_by: str
    opens_in_seconds: float | None
    holds: KeyHolds
    override: Override | None
    started: tuple[tuple[tuple[int, int], ...], ...] = ()
    ideal_ms: float | None = None
    saving: Saving | None = None
    permits: int | None = None
    lacks_lot: bool = False


def read_state(answer: Mapping[str, Any], now_ms: int, unknown: str = "") -> KeyState:
    """Read a snapshot of a key.

    Args:
        answer: The snapshot.
        now_ms: The time of the snapshot by the server's clock.
        unknown: Why the caller does not know the tenant's tier.
    """
    key, opens_ms = answer["key"], answer.get("opens_ms")
    holds = _holds(key, answer, now_ms)
    override = _override(answer["override"]) if "override" in answer else None
    own = LimitReason(**{"limit": None, **answer["reason"]}) if "reason" in answer else None
    if unknown:
        # The tier's number may be stricter than any other number of the key.
        own = LimitReason(kind="unknown", limit=None, why=unknown)
    action = ACTION_BY_LETTER[answer.get("on_limit") or "w"]
    return KeyState(
        key=key,
        limit=Limit(key, on_limit=action, **read_numbers(answer["numbers"])),
        in_force=limit_in_force(own, holds, override),
        held=answer["held"],
        leases=tuple(map(_lease, answer.get("leases", ()))),
        blocked_by=answer.get("blocked_by", ""),
        opens_in_seconds=None if opens_ms is None else seconds(opens_ms),
        holds=holds,
        override=override,
        started=tuple(tuple(map(tuple, each)) for each in answer.get("started", ())),
        ideal_ms=answer.get("ideal"),
        saving=Saving(**answer["saving"]) if "saving" in answer else None,
        permits=answer.get("permits"),
        lacks_lot="lacks_lot" in answer,
    )


def read_inspection(
    answer: Mapping[str, Any], *, unknown: str = "", declared: bool = False
) -> Inspection:
    """Read the answer of the function ``inspect``.

    Args:
        answer: The answer.
        unknown: Why the caller does not know the tenant's tier. It counts if Redis does not
            know the tier either.
        declared: Whether the app declares a limit of the key.
    """
    unknown = "" if "tier" in answer else unknown
    state = read_state(answer, answer["now"], unknown)
    holds = state.holds

    def at(wait_ms: int) -> datetime | None:
        # Never before the end of a pause or a cool-down.
        if holds.paused and holds.pause_seconds is None:
            return None
        stopped_seconds = max(holds.cool_down_seconds, holds.pause_seconds or 0.0)
        return at_ms(answer["now"] + max(wait_ms, milliseconds(stopped_seconds)))

    rate = throttle = None
    if "rates" in answer:
        starts, period_ms, count, wait_ms = max(answer["rates"], key=_use)
        window = Rate(starts, seconds(period_ms)).to_ojs()
        rate = RateState(**window, current_count=count, window_resets_at=at(wait_ms))
    if "throttle" in answer:
        starts, period_ms, wait_ms = answer["throttle"]
        window = Rate(starts, seconds(period_ms)).to_ojs()
        throttle = ThrottleState(**window, next_allowed_at=at(wait_ms))
    limit = 0 if holds.paused else state.limit["concurrency"]
    facts = {
        "concurrency": Concurrency(limit=limit, active=state.held),
        "rate": rate,
        "throttle": throttle,
        "override": state.override,
        "in_force": state.in_force,
        "burst": state.limit["burst"],
        "known": answer["known"] or declared,
        "unknown": unknown,
        "leases": state.leases,
        "waiting": tuple(WaitingLane(*each) for each in answer.get("waiting", ())),
        "waited": tuple(map(_waited, answer.get("waited", ()))),
        "holds": holds,
        "opens_in_seconds": state.opens_in_seconds,
        "saving": _saved(state.saving, state.limit),
    }
    # The other facts have the same names in the answer.
    return Inspection.model_validate({**answer, **facts})


def _use(rate: Sequence[int]) -> tuple[float, int]:
    """Return the part of a rate that is used, and for how long."""
    starts, _, count, wait_ms = rate
    return count / starts, wait_ms


def _saved(saving: Saving | None, limit: Limit) -> SavedForTask | None:
    """Return what a key saves of the numbers that it has, or None."""
    if saving is None:
        return None
    most = limit["concurrency"]
    slots = 0 if most is None else min(saving.slots, most)
    units = saving.units if limit["rate"] else 0
    if not slots and not units:
        return None
    ends = None if saving.ends_ms is None else seconds(saving.ends_ms)
    return SavedForTask(slots=slots, units=units, tenant=saving.tenant, ends_in_seconds=ends)


def key_holds_of(
    key: str, stopped: Stopped, pause_of: str = "", reported: Sequence[int] = ()
) -> KeyHolds:
    """Return the pause and the cool-down of a key.

    Args:
        key: The key.
        stopped: The answer of the function library.
        pause_of: The paused key, if it is another one.
        reported: The free starts by the reports of an API, and the time in ms until which.
    """
    cool_ms, pause_ms, now_ms, since_ms, by = stopped
    paused = pause_ms != 0
    return KeyHolds(
        key=key,
        paused=paused,
        cool_down_seconds=seconds(cool_ms),
        pause_seconds=seconds(pause_ms) if pause_ms else None,
        paused_until=at_ms(now_ms + pause_ms) if pause_ms else None,
        paused_since=at_ms(since_ms) if paused and since_ms is not None else None,
        paused_by=by if paused else "",
        pause_of=pause_of if paused else "",
        cools_until=at_ms(now_ms + cool_ms) if cool_ms else None,
        reported_left=reported[0] if reported else None,
        reported_until=at_ms(int(reported[1])) if reported else None,
    )


def _holds(key: str, answer: Mapping[str, Any], now_ms: int) -> KeyHolds:
    pause = answer.get("pause", {"ends_ms": now_ms})
    stopped = Stopped(
        Milliseconds(int(answer.get("cool_ms", 0))),
        Milliseconds(pause["ends_ms"] - now_ms) if "ends_ms" in pause else None,
        now_ms,
        pause.get("since_ms"),
        pause.get("by", ""),
    )
    return key_holds_of(key, stopped, pause.get("pause_of", ""), answer.get("reported", ()))


def _override(row: Mapping[str, Any]) -> Override:
    values: dict[str, Any] = json.loads(row["notes"]) if row["notes"] else {}
    values |= shown_numbers("override", read_numbers(row["numbers"]))
    if "pattern" in row:
        values["pattern"] = row["pattern"]
    ends_ms = row.get("ends_ms")
    return Override(expires_at=None if ends_ms is None else at_ms(ends_ms), **values)


def _waited(row: Mapping[str, Any]) -> WaitedLimit:
    return WaitedLimit(
        row["queue"], read_numbers(row["numbers"]), row["state"], row["tenants"], row.get("tasks")
    )


def _lease(row: Mapping[str, Any]) -> HeldLease:
    held_ms, usual_ms = row.get("held_ms"), row.get("usual_ms")
    return HeldLease(
        id=row["id"],
        expires_in_seconds=seconds(row["ends_ms"]),
        owner=row.get("owner", ""),
        queue=row.get("queue", ""),
        state=row.get("state", ""),
        task=row.get("task", ""),
        charged=row.get("charged", ""),
        task_id=row.get("task_id", ""),
        held_seconds=None if held_ms is None else seconds(held_ms),
        usual_seconds=None if usual_ms is None else seconds(usual_ms),
        slots=row.get("slots", 1),
    )
