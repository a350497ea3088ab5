"""The numbers of a holder, for tests that are about other things than one of these numbers."""

from __future__ import annotations

from typing import Any

from celery_fairness.config.numbers import numbers_of


def listed(holder: str) -> str:
    """Return a holder's words for its numbers, as an error lists them."""
    return ", ".join(numbers_of(holder))


def unset(holder: str) -> dict[str, Any]:
    """Return the numbers of a holder that sets none."""
    return {word: number.kind.default for word, number in numbers_of(holder).items()}
