"""The platform's users: who they are and what they pay for.

Invariant: exactly one user floods, and it is on the free tier. The first letter of a name is the
first letter of its tier.

Weakness: a table in code; a real platform asks its database, see the Django app.
"""

from __future__ import annotations

from dataclasses import dataclass

#: How jobs that belong to nobody are named in tables.
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
    """The tier a user pays for; None for one we do not know. This is the demo's tier resolver."""
    return _TIERS.get(name)


def the_flood() -> User:
    """The one user who floods."""
    (flood,) = (user for user in USERS if user.floods)
    return flood
