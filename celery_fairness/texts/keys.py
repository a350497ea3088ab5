"""The texts of keys: their state, their limits and their overrides."""

from __future__ import annotations

from typing import Any

import click

from celery_fairness.config.numbers import UNLIMITED, numbers_of, numbers_text
from celery_fairness.control.key.limit_in_force import holds_of, time_text
from celery_fairness.control.key.views import (
    Inspection,
    InspectionPage,
    Override,
    RateState,
    SavedForTask,
    ThrottleState,
)
from celery_fairness.limiter.types import KeyHolds
from celery_fairness.texts.format import (
    PARKED,
    Cell,
    count,
    held_by,
    held_for,
    page_line,
    quoted,
    seconds_text,
    table,
    weight_text,
)
from celery_fairness.util.printable import printable

_LEASE = ("held by", "lease ends in", "held for", "state", "task", "queue", "owner", "tenant")
_WAITED = ("limit", "queue", "state", "tenants", "waiting")
_KEYS = ("key", "tier", "limit", "held", "rate", "throttle", "waiting", "why")


def inspection_lines(found: Inspection) -> list[str]:
    """Return the text of one key."""
    return [*limit_lines(found), *_state_lines(found)]


def _numbers(found: Inspection) -> list[str]:
    """Return the numbers of a key beside its concurrency, and what counts against them."""
    numbers = _local(found)
    if found.rate is not None:
        numbers.append(
            f"rate {_window(found.rate)}, {found.rate.current_count} counted, "
            f"resets {_time(found.rate.window_resets_at)}"
        )
    if found.throttle is not None:
        next_at = _time(found.throttle.next_allowed_at)
        numbers.append(f"throttle {_window(found.throttle)}, next {next_at}")
    if found.saving is not None:
        numbers.append(f"saves {saving_text(found.saving)}")
    if found.holds.reported_left:
        numbers.append(f"an API has reported {reported_text(found.holds)}")
    # Each queue of a tenant has a row with what waits.
    if numbers or not _is_tenants(found):
        numbers.append(f"waiting {found.waiting_count}")
    if found.delayed_count:
        numbers.append(f"delayed {found.delayed_count}")
    return numbers


def reported_text(holds: KeyHolds) -> str:
    """Return what an API has reported, such as ``7 free starts until 2026-12-01 …``."""
    return f"{count(holds.reported_left or 0, 'free start')} until {_time(holds.reported_until)}"


def _is_tenants(found: Inspection) -> bool:
    return found.weight is not None or bool(found.unknown)


def saving_text(saving: SavedForTask) -> str:
    """Return what a key saves for a task, such as ``64 slots for a task of tenant:7``."""
    amounts = ((saving.slots, "slot"), (saving.units, "unit"))
    saved = " and ".join(count(amount, noun) for amount, noun in amounts if amount)
    end = saving.ends_in_seconds
    for_at_most = "" if end is None else f", for at most {seconds_text(end)}"
    return f"{saved} for a task of {printable(saving.tenant)}{for_at_most}"


def limit_lines(found: Inspection) -> list[str]:
    """Return a key's limit in force, the reasons for it, and its other numbers."""
    in_force = found.in_force
    weight = "" if found.weight is None else f", weight {weight_text(found.weight)}"
    tier = f"tier {_tier_text(found)}, " if found.tier or found.unknown else ""
    # For a key that is no tenant's, each task brings its own numbers.
    limit = f"limit {in_force.number}, " if _is_tenants(found) else ""
    if found.limit and found.burst is not None and found.burst > found.limit:
        limit += f"burst {found.burst}, "
    reasons = [printable(line) for line in in_force.lines] if in_force.reasons else []
    if reasons and (in_force.reasons[0].by_people or found.unknown):
        reasons[0] = click.style(reasons[0], fg="yellow")
    numbers = _numbers(found)
    shown = ["; ".join(numbers)] if numbers else []
    return [f"{found.key}: {tier}{limit}held {found.held}{weight}", *reasons, *shown]


def _state_lines(found: Inspection) -> list[str]:
    """Return the text of a key's state, without its limit."""
    if not found.known:
        return ["idle or never seen: it holds nothing, nothing of it waits, nothing is published"]
    is_tenants = _is_tenants(found)
    lines: list[str] = []
    if found.override is not None and set(found.override.numbers) != {"concurrency"}:
        # The other numbers of an override are rates.
        lines += [
            click.style(f"override of {line}", fg="yellow")
            for line in _override_lines(found.override.pattern or found.key, found.override)
        ]
    if found.at_limit:
        checked = (
            "the next claim checks it again"
            if found.checked_by is None
            else f"checked with config version {found.checked_by}"
        )
        where = f" in {_queues(found)}" if found.full_in else ""
        lines.append(click.style(f"at its limit{where}; {checked}", fg="yellow"))
    elif found.full_in:
        text = f"blocked: all its tasks in {_queues(found)} wait for other limits"
        lines.append(click.style(text, fg="yellow"))
    leases: list[tuple[Cell, ...]] = [
        (
            held_by(each),
            seconds_text(each.expires_in_seconds),
            held_for(each),
            each.state,
            each.task,
            each.queue,
            each.owner,
            each.charged,
        )
        for each in found.leases
    ]
    # A lease of the gate has only an end.
    shown = len(_LEASE) - is_tenants if any(each.owner for each in found.leases) else 2
    heads, rows = _LEASE[:shown], [row[:shown] for row in leases]
    if any(each.slots > 1 for each in found.leases):
        heads = (*heads, "slots")
        rows = [(*row, each.slots) for row, each in zip(rows, found.leases, strict=True)]
    lines += ["", *table(heads, rows, empty="no leases")]
    others = found.held - sum(each.slots for each in found.leases)
    if others > 0:
        slots = count(others, "other slot")
        lines.append(f"leases of {slots} are not here: limit show {quoted(found.key)} --page N")
    if not is_tenants:
        return [*lines, "", *table(_WAITED, _waited(found), empty="nothing waits for this limit")]
    waiting = [(each.queue or PARKED, each.rank, each.tasks) for each in found.waiting]
    return [*lines, "", *table(("queue", "priority", "waiting"), waiting, empty="nothing waits")]


def _override_lines(key: str, override: Override) -> list[str]:
    numbers = []
    for name, number in override.numbers.items():
        text = UNLIMITED if number is None else numbers_of("override")[name].kind.show_one(number)
        numbers.append(f"{name} {text}")
    until = "until it is cleared"
    if override.expires_at is not None:
        until = f"until {time_text(override.expires_at)}"
    why = "".join(
        f"; {name}: {printable(text)}"
        for name, text in (("reason", override.reason), ("by", override.by))
        if text
    )
    return [f"{key}: {', '.join(numbers)} {until}{why}"]


def overridden_lines(found: Inspection) -> list[str]:
    """Return the override of a key."""
    override = found.override
    return (
        [f"{found.key}: it has ended"]
        if override is None
        else _override_lines(override.pattern or found.key, override)
    )


def keys_lines(page: InspectionPage) -> list[str]:
    """Return a page of keys as a table."""
    rows: list[tuple[Cell, ...]] = [
        (
            each.key,
            _tier_text(each),
            each.in_force.number if each.in_force.reasons else "",
            each.held,
            "" if each.rate is None else f"{each.rate.current_count} of {_window(each.rate)}",
            "" if each.throttle is None else _window(each.throttle),
            each.waiting_count,
            _why(each),
        )
        for each in page.items
    ]
    lines = table(_KEYS, rows, empty="no keys are known")
    return [*lines, page_line(page.pagination, "key")]


def _queues(found: Inspection) -> str:
    return ", ".join(name or PARKED for name in found.full_in)


def _tier_text(found: Inspection) -> str:
    return "unknown" if found.unknown else found.tier


def _waited(found: Inspection) -> list[tuple[Cell, ...]]:
    return [
        (
            numbers_text(each.numbers),
            *(each.queue or PARKED, each.state, each.tenants, each.tasks),
        )
        for each in found.waited
    ]


def _why(found: Inspection) -> str:
    """Return the reasons for a key's number, and notes on its other numbers."""
    override = found.override
    other = override is not None and "concurrency" not in override.numbers
    texts = [found.in_force.reasons_text, "override" if other else "", *_local(found)]
    return "; ".join(filter(None, texts))


def _local(found: Inspection) -> list[str]:
    return [] if found.local_limit is None else [f"{found.local_limit} in one process"]


def _window(window: RateState | ThrottleState) -> str:
    return f"{window.limit}/{window.period}"


def _time(at: Any) -> str:
    return "never" if at is None else f"{at:%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"


def holds_lines(holds: KeyHolds) -> list[str]:
    """Return the pause or cool-down of a key, with the key."""
    text = "; ".join(each.text for each in holds_of(holds))
    return [f"{holds.key}: {printable(text) or 'not stopped: tasks start as its limits allow'}"]
