"""Rows of the table of tiers in Redis."""

from __future__ import annotations

from typing import Any

from celery_fairness.config.tiers import Tier, write_tier


def tier_row(concurrency: int | None = None, **numbers: Any) -> str:
    """Return the row of a tier with these numbers."""
    return write_tier(Tier("any", concurrency, **numbers))
