"""The load of both runs: users, jobs and times.

Invariant: one seed, one number of jobs and one list of packages always give the same load. Every
user sends something, the flood sends all of its jobs at second 0.

Weakness: the users do not wait for answers before they send more, as people would.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from examples.code_analysis.catalogue import Package
from examples.code_analysis.users import USERS, User, the_flood

#: The quiet users send all their jobs within this time, in seconds.
WINDOW_SECONDS = 10.0

#: Visits of a quiet user, and packages at each visit.
_VISITS = {"free": (4, 1), "pro": (2, 3), "pro_plus": (2, 3), "enterprise": (2, 5)}


class NothingToAnalyze(LookupError):
    """The machine has no package of a size that makes a job."""


@dataclass(frozen=True)
class Order:
    """One user's request for one analysis, and perhaps for a page about it."""

    at_seconds: float
    user: str
    package: str
    with_view: bool

    @property
    def jobs(self) -> int:
        """The number of its jobs."""
        return 2 if self.with_view else 1

    def as_json(self) -> dict[str, Any]:
        """Its form as JSON, for the sender."""
        return asdict(self)


def plan_load(packages: Sequence[Package], flood_jobs: int, seed: int) -> list[Order]:
    """All orders of one run, by time.

    Raises:
        NothingToAnalyze: there are no packages.
    """
    if not packages:
        raise NothingToAnalyze("installed packages to analyze expected, got: none that fits")
    names = [package.name for package in packages]
    chance = random.Random(seed)
    orders = _flood(chance, names, flood_jobs)
    for user in USERS:
        if not user.floods:
            orders += _visits(chance, names, user)
    # Stable, so orders of one moment keep their order.
    return sorted(orders, key=lambda order: order.at_seconds)


def _flood(chance: random.Random, packages: Sequence[str], jobs: int) -> list[Order]:
    return [Order(0.0, the_flood().name, chance.choice(packages), False) for _ in range(jobs)]


def _visits(chance: random.Random, packages: Sequence[str], user: User) -> Iterable[Order]:
    visits, at_once = _VISITS[user.tier]
    # One visit in each equal part of the window: spread out, yet not in step with other users.
    part = WINDOW_SECONDS / visits
    for visit in range(visits):
        at_seconds = round(visit * part + chance.uniform(0.2, part), 3)
        for number in range(at_once):
            with_view = number == 0 and visit % 2 == 0
            yield Order(at_seconds, user.name, chance.choice(packages), with_view)
