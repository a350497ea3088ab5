"""Arguments in text form that several functions of the dispatch path share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_fairness.scheduler.types import Bounds, Rules, Settle


def bounds_args(bounds: Bounds | None) -> tuple[str, str, str]:
    """Return the arguments of a put about bounds."""
    if bounds is None:
        return "", "", ""
    return bounds.default_tier, most_text(bounds.of_tier), most_text(bounds.of_queue)


def most_text(most: int | None) -> str:
    """Return a bound as text; "" for None."""
    return "" if most is None else str(most)


def ends_args(ends: Sequence[Settle]) -> list[str]:
    """Return ends in the form that settle and claim read: two arguments each."""
    args: list[str] = []
    for end in ends:
        args += (end.lease, end.verdict.value + ("" if end.begun else "-"))
    return args


def rules_args(rules: Rules) -> tuple[str, ...]:
    """Return the arguments about a worker's settings."""
    return (
        str(rules.lease_ms),
        rules.enforcement,
        rules.default_tier,
        limit_text(rules),
        str(rules.max_deliveries),
    )


def limit_text(rules: Rules) -> str:
    """Return the limit of the default tier as text."""
    return "unlimited" if rules.default_limit is None else str(rules.default_limit)


def epoch_text(epoch: int | None) -> str:
    """Return an epoch as text; "" for None."""
    return "" if epoch is None else str(epoch)


def as_text(value: Any) -> str:
    """Return an answer as text."""
    return value.decode() if isinstance(value, bytes) else str(value)
