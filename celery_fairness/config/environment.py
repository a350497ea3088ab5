"""Environment variables with the ADRs' names, laid over ``app.conf.fairness``.

They are read from a given mapping, never at import. An invalid value is an error that names the
variable. An unknown ``FAIRNESS_…`` variable is a warning with a suggestion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_fairness.config.settings import Settings, build_settings, expected
from celery_fairness.config.tiers import MAX_CONCURRENCY, Tier, tier_fields
from celery_fairness.config.worker_shares import PARTS, SLOTS_EXPECTED
from celery_fairness.errors import SettingsError, got, suggestion
from celery_fairness.util.durations import DURATION_FORMS, parse_count, parse_duration

_PREFIX = "FAIRNESS_"
_TIER_VARIABLES = {
    "FAIRNESS_FREE_LIMIT": "free",
    "FAIRNESS_PRO_LIMIT": "pro",
    "FAIRNESS_PRO_PLUS_LIMIT": "pro_plus",
    "FAIRNESS_ENTERPRISE_LIMIT": "enterprise",
}
_DURATION_VARIABLES = {
    "FAIRNESS_SNOOZE_DURATION": "snooze_seconds",
    "FAIRNESS_SNOOZE_JITTER": "snooze_jitter_seconds",
}

#: Every variable that is read, and its setting.
VARIABLES: Mapping[str, str] = {
    "FAIRNESS_ENABLED": "enabled",
    "FAIRNESS_REDIS_URL": "redis_url",
    **{name: f"tiers.{tier}.concurrency" for name, tier in _TIER_VARIABLES.items()},
    **_DURATION_VARIABLES,
}

_WORDS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
    "observe": "observe",
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and warnings about their sources.

    Attributes:
        settings: The validated settings.
        warnings: Log lines of a starting process, one sentence each.
    """

    settings: Settings
    warnings: tuple[str, ...]


def load_settings(configured: Mapping[str, Any], environ: Mapping[str, str]) -> Loaded:
    """Lay the variables in ``environ`` over ``configured`` and validate both.

    Raises:
        SettingsError: A setting or variable is invalid, with one problem for each.
    """
    if not isinstance(configured, Mapping):
        raise SettingsError(f"fairness: expected a mapping of settings, got: {got(configured)}")
    values: dict[str, Any] = dict(configured)
    sources: dict[str, str] = {}
    problems: list[str] = []
    limits: dict[str, int | None] = {}
    for name in VARIABLES:
        text = environ.get(name, "").strip()
        if not text:
            continue
        try:
            if name in _TIER_VARIABLES:
                limits[_TIER_VARIABLES[name]] = _limit(text)
            else:
                setting = VARIABLES[name]
                values[setting] = _value(name, text)
                sources[setting] = name
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if limits:
        values["tiers"] = _lay_limits(values.get("tiers", {}), limits)
    if problems:
        raise SettingsError(*problems)
    return Loaded(build_settings(values, sources), tuple(_unknown(environ)))


def tier_limit_variables(environ: Mapping[str, str]) -> dict[str, tuple[str, int | None]]:
    """Return the tiers whose concurrency a variable sets: ``{tier: (variable, concurrency)}``."""
    return {
        tier: (name, _limit(environ[name].strip()))
        for name, tier in _TIER_VARIABLES.items()
        if environ.get(name, "").strip()
    }


def _value(name: str, text: str) -> Any:
    if name in _DURATION_VARIABLES:
        return parse_duration(text)
    if name == "FAIRNESS_ENABLED":
        if text.lower() not in _WORDS:
            raise ValueError(
                f"expected true/false, 1/0, yes/no, on/off or observe, got: {got(text)}"
            )
        return _WORDS[text.lower()]
    return text


def _limit(text: str) -> int | None:
    if text.lower() == "unlimited":
        return None
    limit = parse_count(text, MAX_CONCURRENCY)
    if limit is None:
        raise ValueError(
            f"expected a whole number from 0 (pause) to 1000000, or 'unlimited', got: {got(text)}"
        )
    return limit


def _lay_limits(tiers: Any, limits: Mapping[str, int | None]) -> Any:
    if not isinstance(tiers, Mapping):
        return tiers
    merged = dict(tiers)
    for tier, limit in limits.items():
        fields = merged.get(tier, {})
        if fields is None:
            continue
        if isinstance(fields, Tier):
            fields = tier_fields(fields)
        merged[tier] = {**fields, "concurrency": limit} if isinstance(fields, Mapping) else fields
    return merged


def _unknown(environ: Mapping[str, str]) -> list[str]:
    return [
        f"variable {name} is not known and has no effect{_instead_of(name)}"
        for name in sorted(environ)
        if name.startswith(_PREFIX) and name not in VARIABLES
    ]


def _instead_of(name: str) -> str:
    """Return a suggestion for an unknown variable, or ""."""
    setting = name.removeprefix(_PREFIX).lower()
    if setting in Settings.model_fields:
        return f": {setting} is set in app.conf.fairness"
    # All of them share the prefix, so it must not add to the similarity.
    near = suggestion(setting, (each.removeprefix(_PREFIX).lower() for each in VARIABLES))
    return re.sub("'(.*)'", lambda match: f"'{_PREFIX}{match[1].upper()}'", near)


def documentation() -> list[tuple[str, str, str]]:
    """Return a row for each variable: its name, its setting, its values."""
    rows = []
    for name, setting in VARIABLES.items():
        if name in _TIER_VARIABLES:
            takes = "a whole number from 0 (pause) to 1000000, or unlimited"
        elif name in _DURATION_VARIABLES:
            takes = DURATION_FORMS
        elif name == "FAIRNESS_ENABLED":
            takes = "true/false, 1/0, yes/no, on/off or observe"
        else:
            takes = expected(setting)
        rows.append((name, setting, takes))
    for part in PARTS:
        name = f"{{SERVICE}}_QUEUE_{part.upper()}_WORKERS"
        rows.append((name, f"services.*.{part}", SLOTS_EXPECTED))
    return rows
