"""The platform's users and their tiers.

Invariant: exactly one user floods, and it is on the free tier. The first letter of a name is the
first letter of its tier.

Weakness: the table is in code. A real platform has a database, see the Django app.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The name of jobs without a user in tables.
BACKGROUND = "(beat)"


@dataclass(frozen=True)
class User:
    """One tenant."""

    name: str
    tier: str
    #: Sends everything at once instead of a little now and then.
    floods: bool = False


USERS = (
    User("fred", "free", floods=True),
    User("fay", "free"),
    User("felix", "free"),
    User("fiona", "free"),
    User("paul", "pro"),
    User("petra", "pro"),
    User("pablo", "pro_plus"),
    User("pia", "pro_plus"),
    User("emil", "enterprise"),
    User("emma", "enterprise"),
)

_TIERS = {user.name: user.tier for user in USERS}


def tier_of(name: str) -> str | None:
    """The tier a user pays for; None for an unknown user. This is the demo's tier resolver."""
    return _TIERS.get(name)


def the_flood() -> User:
    """The user with the flood."""
    (flood,) = (user for user in USERS if user.floods)
    return flood
