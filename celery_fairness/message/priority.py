"""The priority of a message as a rank, 0 to 9. Rank 9 goes first, on every broker."""

from __future__ import annotations

from typing import Any

HIGHEST_PRIORITY = 9


def rank_of(priority: Any, *, high_first: bool) -> int:
    """Return the rank of a message's priority; of 0 if it is no number.

    Args:
        priority: The priority in the message.
        high_first: Whether the broker delivers the highest number first. A Redis of kombu delivers
            the lowest first.
    """
    try:
        number = max(0, min(HIGHEST_PRIORITY, int(priority)))
    except (TypeError, ValueError, OverflowError):
        number = 0
    return number if high_first else HIGHEST_PRIORITY - number
