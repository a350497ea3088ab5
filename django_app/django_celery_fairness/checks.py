"""System checks: does the project's set-up put the admin's numbers in force?

==== =======================================================================
E001 a setting or variable is invalid
E002 ``USE_TZ`` is False, so times have no time zone
W001 the app is installed, but no ``Fairness`` is wired in this process
W002 ``tier_resolver`` does not point to this app's resolver
W003 a variable has another number than the database, which wins (database)
W004 a tier of the settings is not in the database (database)
==== =======================================================================

With ``check --deploy`` the checks of ``celery fairness doctor`` run too, those that need no worker.
The id of such a message is ``celery_fairness.NAME``, such as ``celery_fairness.eviction``.

Invariant: each message names the thing, the value, and the line to write.

Weakness: the last two read the database, so Django runs them only in ``migrate`` and with ``check
--database default``. The admin shows the same next to the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core import checks
from django.db import DatabaseError, router

from celery_fairness.control.health.doctor.diagnosis import at_start
from celery_fairness.errors import SettingsError
from django_celery_fairness import wiring
from django_celery_fairness.models import Tier

RESOLVER = "django_celery_fairness.resolver:tier_of"


def connect() -> None:
    """Register the checks; called by ``AppConfig.ready``."""
    checks.register(check_settings)
    checks.register(check_time_zone)
    checks.register(check_wiring)
    checks.register(check_resolver)
    checks.register(check_numbers, checks.Tags.database)
    checks.register(check_installation, deploy=True)


def check_settings(**_context: Any) -> list[checks.CheckMessage]:
    """E001: invalid settings."""
    try:
        wiring.settings_in_force()
    except SettingsError as error:
        return [
            checks.Error(
                problem, hint="Correct the setting or the variable.", id="celery_fairness.E001"
            )
            for problem in error.problems
        ]
    return []


def check_time_zone(**_context: Any) -> list[checks.CheckMessage]:
    """E002: times without a time zone, which Redis and the API cannot have."""
    if settings.USE_TZ:
        return []
    return [
        checks.Error(
            "USE_TZ is False: the times of tenants, overrides and tokens need a time zone.",
            hint="Add 'USE_TZ = True' to the settings.",
            id="celery_fairness.E002",
        )
    ]


def check_wiring(**_context: Any) -> list[checks.CheckMessage]:
    """W001: nothing is wired, so nothing is published and nothing is limited."""
    if wiring.wired() is not None:
        return []
    return [
        checks.Warning(
            "django_celery_fairness is installed, but the Celery app of this process has no "
            "Fairness: workers do not use what is saved in the admin.",
            hint="Add 'fairness = Fairness(app)' where the Celery app is made, and import that "
            "module in the project's __init__.py.",
            id="celery_fairness.W001",
        )
    ]


def check_resolver(**_context: Any) -> list[checks.CheckMessage]:
    """W002: tenants' tiers in the database are not looked up."""
    from django_celery_fairness.resolver import tier_of

    try:
        resolver = wiring.settings_in_force().tier_resolver
    except SettingsError:
        return []
    if resolver == RESOLVER or resolver is tier_of:
        return []
    return [
        checks.Warning(
            f"The setting tier_resolver is {resolver!r}: tasks are not charged by the tenants' "
            "tiers that the admin shows.",
            hint=f"Add 'tier_resolver': '{RESOLVER}' to CELERY_FAIRNESS, or call {RESOLVER} from "
            "your own resolver and silence this check.",
            id="celery_fairness.W002",
        )
    ]


def check_numbers(
    databases: Sequence[str] | None = None, **_context: Any
) -> list[checks.CheckMessage]:
    """W003 and W004: settings and database differ."""
    alias = router.db_for_read(Tier)
    if alias not in (databases or ()):
        return []
    try:
        stored = dict(Tier.objects.using(alias).values_list("name", "concurrency"))
        tiers = wiring.settings_in_force().tiers
    except (DatabaseError, SettingsError):
        # The tables do not exist yet, or E001 reports it.
        return []
    return [*_contradictions(stored), *_missing(stored, set(tiers))]


def check_installation(**_context: Any) -> list[checks.CheckMessage]:
    """``doctor``: Redis and the settings. If Redis does not answer, only the settings."""
    parts = wiring.wired()
    if parts is None:
        return []
    # As a worker does at its start: some checks look at what tasks declare.
    parts.app.loader.import_default_modules()
    try:
        found = at_start(parts.installation)
    except SettingsError:
        # E001 reports it.
        return []
    return [
        checks.Warning(
            f"{each.what}: {each.consequence}.", hint=each.fix, id=f"celery_fairness.{each.check}"
        )
        for each in found
    ]


def _contradictions(stored: dict[str, int | None]) -> list[checks.CheckMessage]:
    return [
        checks.Warning(
            f"{found.variable} is {wiring.as_text(found.value)}, but the tier {found.tier!r} in "
            f"the database has {wiring.as_text(found.database)}, which wins.",
            hint=f"Unset {found.variable}, or change the tier in the admin.",
            id="celery_fairness.W003",
        )
        for found in wiring.contradictions(stored)
    ]


def _missing(stored: dict[str, int | None], configured: set[str]) -> list[checks.CheckMessage]:
    return [
        checks.Warning(
            f"The tier {name!r} of the settings is not in the database, whose tiers win.",
            hint="Add it in the admin, or take it out of CELERY_FAIRNESS['tiers'].",
            id="celery_fairness.W004",
        )
        for name in sorted(configured - set(stored))
    ]
