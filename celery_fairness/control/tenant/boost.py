"""The rule of a boost: a tenant has twice its own number for an hour.

Weakness: a boost reads the tenant's number and sets twice that number in two calls. If the number
changes in between, the boost is twice the number before.
"""

from __future__ import annotations

from celery_fairness.control.key.views import Inspection

#: For how long a boost lasts if the person names no time, in seconds.
BOOST_SECONDS = 3600.0


def own_number(found: Inspection) -> str:
    """Return the number that a key has without pauses and overrides, as text."""
    own = [each for each in found.in_force.reasons if not each.by_people]
    return own[0].number if own else "unknown"


def boosted(found: Inspection) -> int | None:
    """Return twice the number that a key has without pauses and overrides, and at least one more.

    None: the key has no number, or the number is unknown.
    """
    own = [each for each in found.in_force.reasons if not each.by_people]
    if not own or own[0].limit is None:
        return None
    return max(2 * own[0].limit, own[0].limit + 1)
