"""Keys as people read them, and as programs do: what the Open Job Spec names, and all else."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from celery_fairness.cli.tables import limit_text, override_lines, state_lines, stops_text
from celery_fairness.cli.words import Cell, table
from celery_fairness.looking.inspection import Inspection, InspectionPage, RateState, ThrottleState

_KEYS = ("key", "tier", "limit", "held", "rate", "throttle", "waiting", "")


def inspection_plain(found: Inspection) -> dict[str, Any]:
    """Return a key as the Open Job Spec writes it, with all else that is known of it."""
    state = asdict(found.state)
    # These it says in its own words.
    for name in ("limit", "held", "override"):
        del state[name]
    facts = {"limit": found.limit, "held": found.held, "known": found.known}
    return {**found.model_dump(mode="json"), **facts, **state, "key": found.key}


def page_plain(page: InspectionPage) -> dict[str, Any]:
    """Return a page of keys."""
    items = [inspection_plain(each) for each in page.items]
    return {"items": items, "pagination": page.pagination.model_dump(mode="json")}


def inspection_lines(found: Inspection) -> list[str]:
    """Return what is known of a key."""
    first, *rest = state_lines(found.state, known=found.known)
    is_tenants = found.weight is not None
    numbers: list[str] = []
    if not is_tenants and found.limit is not None:
        numbers.append(f"limit {limit_text(found.limit)}")
    numbers += _local(found)
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
    return [first, *(["; ".join(numbers)] if numbers else []), *rest]


def overridden_lines(found: Inspection) -> list[str]:
    """Return the override of a key."""
    override = found.state.override
    return [f"{found.key}: it has ended"] if override is None else override_lines(override)


def keys_lines(page: InspectionPage) -> list[str]:
    """Return known keys."""
    rows: list[tuple[Cell, ...]] = [
        (
            each.key,
            each.tier,
            limit_text(each.limit) if each.tier or each.limit is not None else "",
            each.held,
            "" if each.rate is None else f"{each.rate.current_count} of {_window(each.rate)}",
            "" if each.throttle is None else _window(each.throttle),
            each.waiting_count,
            _said(each),
        )
        for each in page.items
    ]
    lines = table(_KEYS, rows, empty="no keys are known")
    total, per_page = page.pagination.total, page.pagination.per_page
    keys = "1 key" if total == 1 else f"{total} keys"
    return [*lines, f"page {page.pagination.page} of {-(-total // per_page) or 1}, {keys}"]


def _said(found: Inspection) -> str:
    """Return what people have said of a key, and the limit of one process."""
    stops = found.stops
    stopped = [stops_text(stops)] if stops is not None and stops.stopped else []
    return "; ".join([*stopped, *(["override"] if found.override else []), *_local(found)])


def _local(found: Inspection) -> list[str]:
    return [] if found.local_limit is None else [f"{found.local_limit} in one process"]


def _window(window: RateState | ThrottleState) -> str:
    return f"{window.limit}/{window.period}"


def _time(at: Any) -> str:
    return "never" if at is None else f"{at:%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"
