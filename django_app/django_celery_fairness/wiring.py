"""What this Django process knows about its ``Fairness``: is it wired, and with which settings.

Invariant: nothing here connects to Redis, and nothing raises because a project is not set up yet;
the admin and the checks must work then, to say what is missing.

Weakness: settings are read as this process sees them. A worker on another host may have other
variables in its environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.conf import settings as django_settings

from celery_fairness.config.environment import load_settings, tier_limit_variables
from celery_fairness.errors import FairnessError
from celery_fairness.wiring import find

if TYPE_CHECKING:
    from celery_fairness.config.settings import Settings
    from celery_fairness.wiring import Wiring


def wired() -> Wiring | None:
    """Return the parts of the current Celery app; None if it has no ``Fairness``."""
    from celery import current_app

    return find(current_app)


def settings_in_force() -> Settings:
    """Return the wired settings, else what ``CELERY_FAIRNESS`` and the variables say.

    Raises:
        SettingsError: They cannot be meant; the message names setting or variable.
    """
    parts = wired()
    if parts is not None:
        found: Settings = parts.settings
        return found
    return load_settings(getattr(django_settings, "CELERY_FAIRNESS", {}), os.environ).settings


def default_tier() -> str:
    """Return the name of the default tier; the built-in one where settings cannot be read."""
    try:
        return settings_in_force().default_tier
    except FairnessError:
        return "free"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A variable that says something else than the database, which wins.

    Attributes:
        tier: The tier's name.
        variable: For example ``FAIRNESS_PRO_LIMIT``.
        says: The variable's number; None is unlimited.
        database: The database's number; None is unlimited.
    """

    tier: str
    variable: str
    says: int | None
    database: int | None


def contradictions(concurrency_of: dict[str, int | None]) -> list[Contradiction]:
    """Compare the tiers of the database with the variables of this process.

    Args:
        concurrency_of: Concurrency by tier name, as in the database.
    """
    try:
        variables = tier_limit_variables(os.environ)
    except ValueError:
        # The settings are in error then, which a check of its own reports.
        return []
    return [
        Contradiction(tier, variable, says, concurrency_of[tier])
        for tier, (variable, says) in variables.items()
        if tier in concurrency_of and concurrency_of[tier] != says
    ]


def as_text(concurrency: int | None) -> str:
    """Return a limit as people read it."""
    return "unlimited" if concurrency is None else str(concurrency)
