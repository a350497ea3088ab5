"""The ``Fairness`` of this Django process, and its settings.

Invariant: no function connects to Redis, or raises because a project is not set up yet. The admin
and the checks must work then, to show the missing step.

Weakness: the settings are those of this process. A worker on another host may have other variables
in its environment.
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
    from celery_fairness.wiring import Parts


def wired() -> Parts | None:
    """Return the parts of the current Celery app; None if it has no ``Fairness``."""
    from celery import current_app

    return find(current_app)


def settings_in_force() -> Settings:
    """Return the settings of the Celery app, or without one those of this project.

    Raises:
        SettingsError: A setting is invalid. The message names the setting or the variable.
    """
    parts = wired()
    if parts is not None:
        found: Settings = parts.settings
        return found
    return load_settings(getattr(django_settings, "CELERY_FAIRNESS", {}), os.environ)


def default_tier() -> str:
    """Return the name of the default tier; the built-in one if the settings are invalid."""
    try:
        return settings_in_force().default_tier
    except FairnessError:
        return "free"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A variable whose number differs from the database, which wins.

    Attributes:
        tier: The tier's name.
        variable: For example ``FAIRNESS_PRO_LIMIT``.
        value: The variable's number. None is unlimited.
        database: The database's number. None is unlimited.
    """

    tier: str
    variable: str
    value: int | None
    database: int | None


def contradictions(concurrency_of: dict[str, int | None]) -> list[Contradiction]:
    """Compare the tiers of the database with the variables of this process.

    Args:
        concurrency_of: Concurrency by tier name, as in the database.
    """
    try:
        variables = tier_limit_variables(os.environ)
    except ValueError:
        # Another check reports invalid settings.
        return []
    return [
        Contradiction(tier, variable, value, concurrency_of[tier])
        for tier, (variable, value) in variables.items()
        if tier in concurrency_of and concurrency_of[tier] != value
    ]


def as_text(concurrency: int | None) -> str:
    """Return a limit as text."""
    return "unlimited" if concurrency is None else str(concurrency)
