"""The text and the JSON of a key: the fields of the Open Job Spec, and our own.

The lines of its limit, its state and its override are in :mod:`.tables`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from celery_fairness.cli.format import Cell, table
from celery_fairness.cli.tables import limit_lines, override_lines, state_lines, tier_text
from celery_fairness.control.ojs_views import Inspection, InspectionPage, RateState, ThrottleState

_KEYS = ("key", "tier", "limit", "held", "rate", "throttle", "waiting", "why")


def inspection_plain(found: Inspection) -> dict[str, Any]:
    """Return a key as JSON: the form of the Open Job Spec, and our own fields."""
    state = asdict(found.state)
    # The specification has fields of its own for these.
    for name in ("limit", "held", "override", "own_number", "entitled"):
        del state[name]
    in_force = found.in_force.model_dump(mode="json")
    facts = {"limit": found.limit, "in_force": in_force, "held": found.held, "known": found.known}
    return {**found.model_dump(mode="json"), **facts, **state, "key": found.key}


def page_plain(page: InspectionPage) -> dict[str, Any]:
    """Return a page of keys."""
    items = [inspection_plain(each) for each in page.items]
    return {"items": items, "pagination": page.pagination.model_dump(mode="json")}


def inspection_lines(found: Inspection) -> list[str]:
    """Return the text of one key."""
    is_tenants = found.weight is not None or bool(found.unknown)
    numbers = _local(found)
    if found.rate is not None:
        numbers.append(
            f"rate {_window(found.rate)}, {found.rate.current_count} counted, "
            f"resets {_time(found.rate.window_resets_at)}"
        )
    if found.throttle is not None:
        next_at = _time(found.throttle.next_allowed_at)
        numbers.append(f"throttle {_window(found.throttle)}, next {next_at}")
    if numbers or not is_tenants:
        numbers.append(f"waiting {found.waiting_count}")
    shown = ["; ".join(numbers)] if numbers else []
    return [*limit_lines(found), *shown, *state_lines(found)]


def overridden_lines(found: Inspection) -> list[str]:
    """Return the override of a key."""
    override = found.state.override
    return [f"{found.key}: it has ended"] if override is None else override_lines(override)


def keys_lines(page: InspectionPage) -> list[str]:
    """Return a page of keys as a table."""
    rows: list[tuple[Cell, ...]] = [
        (
            each.key,
            tier_text(each.state),
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
    total, per_page = page.pagination.total, page.pagination.per_page
    keys = "1 key" if total == 1 else f"{total} keys"
    return [*lines, f"page {page.pagination.page} of {-(-total // per_page) or 1}, {keys}"]


def _why(found: Inspection) -> str:
    """Return the reasons for a key's number, and notes on its other numbers."""
    override = found.state.override
    other = override is not None and set(override.numbers) != {"concurrency"}
    texts = [found.in_force.reasons_text, "override" if other else "", *_local(found)]
    return "; ".join(filter(None, texts))


def _local(found: Inspection) -> list[str]:
    return [] if found.local_limit is None else [f"{found.local_limit} in one process"]


def _window(window: RateState | ThrottleState) -> str:
    return f"{window.limit}/{window.period}"


def _time(at: Any) -> str:
    return "never" if at is None else f"{at:%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"
